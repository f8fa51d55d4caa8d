"""Groups of a sweep side by side: the same bits, with killed processes too."""

import csv
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kindling.config.compose import compose
from kindling.config.schema import Config, Execution
from kindling.data.sources.catalogue import describe
from kindling.records.folder import Run
from kindling.records.sweep_folder import Sweep
from kindling.sweeps.executors.local import Local, Slot, _Worker, local
from kindling.sweeps.tasks import GroupTask
from kindling.sweeps.trials import train_trials
from kindling.training import grouping
from kindling.training.grouping import group_trials
from kindling.training.memory import bytes_per_trial
from tests.helpers.commands import SMALL, run_command
from tests.helpers.kills import kill_fork_server
from tests.helpers.steps import needs_engine
from tests.helpers.sweeps import SweepCommand, lived, require_same, trained_here, until

LOCAL = ("hydra.launcher.executor=local", "hydra.launcher.slots=2")


def slots(count: int | None) -> Execution:
    keys = dict.fromkeys(Execution.model_fields) | {"executor": "local", "slots": count}
    return Execution.model_validate(keys)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    return trained_here(tmp_path_factory.mktemp("expected"))


def none_lived(processes: list[int]) -> bool:
    return not any(map(lived, processes))


@pytest.mark.slow
@needs_engine
def test_a_killed_process_is_replaced(tmp_path: Path, expected: list[Run]) -> None:
    command = SweepCommand(tmp_path / "sweep", *LOCAL)
    first, *others = command.workers()
    os.kill(first, signal.SIGKILL)
    assert command.wait() == 0, command.log.read_text()
    told = command.log.read_text()
    assert "2 groups in 2 processes" in told
    assert re.search(r"trials (0, 2|1, 3): the process was killed; another goes on after", told)
    require_same(tmp_path / "sweep", expected)
    assert not any(map(lived, others))


@pytest.mark.slow
def test_folders_of_later_groups_are_made_while_the_first_ones_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[tuple[str, list[int]]] = []

    def noting(what: str, worker_method: Callable[..., Any]) -> Callable[..., Any]:
        def method(self: _Worker, *given: GroupTask) -> Any:
            if given:
                running[self] = [*given[0].trials]
            events.append((what, running[self]))
            return worker_method(self, *given)

        return method

    def make(trials: Sequence[int]) -> None:
        events.append(("make", [*trials]))
        for trial in trials:
            folders[trial].mkdir()

    running: dict[_Worker, list[int]] = {}
    for name in ("begin", "ended"):
        monkeypatch.setattr(_Worker, name, noting(name, getattr(_Worker, name)))
    monkeypatch.setattr("kindling.sweeps.executors.local.PREPARED", 2)
    configs = [compose(*SMALL, f"seed={seed}") for seed in range(5)]
    folders = [tmp_path / str(trial) for trial in range(5)]
    executor = local(slots(1), configs)
    executor.make = make
    train_trials(configs, folders, Sweep(tmp_path), 1, executor=executor)
    assert events[:4] == [
        ("make", [0, 1]), ("begin", [0]), ("make", [2, 3]), ("make", [4])
    ]  # fmt: skip
    assert events[4:] == [
        (what, [trial]) for trial in range(5) for what in ("begin", "ended")
    ][1:]  # fmt: skip
    assert all(Run(folder).ended for folder in folders)


@pytest.mark.slow
@needs_engine
def test_a_stopped_sweep_goes_on_side_by_side(tmp_path: Path, expected: list[Run]) -> None:
    """No process stays, whether the first is interrupted or killed."""
    sweep = tmp_path / "sweep"
    command = SweepCommand(sweep, *LOCAL)
    for number in (signal.SIGINT, signal.SIGKILL):
        workers = command.workers(max(command.epochs()) + 4)
        assert len(workers) == 2
        command.process.send_signal(number)
        status = command.wait()
        until(partial(none_lived, workers), 20)
        if number == signal.SIGINT:
            assert status == 128 + number
            assert "to go on, type\n  python -m src.train resume=sweep" in command.log.read_text()
            assert {Run(sweep / str(n)).result.get("status") for n in range(4)} == {"interrupted"}
        assert max(command.epochs()) < 50
        command.resume()
    assert command.wait() == 0, command.log.read_text()
    assert "2 of 2 groups ended" in command.log.read_text()
    require_same(sweep, expected)


@pytest.mark.slow
def test_a_group_that_fails_ends_no_other(tmp_path: Path) -> None:
    """Also with a slot that has no core of its own."""
    configs = [
        compose(*SMALL, "seed=0"),
        compose(*SMALL, "data.batch_size=5000", "data.drop_last=true"),
    ]
    folders = [tmp_path / str(number) for number in range(2)]
    executor = local(slots(2), configs)
    train_trials(configs, folders, Sweep(tmp_path), None, executor=executor)
    results = [Run(folder).result for folder in folders]
    assert [result["status"] for result in results] == ["finished", "failed"]
    assert "data.batch_size=5000" in results[1]["error"]
    assert (tmp_path / "results.csv").read_text().count("\n") == 3


def _abort(_: object, patience: float) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_process_that_is_always_killed_fails_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kindling.sweeps.executors.local.train_group", _abort)
    config = compose(*SMALL)
    (tmp_path / "0").mkdir()
    executor = Local([Slot(frozenset(os.sched_getaffinity(0)))])
    train_trials([config], [tmp_path / "0"], Sweep(tmp_path), None, executor=executor)
    result = Run(tmp_path / "0").result
    assert result["status"] == "failed"
    assert "the process was killed 3 times in epoch 1" in result["error"]


