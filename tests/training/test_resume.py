"""Runs that are stopped and go on, against runs that were left alone: the same to the last bit."""

import errno
import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from src.benchmarks.crashes import digest, fingerprint
from src.config.compose import compose
from src.config.schema import Config
from src.runs import checkpoint
from src.runs.checkpoint import CheckpointPair
from src.runs.folder import Run
from src.runs.loading import open_trained
from src.sweeps.command_line import check_command_line
from src.system.errors import InputError, Interrupted
from src.training.checkpoint_callback import Checkpoints
from src.training.classifier import Classifier
from src.training.fit import fit, fit_stack
from tests.helpers.commands import LONG, ROOT, SMALL, Command, Train, started
from tests.helpers.kills import Killed, die_after_writing

# Twelve batches an epoch, in blocks of two or, with three accumulated, of four: a block then ends
# between two steps. Checkpoints after half of each epoch and at its end.
FINE = (*SMALL, "trainer.max_epochs=3", "trainer.steps_per_call=2", "checkpoint.every_n_steps=6")
RECIPES: dict[str, tuple[str, ...]] = {
    "momentum": ("optimizer.momentum=0.9", "optimizer.lr=0.01", "optimizer.nesterov=true"),
    "adamw": ("optimizer=adamw", "optimizer.weight_decay=0.1"),
    "dropout": ("model.dropout=0.3",),
    "dropout, autograd": ("model.dropout=0.3", "trainer.step=autograd"),
    "constant": ("scheduler=none",),
    "multistep": ("scheduler.milestones=[1,2]",),
    "cosine": ("scheduler=cosine",),
    "onecycle": ("scheduler=onecycle",),
    "accumulated": (
        "trainer.accumulate_grad_batches=3",
        "trainer.steps_per_call=4",
        "checkpoint.every_n_steps=1",
    ),
    "accumulated, autograd": (
        "trainer.accumulate_grad_batches=3",
        "trainer.steps_per_call=4",
        "checkpoint.every_n_steps=1",
        "trainer.step=autograd",
    ),
    "batch norm, average": ("model.norm=batch", "trainer.ema_decay=0.9"),
    "average, autograd": ("model.norm=batch", "trainer.ema_decay=0.9", "trainer.step=autograd"),
    "all of a recipe": (
        "model.norm=layer",
        "model.input_dropout=0.1",
        "model.max_norm=1.0",
        "trainer.label_smoothing=0.1",
        "scheduler.warmup_epochs=1.5",
    ),
    "bf16": ("trainer.precision=bf16-mixed",),
    "bf16, autograd": ("trainer.precision=bf16-mixed", "trainer.step=autograd"),
    "clipped": ("trainer.gradient_clip_val=0.1",),
    "stream": ("data.order=stream",),
    "workers": ("data.loader=workers", "model.dropout=0.3"),
    "gradient checkpointing": ("model.gradient_checkpointing=true", "model.dropout=0.3"),
}


def positions(run: Run) -> tuple[int, int]:
    at = checkpoint.read(run.last_checkpoint)["position"]
    return at["epoch"], at["batch"]


