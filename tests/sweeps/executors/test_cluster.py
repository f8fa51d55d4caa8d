"""Groups on a cluster, as a scheduler that a test leads through every state."""

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from kindling.config.compose import compose
from kindling.config.schema import FusedLauncher
from kindling.records.config_files import create_run_folder
from kindling.records.folder import Run
from kindling.records.groups import State
from kindling.records.sweep_folder import Sweep
from kindling.sweeps.executors import cluster
from kindling.sweeps.executors.base import GROUP_KILLS
from kindling.sweeps.executors.cluster import Cluster, SubmittedJobs
from kindling.sweeps.tasks import GroupTask, Parcel, train_group
from kindling.sweeps.trials import train_trials
from kindling.system.errors import InputError, Interrupted
from kindling.training.grouping import TrainingDevice
from kindling.training.result import mark_failed
from tests.helpers.commands import SMALL

Step = Callable[["Scripted"], Mapping[str, State]]
NOTHING = dict.fromkeys(FusedLauncher.model_fields) | {"wait": True}


class Scripted(Cluster):
    """Answers each question about the states by the next step of a test, then by the last."""

    name = "a scripted cluster"

    def __init__(self, *steps: Step, **settings: object) -> None:
        super().__init__(FusedLauncher.model_validate(NOTHING | settings), [])
        self.steps: Iterator[Step] = iter(steps)
        self.sent: list[GroupTask] = []
        self.step: Step = nothing

    def capacity(self, gpus: int) -> int:
        return 2 + gpus

    def submit(self, tasks: Sequence[GroupTask], gpus: int) -> list[str]:
        assert gpus == 0
        self.sent += tasks
        return [f"job{len(self.sent) - len(tasks) + number}" for number in range(len(tasks))]

    def states(self) -> Mapping[str, State]:
        self.step = next(self.steps, self.step)
        return self.step(self)

    def cancel_command(self, sweep: Path, jobs: Sequence[str]) -> str:
        return f"cancel {' '.join(jobs)}"


def nothing(_: Scripted) -> Mapping[str, State]:
    return {}


def all_running(engine: Scripted) -> Mapping[str, State]:
    return {f"job{number}": "running" for number in range(len(engine.sent))}


def all_ended(engine: Scripted) -> Mapping[str, State]:
    for task in engine.sent:
        train_group(task)
    return {}


def no_answer(_: Scripted) -> Mapping[str, State]:
    raise InputError("no answer")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "POLL_SECONDS", 0.0)


def run(folder: Path, engine: Scripted) -> list[Run]:
    configs = [compose(*SMALL, f"seed={seed}") for seed in range(3)]
    folders = [folder / str(number) for number in range(3)]
    for config, each in zip(configs, folders, strict=True):
        create_run_folder(Run(each), config.to_primitives())
    train_trials(configs, folders, Sweep(folder), None, executor=engine)
    return [Run(each) for each in folders]


def statuses(folder: Path) -> list[object]:
    return [Run(folder / str(number)).result.get("status") for number in range(3)]


def test_jobs_that_are_queued_and_run_and_end(tmp_path: Path) -> None:
    engine = Scripted(nothing, all_running, all_running, all_ended)
    runs = run(tmp_path, engine)
    assert [task.trials for task in engine.sent] == [(0, 2), (1,)]
    assert all(run.ended for run in runs)
    assert not (tmp_path / ".stacks").exists()


def test_who_leaves_comes_back_to_the_same_jobs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    engine = Scripted(wait=False)
    with pytest.raises(SystemExit) as end:
        run(tmp_path, engine)
    assert end.value.code == 0
    assert "to cancel them, type\n  cancel job0 job1" in caplog.text
    assert f"to come back, type\n  python -m src.train resume={tmp_path}" in caplog.text
    train_group(engine.sent[0])  # while nobody watches

    def second_runs(_: Scripted) -> Mapping[str, State]:
        return {"job1": "running"}

    def second_ends(_: Scripted) -> Mapping[str, State]:
        train_group(engine.sent[1])
        return {}

    later = Scripted(second_runs, second_ends)
    run(tmp_path, later)
    assert later.sent == []
    assert statuses(tmp_path) == ["finished"] * 3


