"""Signals that stop a run, which then continues as if nothing had happened."""

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.crashes import fingerprint
from kindling.config.compose import compose
from kindling.records import checkpoint
from kindling.records.checkpoint import CheckpointPair
from kindling.records.folder import Row, Run
from kindling.sweeps.jobs import stopped_by_ctrl_c
from kindling.system.errors import InputError, Interrupted, exit_on_interruption
from kindling.system.signals import handled
from kindling.training.checkpoints import Checkpoints
from kindling.training.fit import fit
from tests.helpers.commands import LONG, SMALL, started
from tests.helpers.kills import position, undisturbed


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_ends_after_the_running_block(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = compose(*SMALL, "trainer.steps_per_call=2", "model.dropout=0.3")
    end_of_block = Checkpoints.on_train_batch_end
    blocks = []

    def signalled(self: Checkpoints, *arguments: Any) -> None:
        blocks.append(1)
        if len(blocks) == 9:
            os.kill(os.getpid(), number)
        end_of_block(self, *arguments)

    before = signal.getsignal(number)
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "on_train_batch_end", signalled)
        with pytest.raises(Interrupted) as caught:
            fit(config, tmp_path / "run")
    run = Run(tmp_path / "run")
    assert caught.value.number == number
    assert len(blocks) == 9
    assert run.result == {
        "status": "interrupted",
        "signal": signal.Signals(number).name,
        "resume": f"python -m src.train resume={run.folder}",
        "epochs": 1,
        "steps": 16,
    }
    assert position(run) == (1, 4)
    assert signal.getsignal(number) == before
    fit(config, run.folder, resume=True)
    assert fingerprint(run) == undisturbed(config, tmp_path)


def test_a_signal_at_the_end_of_an_epoch_counts_the_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row of the epoch is written, and Lightning has not begun the next epoch."""
    write = Run.append_history

    def signalled(self: Run, rows: Sequence[Row]) -> None:
        write(self, rows)
        if rows[-1]["epoch"] == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Run, "append_history", signalled)
    with pytest.raises(Interrupted, match="stopped after 1 epoch, 12 steps; to go on"):
        fit(compose(*SMALL), tmp_path / "run")
    run = Run(tmp_path / "run")
    assert (run.result["epochs"], run.result["steps"]) == (1, 12)
    assert position(run) == (1, 0)


def test_ctrl_c_before_training_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(tmp_path / "run")
    with pytest.raises(SystemExit) as end, exit_on_interruption(), stopped_by_ctrl_c(run):
        raise KeyboardInterrupt
    assert end.value.code == 130
    told = f"stopped before training; to go on, type\n  python -m src.train resume={run.folder}\n"
    assert capsys.readouterr().err == f"SIGINT: {told}"


def test_a_signal_when_the_result_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run has ended, and stays so; its command still says what to type."""
    write = Run.write_result_text

    def signalled(self: Run, text: str) -> None:
        write(self, text)
        if self.result["status"] == "finished":
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Run, "write_result_text", signalled)
    with pytest.raises(Interrupted, match="stopped after 2 epochs, 24 steps; to go on"):
        fit(compose(*SMALL), tmp_path / "run")
    assert Run(tmp_path / "run").ended


def test_a_terminal_that_is_closed_and_nohup() -> None:
    """The terminal and its shell send a SIGHUP each. With nohup neither counts."""
    with handled(rank=False) as signals:
        signals.wait_for_block()
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGHUP)
        with pytest.raises(Interrupted) as caught:
            signals.interrupt_if_received()
    assert caught.value.number == signal.SIGHUP
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with handled(rank=False) as signals:
            signals.wait_for_block()
            os.kill(os.getpid(), signal.SIGHUP)
            signals.interrupt_if_received()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_the_command_and_a_signal(number: int, status: int, tmp_path: Path) -> None:
    process = started(tmp_path, *LONG, "hydra.run.dir=run")
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == status
    assert "python -m src.train resume=run" in errors
    assert "Traceback" not in errors
    assert Run(tmp_path / "run").result["status"] == "interrupted"


@pytest.mark.slow
def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    """In the middle of a block of a minute: the first waits for its end, the second does not."""
    slow = (
        "data=synthetic",
        "data.samples=100000",
        "data.shape=[16]",
        "trainer.steps_per_call=9999",
    )
    wide = ("model.hidden_sizes=[2048,2048]", "trainer=cpu", "hydra.run.dir=run")
    process = started(tmp_path, *slow, *wide, epoch=0)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    time.sleep(1)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 130
    assert "Traceback" not in errors
    run = Run(tmp_path / "run")
    assert [row["epoch"] for row in run.history] == [0]
    assert run.result == {}
    assert CheckpointPair(run.checkpoints).read() is None


@pytest.mark.slow
def test_ranks_end_in_good_order_and_go_on(tmp_path: Path) -> None:
    both = (*LONG[:2], "model.dropout=0.1", "trainer.devices=2", "trainer.strategy=ddp")
    process = started(tmp_path, *both, "trainer.max_epochs=15", "hydra.run.dir=run")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to everyone
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    run = Run(tmp_path / "run")
    stopped_at = run.result["steps"]
    assert run.result["status"] == "interrupted"
    assert len(checkpoint.read(run.last_checkpoint)["ranks"]) == 2
    config = compose(*both, "trainer.max_epochs=15")
    with pytest.raises(InputError, match=r"trainer\.devices: it was 2, now 1"):
        fit(
            compose(*LONG[:2], "model.dropout=0.1", "trainer.max_epochs=15"),
            run.folder,
            resume=True,
        )
    fit(config, run.folder, resume=True)
    whole = fit(config, tmp_path / "whole")
    assert 0 < stopped_at < whole.result["steps"]
    assert fingerprint(run) == fingerprint(whole)
