"""Runs that are stopped and go on, against runs that were left alone: the same to the last bit."""

import errno
import logging
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.crashes import fingerprint
from kindling.config.compose import compose
from kindling.config.schema import Config
from kindling.records import checkpoint
from kindling.records.checkpoint import CheckpointPair
from kindling.records.folder import Run
from kindling.system.errors import InputError, Interrupted
from kindling.training import fit as fit_module
from kindling.training.fit import fit, fit_on, fit_stack
from kindling.training.module import StackModule
from kindling.training.resume import check_state
from tests.helpers.commands import ROOT, SMALL, Train
from tests.helpers.kills import Killed, die_after_writing, position, undisturbed

# Twelve batches an epoch, in blocks of two or, with three accumulated, of four: a block then ends
# between two steps. Checkpoints after half of each epoch and at its end.
FINE = (*SMALL, "trainer.max_epochs=3", "trainer.steps_per_call=2", "checkpoint.every_n_steps=6")
RECIPES: dict[str, tuple[str, ...]] = {
    "momentum": ("optimizer.momentum=0.9", "optimizer.lr=0.01", "optimizer.nesterov=true"),
    "adamw": ("optimizer=adamw", "optimizer.weight_decay=0.1"),
    "dropout": ("model.dropout=0.3",),
    "dropout, autograd": ("model.dropout=0.3", "trainer.step=autograd"),
    "noise": ("model.noise=0.3", "model.norm=batch"),
    "noise, closed form": ("model.noise=0.3", "trainer.step=closed_form"),
    "noise, autograd": ("model.noise=0.3", "model.norm=layer", "trainer.step=autograd"),
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
    "float64": ("trainer.precision=64", "model.norm=batch"),
    "float64, autograd": ("trainer.precision=64", "trainer.step=autograd", "optimizer=adamw"),
    "bf16": ("trainer.precision=bf16-mixed",),
    "rare classes": ("trainer.class_weights=balanced", "data.sampler=balanced"),
    "rare classes, closed form": (
        "trainer.class_weights=balanced",
        "data.sampler=balanced",
        "trainer.step=closed_form",
    ),
    "bf16, autograd": ("trainer.precision=bf16-mixed", "trainer.step=autograd"),
    "clipped": ("trainer.gradient_clip_val=0.1",),
    "stream": ("data.order=stream",),
    "a measure of the classes": ("checkpoint.monitor=val/f1", "trainer.ema_decay=0.9"),
    "probabilities": ("checkpoint.monitor=val/auroc", "model.dropout=0.5"),
    "vmap": (
        "trainer.step=vmap",
        "model.norm=batch",
        "model.dropout=0.3",
        "trainer.ema_decay=0.9",
        "trainer.accumulate_grad_batches=3",
        "trainer.steps_per_call=4",
        "checkpoint.every_n_steps=1",
    ),
    "workers": ("data.loader=workers", "model.dropout=0.3"),
    "gradient checkpointing": (
        "model.gradient_checkpointing=true",
        "model.dropout=0.3",
        "model.noise=0.1",
    ),
}


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
            seen.append(position(run))
    assert fingerprint(run) == fingerprint(whole)
    assert [at for at in seen if at[1] == 0] == [(1, 0), (2, 0), (3, 0)]
    assert {epoch for epoch, batch in seen if batch} == {0, 1, 2}


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("scheduler=none", ""),
        ("scheduler=multistep", ""),
        ("scheduler=cosine", "its learning rates"),
        ("scheduler=onecycle", "its learning rates"),
        ("augmentation.anneal=0.5", "the strengths of the augmentation"),
    ],
)
def test_a_schedule_that_is_stretched_says_so(
    key: str, told: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    common = (*SMALL, "scheduler=none", "augmentation=digits", key)
    fit(compose(*common), tmp_path / "run")
    with caplog.at_level(logging.INFO, "kindling"):
        run = fit(compose(*common, "trainer.max_epochs=3"), tmp_path / "run", resume=True)
    assert run.result["epochs"] == 3
    lines = [record.getMessage() for record in caplog.records]
    found = [line for line in lines if "are spread over trainer.max_epochs" in line]
    assert len(found) == bool(told)
    assert all(f"{key}: {told} are" in line and "of 3 epochs" in line for line in found)


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


@pytest.mark.slow
@pytest.mark.parametrize("step", ["auto", "closed_form"])
def test_a_stack_killed_at_every_checkpoint(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = ("model.dropout=0.3", "optimizer=adamw", "checkpoint.monitor=val/precision")
    configs = [
        compose(*FINE, *recipe, f"trainer.step={step}", f"optimizer.lr={rate}", f"seed={seed}")
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


OF_STACKS = ["memory", "own error", "Ctrl-C", "kill", "first step"]
OF_RUNS = ["data", "checkpoint", "version", *OF_STACKS]


@pytest.mark.parametrize(
    ("trials", "refusal"), [*((1, each) for each in OF_RUNS), *((2, each) for each in OF_STACKS)]
)
def test_what_refuses_more_epochs_before_the_first_step_changes_nothing(
    refusal: str, trials: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run that has ended. What refused it gone, it trains on as if nothing had been."""
    table = tmp_path / "t.csv"
    rows = [f"{n % 7},{n % 5},{'ab'[n % 2]}\n" for n in range(200)]
    table.write_text("".join(["x,y,kind\n", *rows]))
    common = ("data=csv", f"data.path={table}", "data.target=kind", "trainer=cpu")

    def trained(epochs: int, name: str) -> list[Run]:
        texts = [(*common, f"trainer.max_epochs={epochs}", f"seed={n}") for n in range(trials)]
        folders = [tmp_path / name / str(n) for n in range(trials)]
        state = tmp_path / name / f"stack{epochs}" if trials > 1 else None
        return fit_stack([compose(*each) for each in texts], folders, state)

    def files() -> dict[Path, bytes]:
        found = [each for run in runs for each in (run.folder / ".hydra").iterdir()]
        found += [each for run in runs for each in (run.result_file, run.history_file)]
        return {path: path.read_bytes() for path in found}

    def fails(*_: Any, **__: Any) -> None:
        if refusal == "Ctrl-C":
            signal.raise_signal(signal.SIGINT)
        raise {"kill": Killed, "memory": MemoryError}.get(refusal, ZeroDivisionError)

    runs = trained(2, "run")
    last = runs[0].last_checkpoint
    before, kept = files(), {path: path.read_bytes() for path in tmp_path.rglob("*.ckpt")}
    with monkeypatch.context() as patch:
        if refusal == "data":
            table.write_text(table.read_text().replace("6,1,b", "9,1,b", 1))
        elif refusal == "version":
            checkpoint.write({**checkpoint.read(last), "kindling": {"format": 99}}, last)
        elif refusal == "checkpoint":
            for path in (last, runs[0].previous_checkpoint):
                path.write_bytes(b"damaged")
        elif refusal == "first step":
            last.write_bytes(b"damaged")  # the one before has fewer epochs
            patch.setattr(StackModule, "training_step", fails)
        else:
            patch.setattr(fit_module, "build_any", fails)
        with pytest.raises((InputError, Interrupted, Killed, ZeroDivisionError)) as caught:
            trained(4, "run")
    assert files() == before
    if refusal == "data":
        told = f"{last}: the content of data.path={table} has changed since it was trained; "
        assert str(caught.value).startswith(told)
    elif refusal == "Ctrl-C":
        assert str(caught.value).endswith(f"resume={runs[0].folder} trainer.max_epochs=4")
    table.write_text("".join(["x,y,kind\n", *rows]))
    for path, content in kept.items():
        path.write_bytes(content)
    again, whole = trained(4, "run"), trained(4, "whole")
    assert [*map(fingerprint, again)] == [*map(fingerprint, whole)]
    assert {run.result["status"] for run in again} == {"finished"}
    assert [run.config.trainer.max_epochs for run in again] == [4] * trials


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
    with caplog.at_level(logging.INFO, "kindling"):
        fit(config, run.folder, resume=True)
    told = "\n".join(record.getMessage() for record in caplog.records)
    assert "going on from epoch 1, batch 0" in told
    named = f"{run.last_checkpoint}: is damaged or not a checkpoint of this project"
    assert (named in told) == (damage != "deleted")
    assert fingerprint(run) == undisturbed(config, tmp_path)


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
    assert fingerprint(run) == undisturbed(config, tmp_path)


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
    assert fingerprint(run) == undisturbed(config, tmp_path)


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
    assert fingerprint(run) == undisturbed(config, tmp_path)


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


@pytest.mark.slow
def test_a_second_process_is_refused(
    stopped: tuple[Config, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kindling.training.fit.LOCK_PATIENCE", 0)
    config, run = stopped
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import time; from pathlib import Path\n"
            "from kindling.system.files import lock_or_fail\n"
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


@pytest.mark.parametrize("late", ["require_contained", "lock_or_fail"])
def test_a_run_that_is_removed_meanwhile(
    late: str, stopped: tuple[Config, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not begin anew."""
    config, run = stopped
    real = getattr(fit_module, late)

    def after_removal(*given: Any, **named: Any) -> Any:
        shutil.rmtree(run.folder, ignore_errors=True)
        return real(*given, **named)

    monkeypatch.setattr(fit_module, late, after_removal)
    told = f"^{run.folder}: another command has removed it meanwhile$"
    with pytest.raises(InputError, match=told):
        fit(config, run.folder, resume=True)
    assert not run.folder.exists()
    with pytest.raises(InputError, match=told):  # removed before this looks
        fit_on(config, run.folder)
    assert not run.folder.exists()


def test_a_history_with_the_columns_of_another_monitor_is_refused(
    stopped: tuple[Config, Run],
) -> None:
    path = stopped[1].last_checkpoint
    content = checkpoint.read(path)
    metadata, history = [content["kindling"]], content["callbacks"]["History"]
    check_state(content, path, metadata, 1, 12)
    history["rows"] = [[[*row, 0.5] for row in rows] for rows in history["rows"]]
    with pytest.raises(InputError, match="cannot be resumed: another run wrote it"):
        check_state(content, path, metadata, 1, 12)


def test_the_state_of_a_lightning_module_is_refused(train: Train) -> None:
    run = train()
    content = checkpoint.read(run.last_checkpoint)
    checkpoint.write({**content, "step": "lightning"}, run.last_checkpoint)
    run.previous_checkpoint.unlink()
    with pytest.raises(InputError, match="cannot be resumed: another run wrote it"):
        fit(compose(*SMALL, "trainer.max_epochs=3"), run.folder, resume=True)


def test_an_error_of_the_restore_keeps_its_traceback(
    stopped: tuple[Config, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, run = stopped

    def fails(self: StackModule, checkpoint: dict[str, Any]) -> None:
        raise ZeroDivisionError("of the program")

    monkeypatch.setattr(StackModule, "on_load_checkpoint", fails)
    with pytest.raises(
        InputError, match=r"cannot be resumed \(ZeroDivisionError: of the program\)"
    ):
        fit(config, run.folder, resume=True)
    told = run.log_file.read_text()
    assert "Traceback (most recent call last)" in told
    assert 'raise ZeroDivisionError("of the program")' in told