def test_a_process_whose_fork_server_is_killed_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_fork_server(monkeypatch)
    (tmp_path / "0").mkdir()
    executor = Local([Slot(frozenset(os.sched_getaffinity(0)))])
    train_trials([compose(*SMALL)], [tmp_path / "0"], Sweep(tmp_path), None, executor=executor)
    assert Run(tmp_path / "0").result["status"] == "finished"


def _configs(*widths: int, seeds: int) -> list[Config]:
    return [
        compose(*SMALL, f"model.hidden_sizes=[{width}]", f"seed={seed}")
        for width in widths
        for seed in range(seeds)
    ]


@pytest.mark.parametrize(
    ("slots", "sizes"), [(1, [8]), (2, [4, 4]), (3, [3, 3, 2]), (8, [1] * 8), (20, [1] * 8)]
)
def test_a_stack_is_divided_among_slots(slots: int, sizes: list[int]) -> None:
    """Each part has trials of each width."""
    groups = group_trials(_configs(8, 64, seeds=4), None, slots)
    assert sorted((len(group.trials) for group in groups), reverse=True) == sizes
    assert sorted(trial for group in groups for trial in group.trials) == list(range(8))
    if slots == 2:
        assert [group.trials for group in groups] == [[0, 2, 4, 6], [1, 3, 5, 7]]


@pytest.mark.parametrize(("most", "sizes"), [(3, [2] * 4), (4, [4, 4]), (1, [1] * 8)])
def test_no_slot_waits_for_a_last_stack(most: int, sizes: list[int]) -> None:
    groups = group_trials(_configs(8, 64, seeds=4), most, 2)
    assert [len(group.trials) for group in groups] == sizes
    assert sorted(trial for group in groups for trial in group.trials) == list(range(8))


def test_the_largest_stack_is_divided_first() -> None:
    configs = [*_configs(8, seeds=6), *_configs(8, seeds=2)]
    configs[6:] = [
        c.model_copy(update={"optimizer": compose(*SMALL, "optimizer=adam").optimizer})
        for c in configs[6:]
    ]
    assert [group.trials for group in group_trials(configs, None, 3)] == [
        [0, 2, 4],
        [1, 3, 5],
        [6, 7],
    ]


def test_stacks_on_one_device_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    configs = _configs(8, seeds=8)
    data = describe(configs[0].data)
    one = bytes_per_trial(configs[0], data.shape, data.classes, configs[0].data.batch)
    monkeypatch.setattr(grouping, "free_bytes", lambda _: 2 * 4 * one)
    slots = [Slot(frozenset({0}))] * 2
    assert [
        len(group.trials) for group in group_trials(configs, None, 2, Local(slots[:1]).place)
    ] == [4] * 2
    assert [len(group.trials) for group in group_trials(configs, None, 2, Local(slots).place)] == [
        2
    ] * 4


def test_slots_are_parts_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = compose(*SMALL)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 6})
    assert [slot.cores for slot in local(slots(None), [cpu]).places] == [{3}, {5}, {6}]
    assert [slot.cores for slot in local(slots(2), [cpu]).places] == [{3, 6}, {5}]
    assert [slot.cores for slot in local(slots(4), [cpu]).places] == [{3}, {5}, {6}, {3}]
    executor = local(slots(4), [cpu])
    assert (executor.slots, executor.sharing) == (4, 4)


def test_each_gpu_is_a_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,7")
    gpu = compose("data=digits", "trainer.accelerator=cuda")
    assert local(slots(None), [gpu]).places == [
        Slot(frozenset({0, 2}), "GPU-a"), Slot(frozenset({1, 3}), "7")
    ]  # fmt: skip
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    executor = local(slots(4), [gpu])
    assert [slot.gpu for slot in executor.places] == ["0", "1", "0", "1"]
    assert (executor.slots, executor.sharing) == (4, 2)


@pytest.mark.slow
@needs_engine
def test_a_search_side_by_side_proposes_the_same(tmp_path: Path) -> None:
    search = ("data=digits", "trainer=cpu", "trainer.max_epochs=2", "search.trials=8",
              "search.batch=4", "optimizer.lr=tag(log,interval(0.01,1))",
              "model.hidden_sizes=8,16")  # fmt: skip
    tables = []
    for name, more in (("here", ()), ("local", ("search.executor=local", "search.slots=2"))):
        done = run_command(tmp_path, "src.search", *search, *more, f"search.folder={name}")
        assert done.returncode == 0, done.stderr
        assert ("2 groups in 2 processes" in done.stdout) == bool(more)
        with (tmp_path / name / "results.csv").open() as file:
            rows = [
                {k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)
            ]
        tables.append(rows)
    assert len(tables[0]) == 8
    assert tables[0] == tables[1]


def _print(_: object, patience: float) -> None:
    print("\r 10%\r 20%\ra warning\n", file=sys.stderr, end="", flush=True)
    os.write(1, b"undecodable \xff\n")
    assert not sys.stderr.isatty()


def test_what_processes_print_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kindling.sweeps.executors.local.train_group", _print)
    config = compose(*SMALL)
    (tmp_path / "0").mkdir()
    executor = Local([Slot(frozenset(os.sched_getaffinity(0)))])
    train_trials([config], [tmp_path / "0"], Sweep(tmp_path), None, executor=executor)
    lines = [record.getMessage() for record in caplog.records]
    assert [line for line in lines if line in ("a warning", r"undecodable \xff")] == lines[-2:]
    assert len(lines[-2:]) == 2
