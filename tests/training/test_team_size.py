"""How many threads train one model, with a clock of our own."""

from collections.abc import Mapping

import pytest

from src.training.team_size import AGAIN, PROBE, TeamSize


class Machine:
    """Takes so many seconds for a batch with each size of a team."""

    def __init__(self, seconds: Mapping[int, float], monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds, self.now = dict(seconds), 0.0
        self.calls: list[tuple[int, int, int]] = []
        monkeypatch.setattr("time.perf_counter", lambda: self.now)

    def run(self, size: int, begin: int, end: int) -> None:
        self.calls.append((size, begin, end))
        self.now += self.seconds[size] * (end - begin)

    def block(self, team: TeamSize, batches: int) -> list[tuple[int, int, int]]:
        """The calls of a block, which must train every batch once and in order."""
        self.calls.clear()
        team.train(self.run, batches)
        places = [place for _, begin, end in self.calls for place in range(begin, end)]
        assert places == list(range(batches))
        return list(self.calls)


@pytest.mark.parametrize(("most", "sizes"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6])])
def test_sizes_are_powers_of_two_and_all_threads(most: int, sizes: list[int]) -> None:
    assert TeamSize(most).sizes == sizes


def test_the_fastest_size_is_taken_and_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, team = Machine({1: 1.0, 2: 0.6}, monkeypatch), TeamSize(2)
    first = machine.block(team, 480)
    probes = [(1, 0, 16), (2, 16, 32), (1, 32, 48), (2, 48, 64)]
    assert first == [*probes, (2, 64, 480)]
    assert PROBE == 16
    quiet = [machine.block(team, 480) for _ in range(40)]
    measured = [number for number, calls in enumerate(quiet) if len(calls) > 1]
    assert measured == [0, 2, 6, 14, 22, 30, 38]
    assert AGAIN == 8
    assert {tuple(calls) for calls in quiet if len(calls) == 1} == {((2, 0, 480),)}
    machine.seconds[2] = 5.0  # other programs have come
    for _ in range(AGAIN):
        last = machine.block(team, 480)
        if len(last) > 1:
            break
    assert last == [*probes, (1, 64, 480)]


def test_a_size_that_becomes_slow_is_measured_in_the_next_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine, team = Machine({1: 1.0, 2: 0.6}, monkeypatch), TeamSize(2)

    def slower(size: int, begin: int, end: int) -> None:
        machine.run(size, begin, end)
        if end - begin > PROBE:
            machine.now += 1000.0

    team.train(slower, 480)
    assert len(machine.block(team, 480)) == 5


@pytest.mark.parametrize("batches", [1, 2, 3, 5, 17, 100])
def test_short_blocks_are_trained_whole(batches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine({1: 1.0, 2: 0.6, 4: 2.0}, monkeypatch)
    team = TeamSize(4)
    for _ in range(3):
        machine.block(team, batches)
    alone = TeamSize(1)
    assert machine.block(alone, batches) == [(1, 0, batches)]
