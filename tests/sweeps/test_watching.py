"""The table of a sweep on a terminal, and its lines elsewhere."""

import logging
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from kindling.config.compose import compose
from kindling.config.schema import FusedLauncher
from kindling.records.folder import Result, Run
from kindling.records.groups import State, write_progress
from kindling.sweeps import watching
from kindling.sweeps.executors.base import Executor
from kindling.sweeps.executors.cluster import Cluster
from kindling.sweeps.tasks import GroupTask
from kindling.sweeps.watching import Watch
from kindling.system.errors import Interrupted
from kindling.system.terminal import Area
from tests.helpers.commands import SMALL
from tests.helpers.progress import progress
from tests.helpers.screen import screen, terminal
from tests.helpers.sweeps import until


def tasks(folder: Path, groups: int, size: int) -> list[GroupTask]:
    """Groups of trials that do not train."""
    config, found = compose(*SMALL), []
    for group in range(groups):
        numbers = tuple(range(group * size, (group + 1) * size))
        folders = tuple(folder / str(number) for number in numbers)
        state_folder = folder / ".stacks" / str(group)
        state_folder.mkdir(parents=True)
        for each in folders:
            each.mkdir()
        found.append(GroupTask(folder, numbers, (config,) * size, folders, state_folder))
    return found


def end(task: GroupTask, **result: Any) -> None:
    for run in task.runs:
        best = {"val/acc": 0.5 + int(run.folder.name) / 100}
        content = {"status": "finished", "monitor": "val/acc", "best": best}
        run.write_result(content | result)


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first drawing, only the test draws."""
    monkeypatch.setattr(watching, "DRAW_SECONDS", 3600.0)


def test_a_table_in_place(tmp_path: Path, by_hand: None) -> None:
    first, second, third = tasks(tmp_path, 3, 4)
    with terminal() as shown:
        with Watch([first, second, third]) as watch:
            watch.note(first, "running")
            watch.note(second, "queued")
            watch.show()
            header, _, *rows = shown.screen
            assert header.split() == ["group", "host", "device", "state", "epoch", "best", "left"]
            texts = [re.split(" {2,}", row) for row in rows]
            assert texts == [
                ["4 trials: 0–3", "–", "–", "running", "–", "–", "–"],
                ["4 trials: 4–7", "–", "–", "queued", "–", "–", "–"],
                ["4 trials: 8–11", "–", "–", "queued", "–", "–", "–"],
                ["0 of 3 groups ended, 0 of 12 trials ended"],
            ]
            write_progress(first.state_folder, progress(trials=[99]))
            write_progress(third.state_folder, progress(age=1000, host="node2"))
            watch.show()
            assert [re.split(" {2,}", row) for row in shown.screen[2:5]] == [
                ["4 trials: 0–3", "node1", "cpu", "running", "3/10", "97.31%", "2 min"],
                ["4 trials: 8–11", "node2", "cpu", "silent", "3/10", "97.31%", "–"],
                ["4 trials: 4–7", "–", "–", "queued", "–", "–", "–"],
            ]
            assert "best val/acc 97.31%, about" in shown.screen[5]
            end(first)
            watch.note(first, "ended")
            end(second, status="failed", error="OSError: full")
            watch.note(second, "ended")
            watch.note(third, "cancelled")
            watch.show()
            told = "error: trials 4–7: OSError: full"
            assert shown.screen[0] == told
            assert [re.split(" {2,}", row) for row in shown.screen[3:6]] == [
                ["4 trials: 4–7", "–", "–", "failed", "–", "57.00%", "–"],
                ["4 trials: 8–11", "–", "–", "cancelled", "–", "–", "–"],
                ["4 trials: 0–3", "–", "–", "ended", "–", "53.00%", "–"],
            ]
        totals = "3 of 3 groups ended, 8 of 12 trials ended, 4 failed, best val/acc 57.00%"
        assert shown.screen == [told, totals]


def test_a_table_fits_the_screen(tmp_path: Path, by_hand: None) -> None:
    many = tasks(tmp_path, 30, 1)
    with terminal(lines=12) as shown, Watch(many) as watch:
        for task in many[:20]:
            watch.note(task, "running")
        watch.show()
        assert len(shown.screen) == 10
        assert shown.screen[-2:] == [
            "and 14 running, 10 queued",
            "0 of 30 groups ended, 0 of 30 trials ended",
        ]


@pytest.mark.parametrize("content", [b"", b"\x1b[2J", b'{"host": "x"}', b"{" * 10**6])
def test_a_strangers_file_shows_as_unknown(tmp_path: Path, content: bytes, by_hand: None) -> None:
    (task,) = tasks(tmp_path, 1, 1)
    (task.state_folder / "progress.json").write_bytes(content)
    (row,) = Watch([task]).statuses()
    assert row.cells == ["trial 0", "?", "?", "silent", "?", "?", "?"]


def test_the_results_of_a_group_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tasks(tmp_path, 2, 3)
    read: list[str] = []

    def result(run: Run) -> Result:
        read.append(run.folder.name)
        return {"status": "failed"}

    monkeypatch.setattr(Run, "result", property(result))
    monkeypatch.delattr(Run, "history")
    watch = Watch([first, second])
    for _ in range(3):
        watch.statuses()
        watch.note(first, "ended")
    assert read == ["0", "1", "2"]


def test_a_line_now_and_then_elsewhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = tasks(tmp_path, 6, 2)
    assert watching.LINE_SECONDS == 60
    monkeypatch.setattr(watching, "LINE_SECONDS", 0.2)
    with caplog.at_level(logging.INFO, "kindling"):
        write_progress(many[0].state_folder, progress())
        with Watch(many) as watch:
            for task in many[:5]:
                watch.note(task, "running")
            until(lambda: len(caplog.records) == 2)
        *lines, totals = [record.getMessage() for record in caplog.records]
    for line in lines:
        assert line.startswith("0 of 6 groups ended, 0 of 12 trials ended, best val/acc 97.31%")
        assert line.endswith(
            "; 2 trials: 0–1 running, epoch 3/10; 2 trials: 2–3 running, epoch –; "
            "2 trials: 4–5 running, epoch –; 2 more"
        )
    assert totals.startswith("0 of 6 groups ended, 0 of 12 trials ended, best val/acc 97.31%")
    assert "running" not in totals


def test_a_process_that_trains_logs_no_lines_between(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would get into the logs of the trials."""
    two = tasks(tmp_path, 2, 1)
    monkeypatch.setattr(watching, "LINE_SECONDS", 0.0)

    def train(task: GroupTask) -> None:
        time.sleep(0.05)
        end(task, status="failed", error="told before")

    monkeypatch.setattr("kindling.sweeps.executors.base.train_group", train)
    with caplog.at_level(logging.INFO, "kindling"):
        Executor().run(two)
    (totals,) = [record.getMessage() for record in caplog.records]
    assert totals.startswith("2 of 2 groups ended, 2 of 2 trials ended, 2 failed")


