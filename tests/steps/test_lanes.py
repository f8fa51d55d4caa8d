"""Threads of a run: how many, and what they raise."""

import itertools
from collections.abc import Mapping

import pytest
import torch

from kindling.models.mlp import Mlp
from kindling.steps import lanes
from kindling.steps.lanes import ENOUGH, ENOUGH_ALONE, LONGEST_PAUSE, PAUSE, TeamSize


def test_one_thread_is_enough_for_little_work() -> None:
    """A step needs some milliseconds of work before a second thread pays."""
    small, large = models_of_width(32), models_of_width(2048)
    assert lanes.threads_for(small, [784], 100, 8) == 1
    assert lanes.threads_for(large, [784], 100, 8) == 8
    assert lanes.threads_for(small * 64, [784], 100, 2) == 2
    # 24 x 24 pixels of 8 channels, of 25 products each: 0.69 million operations a sample.
    convolution: list[torch.nn.Module] = [torch.nn.Conv2d(1, 8, 5)]
    assert lanes.threads_for(convolution, [1, 28, 28], 300, 4) == 2
    assert lanes.threads_for(convolution, [1, 28, 28], 140, 4) == 1
    before = torch.get_num_threads()
    with lanes.Lanes(2, 1).running():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def models_of_width(width: int) -> list[torch.nn.Module]:
    return [Mlp(784, [width], 10)]


def test_errors_of_lanes_are_raised() -> None:
    def fail(number: int) -> int:
        if number == 1:
            raise ValueError("lane 1")
        return number

    pool = lanes.Lanes(3)
    with pool.running():
        assert pool.map(lambda number: 2 * number, [0, 1, 2]) == [0, 2, 4]
        with pytest.raises(ValueError, match="lane 1"):
            pool.map(fail, [0, 1, 2])


# --- teams, with a clock of our own --------------------------------------------------------------

Calls = list[tuple[int, int, int]]


class Machine:
    """Takes so many seconds for a batch with each size of a team."""

    def __init__(self, seconds: Mapping[int, float], monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds, self.now = dict(seconds), 0.0
        self.calls: Calls = []
        monkeypatch.setattr("time.perf_counter", lambda: self.now)

    def run(self, size: int, begin: int, end: int) -> None:
        self.calls.append((size, begin, end))
        self.now += self.seconds[size] * (end - begin)

    def block(self, team: TeamSize, batches: int) -> Calls:
        """The calls of a block, which must train every batch once and in order."""
        self.calls.clear()
        team.train(self.run, batches)
        places = [place for _, begin, end in self.calls for place in range(begin, end)]
        assert places == list(range(batches))
        return list(self.calls)


@pytest.mark.parametrize(("most", "sizes"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6])])
def test_sizes_are_powers_of_two_and_all_threads(most: int, sizes: list[int]) -> None:
    assert TeamSize(most).sizes == sizes


@pytest.mark.parametrize(("alone", "together", "best"), [(1.0, 0.6, 2), (1.0, 1.1, 1)])
def test_the_fastest_size_is_taken(
    alone: float, together: float, best: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pieces that double, until a size has trained for long enough."""
    machine, team = Machine({1: alone * 1e-4, 2: together * 1e-4}, monkeypatch), TeamSize(2)
    *pieces, (size, begin, end) = machine.block(team, 2000)
    assert (size, end) == (best, 2000)
    assert [n for n, *_ in pieces] == sorted([n for n, *_ in pieces], reverse=True)
    assert [stop - start for n, start, stop in pieces if n == 2][:5] == [1, 1, 2, 4, 8]
    for number, enough in ((1, ENOUGH_ALONE), (2, ENOUGH)):
        trained = sum(stop - start for n, start, stop in pieces if n == number)
        assert enough <= trained * machine.seconds[number] <= 2 * enough + 1e-4
    assert begin > 0
    assert machine.block(team, 100) == [(best, 0, 100)]


def test_a_measurement_goes_on_in_the_next_block(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, team = Machine({1: 3e-3, 2: 2e-3}, monkeypatch), TeamSize(2)
    sizes = [size for _ in range(12) for size, *_ in machine.block(team, 3)]
    assert sizes.index(1) > 3
    assert sizes[-1] == 2
    assert team.measured == {1: pytest.approx(3e-3), 2: pytest.approx(2e-3)}


def test_sizes_are_measured_again_more_and_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, team = Machine({1: 1e-3, 2: 6e-4}, monkeypatch), TeamSize(2)
    measured = []
    for _ in range(1000):
        began = machine.now
        if any(size == 1 for size, *_ in machine.block(team, 60)):
            measured.append(began)
    pauses = [b - a for a, b in itertools.pairwise(measured) if b - a > 0.2][:6]
    assert pauses == [pytest.approx(pause, abs=0.2) for pause in (0.5, 1, 2, 4, 8, 8)]
    assert (PAUSE, LONGEST_PAUSE) == (0.5, 8.0)


def test_a_new_choice_is_soon_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program may have spoilt one measurement."""
    machine, team = Machine({1: 1e-3, 2: 6e-4}, monkeypatch), TeamSize(2)
    while machine.now < 10:
        machine.block(team, 60)
    machine.seconds[2] = 5e-3
    while team.chosen == 2:
        machine.block(team, 60)
    machine.seconds[2] = 6e-4
    began = machine.now
    while team.chosen == 1:
        machine.block(team, 60)
    assert machine.now - began < PAUSE + 6 * ENOUGH


def test_a_size_that_becomes_slow_is_measured_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, team = Machine({1: 1e-3, 2: 6e-4}, monkeypatch), TeamSize(2)
    machine.block(team, 500)
    assert machine.block(team, 60) == [(2, 0, 60)]
    machine.seconds[2] = 5e-3  # other programs have come
    assert machine.block(team, 60) == [(2, 0, 60)]
    assert machine.block(team, 500)[-1] == (1, machine.calls[-1][1], 500)


@pytest.mark.parametrize("batches", [1, 2, 3, 5, 17, 100])
def test_blocks_of_any_length_are_trained_whole(
    batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, team = Machine({1: 1.0, 2: 0.6, 4: 2.0}, monkeypatch), TeamSize(4)
    for _ in range(5):
        machine.block(team, batches)
    assert machine.block(TeamSize(1), batches) == [(1, 0, batches)]