@pytest.mark.parametrize("recipe", RECIPES)
def test_killed_at_every_checkpoint(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = compose(*FINE, *RECIPES[recipe])
    whole = fit(config, tmp_path / "whole")
    die_after_writing(monkeypatch)
    run, seen = Run(tmp_path / "killed"), []
    while not run.result:
        try:
            fit(config, run.folder, resume=True)
        except Killed:
            seen.append(positions(run))
    assert fingerprint(run) == fingerprint(whole)
    assert [at for at in seen if at[1] == 0] == [(1, 0), (2, 0), (3, 0)]
    assert {epoch for epoch, batch in seen if batch} == {0, 1, 2}


@pytest.mark.parametrize(
    ("scheduler", "told"),
    [("none", False), ("multistep", False), ("cosine", True), ("onecycle", True)],
)
def test_a_schedule_that_is_stretched_says_so(
    scheduler: str, told: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    common = (*SMALL, f"scheduler={scheduler}")
    fit(compose(*common), tmp_path / "run")
    with caplog.at_level(logging.INFO, "src"):
        run = fit(compose(*common, "trainer.max_epochs=3"), tmp_path / "run", resume=True)
    assert run.result["epochs"] == 3
    lines = [record.getMessage() for record in caplog.records]
    words = f"scheduler={scheduler}: its learning rates are spread over trainer.max_epochs"
    assert any(words in line and "curve of 3 epochs" in line for line in lines) is told


def test_checkpoints_by_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block is later than the last one by more than that; the last of an epoch is its end."""
    written = []
    write = CheckpointPair.write

    def noted(self: CheckpointPair, content: dict[str, Any]) -> None:
        written.append((content["position"]["epoch"], content["position"]["batch"]))
        write(self, content)

    monkeypatch.setattr(CheckpointPair, "write", noted)
    blocks = ("trainer.steps_per_call=4", "trainer.max_epochs=1")
    fit(compose(*SMALL, *blocks, "checkpoint.every_seconds=1e-9"), tmp_path / "often")
    assert written == [(0, 4), (0, 8), (0, 11), (1, 0)]
    written.clear()
    fit(compose(*SMALL, *blocks, "checkpoint.every_seconds=null"), tmp_path / "seldom")
    assert written == [(1, 0)]


def test_gradients_between_two_steps_are_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = compose(*FINE, *RECIPES["accumulated"])
    die_after_writing(monkeypatch)
    with pytest.raises(Killed):
        fit(config, tmp_path / "run")
    state = checkpoint.read(tmp_path / "run" / "checkpoints" / "last.ckpt")
    assert state["position"] == {"epoch": 0, "batch": 4}
    (own,) = state["ranks"]
    assert sum(gradient.abs().sum() for gradient in own["gradients"]) > 0
    assert own["metrics"][0].shape == (4, 1)  # the losses of four batches


def test_a_stack_killed_at_every_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = ("model.dropout=0.3", "optimizer=adamw")
    configs = [
        compose(*FINE, *recipe, f"optimizer.lr={rate}", f"seed={seed}")
        for rate in (0.001, 0.003)
        for seed in (0, 1)
    ]

    def folders(name: str) -> list[Path]:
        return [tmp_path / name / str(trial) for trial in range(4)]

    whole = fit_stack(configs, folders("whole"), tmp_path / "whole" / "stack")
    die_after_writing(monkeypatch)
    runs = [Run(folder) for folder in folders("killed")]
    deaths = 0
    while not runs[-1].result:
        try:
            fit_stack(configs, folders("killed"), tmp_path / "killed" / "stack")
        except Killed:
            deaths += 1
    assert deaths == 6
    for one, other in zip(runs, whole, strict=True):
        assert fingerprint(one) == fingerprint(other)
    assert not (tmp_path / "killed" / "stack").exists()


def test_more_epochs_are_those_of_a_longer_run(tmp_path: Path) -> None:
    longer = fit(compose(*FINE, "model.dropout=0.3", "trainer.max_epochs=5"), tmp_path / "longer")
    run = fit(compose(*FINE, "model.dropout=0.3"), tmp_path / "run")
    assert run.result["epochs"] == 3
    more = compose(*FINE, "model.dropout=0.3", "trainer.max_epochs=5")
    assert not run.ended or run.config != more
    fit(more, run.folder, resume=True)
    assert fingerprint(run) == fingerprint(longer)
    assert run.config == more


def test_a_trial_of_a_stack_goes_on_alone(tmp_path: Path) -> None:
    rates = ("0.05", "0.1")
    configs = [compose(*FINE, f"optimizer.lr={rate}") for rate in rates]
    runs = fit_stack(configs, [tmp_path / rate for rate in rates], tmp_path / "stack")
    more = compose(*FINE, "optimizer.lr=0.1", "trainer.max_epochs=5")
    fit(more, runs[1].folder, resume=True)
    alone = fit(more, tmp_path / "alone")
    assert [row["epoch"] for row in runs[1].history] == [0, 1, 2, 3, 4, 5]
    for row, other in zip(runs[1].history, alone.history, strict=True):
        assert row["val/loss"] == pytest.approx(other["val/loss"], abs=1e-4)


def test_a_finished_run_is_left_alone(train: Train) -> None:
    run = train()
    before = {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}
    fit(run.config, run.folder, resume=True)
    assert before == {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}


def test_another_configuration_is_refused(train: Train) -> None:
    run = train()
    other = compose(*SMALL, "optimizer.lr=0.1", "model.hidden_sizes=[8]", "trainer.max_epochs=9")
    with pytest.raises(InputError) as caught:
        fit(other, run.folder, resume=True)
    assert str(caught.value).splitlines()[1:] == [
        "  model.hidden_sizes: it was [32], now [8]",
        "  optimizer.lr: it was 0.5, now 0.1",
    ]
    with pytest.raises(InputError, match=r"trainer\.max_epochs: it was 2, now 1"):
        fit(compose(*SMALL, "trainer.max_epochs=1"), run.folder, resume=True)


# --- faults on the way -------------------------------------------------------------------------


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Config, Run]:
    """A run of three epochs that died after its second: two checkpoints are there."""
    config = compose(*SMALL, "trainer.max_epochs=3", "model.dropout=0.3")
    undo = die_after_writing(monkeypatch)
    for _ in range(2):
        with pytest.raises(Killed):
            fit(config, tmp_path / "run", resume=True)
    undo()
    return config, Run(tmp_path / "run")


def expected(config: Config, tmp_path: Path) -> dict[str, str]:
    return fingerprint(fit(config, tmp_path / "whole"))


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied", "foreign", "deleted"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_used(
    damage: str,
    stopped: tuple[Config, Run],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    config, run = stopped
    content = bytearray(run.last_checkpoint.read_bytes())
    content[len(content) // 2] ^= 1
    changed = {"cut": bytes(content[:-1000]), "flipped": bytes(content), "emptied": b""}
    if damage == "deleted":
        run.last_checkpoint.unlink()
    elif damage == "foreign":
        torch.save({"state_dict": {}}, run.last_checkpoint)
    else:
        run.last_checkpoint.write_bytes(changed[damage])
    with caplog.at_level(logging.INFO, "src"):
        fit(config, run.folder, resume=True)
    told = "\n".join(record.getMessage() for record in caplog.records)
    assert "going on from epoch 1, batch 0" in told
    named = f"{run.last_checkpoint}: is damaged or not a checkpoint of this project"
    assert (named in told) == (damage != "deleted")
    assert fingerprint(run) == expected(config, tmp_path)


def test_without_any_good_checkpoint_nothing_is_overwritten(stopped: tuple[Config, Run]) -> None:
    config, run = stopped
    pair = CheckpointPair(run.checkpoints)
    for path in (pair.last, pair.previous):
        path.write_bytes(path.read_bytes()[:1000])
    history = run.history_file.read_bytes()
    with pytest.raises(InputError, match="no checkpoint is left to resume from"):
        fit(config, run.folder, resume=True)
    for path in (pair.last, pair.previous):
        path.unlink()
    with pytest.raises(InputError, match=r"it came to epoch 2; delete .*history\.csv"):
        fit(config, run.folder, resume=True)
    assert run.history_file.read_bytes() == history


@pytest.mark.parametrize("damage", ["half a row", "deleted", "rows ahead"])
def test_the_history_is_put_back(damage: str, stopped: tuple[Config, Run], tmp_path: Path) -> None:
    config, run = stopped
    lines = run.history_file.read_text().splitlines(keepends=True)
    if damage == "deleted":
        run.history_file.unlink()
    elif damage == "half a row":
        run.history_file.write_text("".join(lines)[:-20])
        assert [row["epoch"] for row in run.history] == [0, 1]
    else:
        run.history_file.write_text("".join([*lines, "3,36,0.1,0.5,1,0.5,1,0.5\n"]))
    fit(config, run.folder, resume=True)
    assert [row["epoch"] for row in run.history] == [0, 1, 2, 3]
    assert fingerprint(run) == expected(config, tmp_path)


def test_killed_before_the_first_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = compose(*SMALL)

    def die(self: CheckpointPair, content: dict[str, Any]) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointPair, "write", die)
        with pytest.raises(Killed):
            fit(config, tmp_path / "run")
    run = Run(tmp_path / "run")
    assert [row["epoch"] for row in run.history] == [0, 1]
    fit(config, run.folder, resume=True)
    assert fingerprint(run) == expected(config, tmp_path)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_full_or_read_only_disk(
    number: int, stopped: tuple[Config, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, run = stopped

    def refuse(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(InputError) as caught:
            fit(config, run.folder, resume=True)
    assert os.strerror(number) in str(caught.value)
    assert f"python -m src.train resume={run.folder}" in str(caught.value)
    assert not list(run.folder.rglob(".*.part"))
    fit(config, run.folder, resume=True)
    assert fingerprint(run) == expected(config, tmp_path)


def test_divergence_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    quiet = ("trainer.steps_per_call=1", "checkpoint.every_n_steps=1", "scheduler=none")
    run = fit(compose(*SMALL, *quiet, "optimizer.lr=1e6", "trainer.max_epochs=3"), tmp_path / "run")
    result = run.result
    assert result["status"] == "diverged"
    step = result["diverged_step"] or 0
    assert 1 < step <= 12
    saved = checkpoint.read(run.last_checkpoint)
    assert saved["position"] == {"epoch": 0, "batch": step - 1}
    assert all(value.isfinite().all() for value in saved["state_dict"].values())
    assert run.ended


def test_out_of_memory_says_what_to_try(tmp_path: Path) -> None:
    config = compose(
        *SMALL,
        "model.hidden_sizes=[2000000000]",
        "data.batch_size=64",
        "trainer.accumulate_grad_batches=3",
    )
    with pytest.raises(InputError, match="out of memory") as caught:
        fit(config, tmp_path / "run")
    assert str(caught.value).splitlines()[1:] == [
        "  data.batch_size=32 trainer.accumulate_grad_batches=6 (the same optimizer steps)",
        "  model.gradient_checkpointing=true (activations are computed twice)",
        "  a smaller model.hidden_sizes than [2000000000]",
    ]


def test_a_second_process_is_refused(
    stopped: tuple[Config, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("src.training.fit.LOCK_PATIENCE", 0)
    config, run = stopped
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import time; from pathlib import Path; from src.system.files import lock_or_fail\n"
            f"with lock_or_fail(Path({str(run.checkpoints / '.lock')!r})):\n"
            "    print('held', flush=True); time.sleep(60)",
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    before = {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=f"process {holder.pid} of .* is writing there"):
        fit(config, run.folder, resume=True)
    assert before == {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}
    holder.kill()
    holder.wait()
    holder.stdout.close()
    fit(config, run.folder, resume=True)  # no crash leaves it locked
    assert run.ended


# --- signals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
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
    assert positions(run) == (1, 4)
    assert signal.getsignal(number) == before
    fit(config, run.folder, resume=True)
    assert fingerprint(run) == expected(config, tmp_path)


def test_a_signal_when_the_result_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run has ended, and stays so; its command still says what to type."""
    write = Run.write_result

    def signalled(self: Run, result: dict[str, Any]) -> None:
        write(self, result)
        if result["status"] == "finished":
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Run, "write_result", signalled)
    with pytest.raises(Interrupted, match="stopped after 2 epochs, 24 steps; to go on"):
        fit(compose(*SMALL), tmp_path / "run")
    assert Run(tmp_path / "run").ended


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_command_and_a_signal(number: int, status: int, tmp_path: Path) -> None:
    process = started(tmp_path, *LONG, "hydra.run.dir=run")
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == status
    assert "python -m src.train resume=run" in errors
    assert "Traceback" not in errors
    assert Run(tmp_path / "run").result["status"] == "interrupted"


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


# --- from the command line ---------------------------------------------------------------------


def test_resume_from_the_command_line(command: Command, tmp_path: Path) -> None:
    done = command("src.train", *SMALL, "hydra.run.dir=run", "resume=auto")
    assert done.returncode == 0, done.stderr
    again = command("src.train", *SMALL, "hydra.run.dir=run", "resume=auto")
    assert again.returncode == 0
    assert "run: finished after 2 epochs" in again.stdout
    more = command("src.train", "resume=run", "trainer.max_epochs=4")
    assert more.returncode == 0, more.stderr
    assert "going on from epoch 2, batch 0" in more.stdout
    run = Run(tmp_path / "run")
    assert [row["epoch"] for row in run.history] == [0, 1, 2, 3, 4]
    assert fingerprint(run) == fingerprint(fit(run.config, tmp_path / "whole"))


def test_faults_of_resume_cost_no_torch(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train("model=logistic_regression")
    folder = run.folder

    def fault(*argv: str) -> str:
        with pytest.raises(InputError) as caught:
            check_command_line(argv)
        return str(caught.value)

    assert "trainer.max_epochs alone may grow\n  optimizer.lr: it was 0.5, now 0.1" in fault(
        f"resume={folder}", "optimizer.lr=0.1", "trainer.max_epochs=5"
    )
    assert "trainer.max_epochs: it was 2, now 1" in fault(
        f"resume={folder}", "trainer.max_epochs=1"
    )
    assert "its model is not mlp; leave out model=mlp" in fault(f"resume={folder}", "model=mlp")
    assert "leave out -m" in fault("-m", f"resume={folder}", "seed=1,2")
    assert "is not a run or sweep folder" in fault(f"resume={tmp_path}")
    assert "type hydra.run.dir=FOLDER too" in fault("resume=auto")
    assert "type hydra.sweep.dir=FOLDER too" in fault("-m", "resume=auto", "seed=1,2")
    assert f"type resume={folder} to resume it" in fault(f"hydra.run.dir={folder}")
    assert "optimizer.lr: it was 0.5, now 0.2" in fault(
        *SMALL, "model=logistic_regression", "optimizer.lr=0.2", "resume=auto",
        f"hydra.run.dir={folder}",
    )  # fmt: skip
    code = (
        "import sys; from src.sweeps.command_line import check_command_line\n"
        f"check_command_line(['resume={folder}', 'trainer.max_epochs=7'])\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.parametrize("launcher", ["basic", "fused"])
def test_a_sweep_is_resumed_by_its_folder(launcher: str, command: Command, tmp_path: Path) -> None:
    """Interrupted in its first stack or trial, gone on with by the command that it names."""
    common = ("data=digits", "trainer=cpu", "trainer.max_epochs=50")
    arguments = ("-m", *common, "optimizer.lr=0.05,0.1", f"hydra/launcher={launcher}")
    process = started(tmp_path, *arguments, "hydra.sweep.dir=sweep")
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors
    assert "python -m src.train resume=sweep" in errors
    statuses = [Run(tmp_path / "sweep" / trial).result.get("status") for trial in "01"]
    assert statuses == ["interrupted", "interrupted" if launcher == "fused" else None]
    refused = command("src.train", *arguments, "hydra.sweep.dir=sweep")
    assert refused.returncode == 2
    assert "type resume=sweep to resume it" in refused.stderr
    alone = command("src.train", "resume=sweep/0")
    assert alone.returncode == 2
    assert "type python -m src.train resume=sweep" in alone.stderr
    done = command("src.train", "resume=sweep")
    assert done.returncode == 0, done.stderr
    assert "going on from epoch" in done.stdout
    assert "best trial, to train it alone: python -m src.train" in done.stdout
    configs = [compose(*common, f"optimizer.lr={rate}") for rate in (0.05, 0.1)]
    folders = [tmp_path / "whole" / trial for trial in "01"]
    if launcher == "fused":
        fit_stack(configs, folders, tmp_path / "whole" / "stack")
    else:
        for config, folder in zip(configs, folders, strict=True):
            fit(config, folder)
    for folder in folders:
        assert fingerprint(Run(tmp_path / "sweep" / folder.name)) == fingerprint(Run(folder))


def test_digests_see_the_last_bit() -> None:
    weights = {"a": torch.zeros(3), "b": [1, 2.0, None]}
    changed = {"a": torch.tensor([0.0, 0.0, 1e-45]), "b": [1, 2.0, None]}
    assert digest(weights) == digest({"a": torch.zeros(3), "b": [1, 2.0, None]})
    assert len({digest(weights), digest(changed), digest(weights | {"b": [1, 2, None]})}) == 3


def test_weights_of_a_checkpoint_open_as_a_plain_model(train: Train) -> None:
    run = train()
    content = torch.load(run.last_checkpoint, weights_only=True)  # any reader of torch's files
    model = open_trained(run.last_checkpoint).model
    for name, value in model.state_dict().items():
        assert torch.equal(content["state_dict"][f"model.{name}"], value)
    assert json.dumps(content["kindling"])
    assert time.time() > run.last_checkpoint.stat().st_mtime


def test_an_error_of_the_restore_keeps_its_traceback(
    stopped: tuple[Config, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, run = stopped

    def fails(self: Classifier, checkpoint: dict[str, Any]) -> None:
        raise ZeroDivisionError("of the program")

    monkeypatch.setattr(Classifier, "on_load_checkpoint", fails)
    with pytest.raises(
        InputError, match=r"cannot be resumed \(ZeroDivisionError: of the program\)"
    ):
        fit(config, run.folder, resume=True)
    told = run.log_file.read_text()
    assert "Traceback (most recent call last)" in told
    assert 'raise ZeroDivisionError("of the program")' in told
