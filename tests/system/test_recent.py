"""What was read last is kept."""

import threading

from kindling.system.recent import Recent


def test_the_last_entries_are_kept() -> None:
    kept = Recent[str, int](3)
    for number, name in enumerate("abcd"):
        kept[name] = number
    assert kept == {"b": 1, "c": 2, "d": 3}


def test_an_entry_that_is_there_pushes_none_out() -> None:
    kept = Recent[str, int](3)
    for number, name in enumerate("abcc"):
        kept[name] = number
    assert kept == {"a": 0, "b": 1, "c": 3}


def test_threads_may_add_at_once() -> None:
    kept = Recent[int, int](50)

    def add(first: int) -> None:
        for number in range(first, first + 20_000):
            kept[number] = number

    threads = [threading.Thread(target=add, args=(20_000 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(kept) == 50
    assert all(key == value for key, value in kept.items())