def test_a_job_that_is_gone_without_a_word_is_sent_again(tmp_path: Path) -> None:
    """Three times without an epoch between."""
    engine = Scripted(nothing)
    run(tmp_path, engine)
    assert len(engine.sent) == 2 * GROUP_KILLS
    assert statuses(tmp_path) == ["failed"] * 3
    told = Run(tmp_path / "1").result["error"]
    assert "the process was killed 3 times in epoch 1" in told
    assert ".stacks/jobs" in told


def test_a_group_that_failed_is_not_sent_again(tmp_path: Path) -> None:
    def fail(engine: Scripted) -> Mapping[str, State]:
        mark_failed(engine.sent[0].runs, InputError("no"))
        train_group(engine.sent[1])
        return {}

    engine = Scripted(nothing, fail)
    run(tmp_path, engine)
    assert len(engine.sent) == 2
    assert statuses(tmp_path) == ["failed", "finished", "failed"]


def test_cancelled_jobs_end_the_sweep_and_say_how_to_go_on(tmp_path: Path) -> None:
    def cancelled(_: Scripted) -> Mapping[str, State]:
        return {"job0": "cancelled", "job1": "cancelled"}

    with pytest.raises(Interrupted, match=r"trials 0, 2; trial 1: cancelled; to go on, type"):
        run(tmp_path, Scripted(nothing, all_running, cancelled))
    assert (tmp_path / ".stacks" / "jobs" / "jobs.json").exists()


def test_a_scheduler_may_be_silent_for_a_while(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Scripted(nothing, all_running, no_answer, no_answer, all_running, all_ended)
    run(tmp_path, engine)
    assert len(engine.sent) == 2
    assert [record.message for record in caplog.records].count(
        "no answer; asking again every 0 s"
    ) == 1  # fmt: skip


def test_who_leaves_a_silent_scheduler_is_told(tmp_path: Path) -> None:
    def stopped(_: Scripted) -> Mapping[str, State]:
        raise Interrupted(signal.SIGINT)

    for steps, told in {
        (all_running, stopped): "the jobs go on without this process; to come back, type",
        (no_answer, stopped): "a scripted cluster does not answer, and its jobs may go on; to come",
    }.items():
        with pytest.raises(Interrupted, match=f"^{told}"):
            run(tmp_path / steps[0].__name__, Scripted(nothing, *steps))


def test_a_scheduler_that_never_answered_ends_the_command(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no answer"):
        run(tmp_path, Scripted(no_answer))


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"a": 1}', b'{"a": "1"', b"\xff", b"null", b"[" * 100_000]
)
def test_a_strange_record_of_jobs_is_named(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "jobs" / "jobs.json"
    file.parent.mkdir()
    file.write_bytes(content)
    told = r"jobs\.json: cannot be read \(.*\); remove it: new jobs are submitted"
    with pytest.raises(InputError, match=told):
        SubmittedJobs(file)


def test_a_record_of_jobs_is_no_pipe_and_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    os.mkfifo(tmp_path / "jobs" / "jobs.json")
    with pytest.raises(InputError, match=r"jobs\.json"):
        SubmittedJobs(tmp_path / "jobs" / "jobs.json")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "jobs").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="jobs"):
        SubmittedJobs(tmp_path / "sweep" / "jobs" / "jobs.json")


def test_a_group_is_planned_for_the_machine_that_trains_it() -> None:
    gpu = compose("data=digits", "trainer.accelerator=cuda", "trainer.devices=2")
    cpu = compose("data=digits", "trainer.accelerator=cpu")
    assert [Scripted().gpus(config) for config in (gpu, cpu)] == [2, 0]
    assert Scripted(gpus=1).gpus(cpu) == 1
    assert Scripted().place(gpu) == TrainingDevice(16 * 10**9, on_cpu=False)
    assert Scripted().place(cpu) == TrainingDevice(4 * 10**9, on_cpu=True)
    assert Scripted(memory=7).place(cpu) == TrainingDevice(7 * 10**9, on_cpu=True)
    assert (Scripted().slots, Scripted(slots=9).slots) == (2, 9)


def test_the_code_of_a_parcel_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def elsewhere(engine: Scripted) -> Mapping[str, State]:
        for task in engine.sent:
            parcel = Parcel.of(task)
            other = {**parcel.code, "commit": "cafe"}
            with monkeypatch.context() as patched:
                patched.setattr("kindling.sweeps.tasks.code", other.copy)
                parcel.train()
        return {}

    run(tmp_path, Scripted(nothing, elsewhere))
    assert statuses(tmp_path) == ["failed"] * 3
    assert "has commit cafe instead of" in Run(tmp_path / "0").result["error"]