def test_the_table_is_kept_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (task,) = tasks(tmp_path, 1, 1)
    monkeypatch.setattr(watching, "DRAW_SECONDS", 0.01)
    write_progress(task.state_folder, progress(epoch=1))
    with terminal() as shown, Watch([task]):
        until(lambda: shown.getvalue().count("1/10") > 1)
        write_progress(task.state_folder, progress(epoch=7))
        until(lambda: "7/10" in shown.screen[2])


def test_groups_that_train_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table stands while a group trains, and the lines of epochs are in the logs alone."""
    two = tasks(tmp_path, 2, 2)
    seen: list[list[str]] = []
    with terminal() as shown:

        def train(task: GroupTask) -> None:
            write_progress(task.state_folder, progress())
            logging.getLogger("kindling.training.history").info("epoch 1/2")
            logging.getLogger("kindling.sweeps.tasks").error("a word")
            end_of_wait = time.monotonic() + 10
            expected = ("3/10", "a word", f"{len(seen)} of 2 groups ended")
            while not all(text in "".join(shown.screen) for text in expected):
                assert time.monotonic() < end_of_wait
                time.sleep(0.01)
            seen.append(shown.screen)
            end(task)

        monkeypatch.setattr(watching, "DRAW_SECONDS", 0.05)
        monkeypatch.setattr("kindling.sweeps.executors.base.train_group", train)
        Executor().run(two)
        assert [re.split(" {2,}", row)[3] for row in seen[-1][4:6]] == ["running", "ended"]
        totals = "2 of 2 groups ended, 4 of 4 trials ended, best val/acc 53.00%"
        assert shown.screen == ["a word", "a word", totals]


@pytest.mark.slow
def test_a_command_on_a_terminal(tmp_path: Path) -> None:
    """The table is drawn while a sweep trains, and nothing of the table stays."""
    ours, theirs = pty.openpty()
    arguments = ["-m", "hydra/launcher=fused", "data=digits", "trainer=cpu", "data.batch_size=5",
                 "trainer.max_epochs=300", "hydra.launcher.max_trials=1", "seed=0,1",
                 "hydra.sweep.dir=sweep"]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "src.train", *arguments],
        cwd=tmp_path,
        env={**os.environ, "TERM": "xterm"},
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    output = b""
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        output += data
    os.close(ours)
    assert process.wait() == 0, output.decode()
    text = output.decode()
    assert re.search(r"trial [01] .* running +\d+/300", text)
    assert "\x1b[" in text
    final = screen(text)
    totals = next(n for n, line in enumerate(final) if line.startswith("2 of 2 groups ended"))
    assert not any("group  " in line or "epoch" in line for line in final[:totals])
    assert (tmp_path / "sweep" / "0" / "train.log").read_text().count("] epoch ") == 301


class Pretended(Cluster):
    """A cluster whose scheduler tells these states of its jobs, one after the other."""

    name = "a cluster"
    told: Sequence[Mapping[str, State]]
    ending: tuple[int, GroupTask]  # the question before which this task ends
    asked = 0

    def capacity(self, gpus: int) -> int:
        return 2

    def submit(self, tasks: Sequence[GroupTask], gpus: int) -> list[str]:
        return [task.state_folder.name for task in tasks]

    def states(self) -> Mapping[str, State]:
        self.asked += 1
        if self.asked == self.ending[0]:
            end(self.ending[1])
        return self.told[self.asked - 1]

    def cancel_command(self, sweep: Path, jobs: Sequence[str]) -> str:
        return f"cancel {' '.join(jobs)}"


def test_the_groups_of_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_hand: None
) -> None:
    """Between two questions to the scheduler, the table is drawn without asking."""
    monkeypatch.setattr("kindling.sweeps.executors.cluster.POLL_SECONDS", 0.2)
    monkeypatch.setattr(watching, "DRAW_SECONDS", 0.05)
    monkeypatch.setattr(Run, "ended", property(lambda run: run.result.get("status") == "finished"))
    groups = tasks(tmp_path, 3, 2)
    seen: list[list[str]] = []
    drawn = Area.draw

    def draw(area: Area, lines: Sequence[str]) -> None:
        drawn(area, lines)
        seen.append([re.split(" {2,}", line)[3] for line in lines[2:-1]])

    monkeypatch.setattr(Area, "draw", draw)
    keys = dict.fromkeys(FusedLauncher.model_fields)
    execution = FusedLauncher.model_validate({**keys, "executor": "slurm", "wait": True})
    cluster = Pretended(execution, [groups[0].configs[0]])
    cluster.told = [
        {},
        {"0": "running", "1": "queued", "2": "queued"},
        {"1": "running", "2": "cancelled"},
        {"1": "running"},
        {"1": "cancelled"},
    ]
    cluster.ending = (3, groups[0])
    with terminal() as shown, pytest.raises(Interrupted, match="trials 2, 3; trials 4, 5: cancel"):
        cluster.run(groups)
    # The scheduler may have forgotten the first group before its results are seen.
    known = [states for states in seen if states != ["running", "running", "cancelled"]]
    shortly = [
        states for states, before in zip(known, [[], *known], strict=False) if states != before
    ]
    assert shortly[:3] == [
        ["queued", "queued", "queued"],
        ["running", "queued", "queued"],
        ["running", "cancelled", "ended"],
    ]
    assert len(seen) > 2 * cluster.asked
    assert shown.screen[-1] == "3 of 3 groups ended, 2 of 6 trials ended, best val/acc 51.00%"
