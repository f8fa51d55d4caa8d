"""Runs of the extension's modules, in a process that has it installed. Prints what they came to.

python -m tests.helpers.lit.scenarios FOLDER NAME
"""

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint

from benchmarks.crashes import fingerprint
from kindling.config.compose import compose
from kindling.config.schema import Config
from kindling.data.module import DataModule
from kindling.data.sources.source import as_float
from kindling.models.summary import summarise
from kindling.records import checkpoint
from kindling.records.checkpoint import CheckpointPair
from kindling.records.folder import Run
from kindling.system.errors import InputError, Interrupted
from kindling.training.fit import fit
from kindling.training.progress import ProgressFile
from tests.helpers.kills import Killed
from tests.helpers.lit import odd
from tests.helpers.lit.build import template, template_data
from tests.helpers.lit.mnist_module import MNISTLitModule
from tests.helpers.lit.odd import Plain
from tests.helpers.lit.odd import build as odd_module

COMMON = ("trainer=cpu", "trainer.max_epochs=4")
ODD = ("model=odd", "data=digits", "checkpoint.monitor=val_loss", "checkpoint.mode=min")
TEMPLATE = ("model=template", "data=template")
TOKENS = (*ODD, "model.kind=words", "data=tokens")
REMEMBERS = (*ODD, "model.kind=remembers", "data=tokens", "callbacks=[counts]")


def configured(*overrides: str) -> Config:
    return compose(*COMMON, *overrides)


def state(run: Run) -> Any:
    """All that a resumed run shares with an undisturbed one, and the counters of Lightning."""
    return fingerprint(run), checkpoint.read(run.last_checkpoint)["loops"]


def weights(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = checkpoint.read(run.last_checkpoint)["state_dict"]
    return found


def killed(config: Config, folder: Path, epochs: int) -> Run:
    """A run whose process dies after the checkpoint of each of its epochs, and that is resumed each
    time."""
    write = CheckpointPair.write

    def dying(self: CheckpointPair, content: dict[str, Any]) -> None:
        write(self, content)
        raise Killed

    CheckpointPair.write = dying  # type: ignore[method-assign]
    try:
        for epoch in range(epochs):
            try:
                fit(config, folder, resume=epoch > 0)
                raise AssertionError(f"the run was not killed after epoch {epoch + 1}")
            except Killed:
                pass
    finally:
        CheckpointPair.write = write  # type: ignore[method-assign]
    return fit(config, folder, resume=True)


RESUMED = {
    # The best of val/acc_best is older than the last checkpoint: a MaxMetric must remember it.
    "template": (*TEMPLATE, "model.lr=1", "trainer.max_epochs=6"),
    "template_workers": (*TEMPLATE, "data.num_workers=1"),
    "template_on_ours": ("model=template", "data=digits"),
    "plain": (*ODD, "optimizer.momentum=0.9", "augmentation.shift=1"),
    "plateau": (*ODD, "scheduler=plateau", "scheduler.patience=0", "optimizer.lr=5"),
    "manual": (*ODD, "model.kind=manual"),
    "tokens": TOKENS,
    "remembers": REMEMBERS,
    "lazy": (*ODD, "model.kind=lazy", "model.lr=0.01"),
    "lazy_unvalidated": (*ODD, "model.kind=lazy_unvalidated", "model.lr=0.01"),
    "partial": (*ODD, "model.kind=partial", "optimizer.lr=0.3"),
    "swa": (*ODD, "callbacks=[swa]", "trainer.max_epochs=5"),
    "early": (*ODD, "callbacks=[early]", "trainer.max_epochs=9"),
}


def resumed(folder: Path) -> dict[str, Any]:
    """For each: whether a run killed after all of its checkpoints equals an undisturbed one. As if
    a batch took a second, each tells how far its run is."""
    ProgressFile.INTERVAL = 0.0
    found: dict[str, Any] = {}
    for name, overrides in RESUMED.items():
        config = configured("checkpoint.every_n_epochs=1", *overrides)
        whole = fit(config, folder / name / "whole")
        epochs = whole.result["epochs"]
        other = killed(config, folder / name / "killed", epochs)
        found[name] = {"same": state(other) == state(whole), "epochs": epochs}
    return found


class Interrupts(Callback):
    """A signal of the scheduler in the middle of the third epoch."""

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        if trainer.current_epoch == 2 and trainer.fit_loop.epoch_loop.batch_idx == 1:
            os.kill(os.getpid(), signal.SIGTERM)


def lazy(folder: Path) -> dict[str, Any]:
    """Layers whose sizes come with the first batch."""
    config = configured(*RESUMED["lazy"])
    run, told = fit(config, folder / "run"), ""
    try:
        fit(configured(*RESUMED["lazy"], "trainer.devices=2"), folder / "two")
    except InputError as error:
        told = str(error)
    best = odd.build(config.model, (1, 28, 28), 10)
    best.load_state_dict(checkpoint.read(run.best_checkpoint)["state_dict"])
    return {
        "parameters": run.result["parameters"], "summary": summarise(config).splitlines()[0],
        "loss": [run.result["test_loss"], test_loss(best)], "told": told,
    }  # fmt: skip


def interrupted(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("template", "manual"):
        config, own = configured(*RESUMED[name]), folder / name
        told = ""
        try:
            fit(config, own, callbacks=[Interrupts()])
        except Interrupted as error:
            told = str(error)
        before = Run(own).result
        same = fingerprint(fit(config, own, resume=True)) == fingerprint(
            fit(config, folder / f"{name}_whole")
        )
        found[name] = [before["status"], before["epochs"], told, same]
    more = fit(configured(*TEMPLATE, "trainer.max_epochs=2"), folder / "more")
    more = fit(configured(*TEMPLATE), more.folder, resume=True)
    found["more"] = fingerprint(more) == fingerprint(fit(configured(*TEMPLATE), folder / "four"))
    return found


def plain_lightning(folder: Path) -> dict[str, Any]:
    """The template's parts, trained by Lightning alone, and here; and ours by autograd."""
    config = configured(*TEMPLATE)
    run = fit(config, folder / "run")
    seed_everything(0, verbose=False)
    data, module = template_data(config.data), template(config.model, None, None)
    trainer = Trainer(
        max_epochs=4, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False,
    )  # fmt: skip
    trainer.fit(module, data)
    theirs = module.state_dict()
    best = MNISTLitModule.load_from_checkpoint(
        run.best_checkpoint, net=template(config.model, None, None).net, optimizer=None,
        scheduler=None, compile=False,
    )  # fmt: skip
    tested = Trainer(accelerator="cpu", logger=False, enable_progress_bar=False).test(
        best, data, verbose=False
    )
    plain = configured(*ODD, "optimizer.momentum=0.9", "scheduler=cosine")
    logistic = configured(
        "model=logistic_regression", "data=digits", "optimizer.momentum=0.9", "scheduler=cosine",
        "trainer.step=autograd",
    )  # fmt: skip
    runs = [fit(plain, folder / "plain"), fit(logistic, folder / "logistic")]
    ours, other = [[*weights(each).values()] for each in runs]
    return {
        "same": {name: value.equal(theirs[name]) for name, value in weights(run).items()},
        "history": [row["val/acc_best"] for row in run.history],
        "theirs": float(trainer.callback_metrics["val/acc_best"]),
        "tested": [tested[0]["test/acc"], run.result["test/acc"]],
        "difference": max(float((a - b).abs().max()) for a, b in zip(ours, other, strict=True)),
        "loss": [
            run.history[-1]["val_loss" if n == 0 else "val/loss"] for n, run in enumerate(runs)
        ],
        "lr": [[row["lr"] for row in run.history] for run in runs],
    }


def told(folder: Path) -> dict[str, Any]:
    """What each module that cannot train is told."""
    found: dict[str, Any] = {}
    for name in ("silent", "not_validated", "refused", "no_optimizer", "lambda", "text", "raises"):
        run = Run(folder / name)
        try:
            fit(configured(*ODD, f"model.kind={name}"), run.folder)
        except Exception as error:
            frames = traceback.extract_tb(getattr(error, "own_traceback", None))
            found[name] = [type(error).__name__, str(error), run.result["status"],
                           [frame.name for frame in frames]]  # fmt: skip
    try:
        fit(configured("model=wrong", "data=digits"), folder / "wrong")
    except InputError as error:
        found["wrong"] = str(error)
    x, y = np.zeros((40, 784), np.float32), np.arange(40) % 10
    np.savez(folder / "a.npz", x=x, y=y, w=np.ones(40))
    npz = ("data=npz", f"data.path={folder / 'a.npz'}", "data.kind=numbers")
    try:
        fit(configured("model=odd", *ODD[2:], *npz), folder / "weighted")
    except InputError as error:
        found["weighted"] = str(error)
    many = fit(configured(*ODD, "model.kind=many", "trainer.max_epochs=1"), folder / "many")
    found["many"] = [[*many.history[0]], many.log_file.read_text()]
    run = fit(configured(*ODD, "model.kind=hidden", "callbacks=[early]"), folder / "hidden")
    tested = [name for name in run.result if name.startswith("test")]
    found["hidden"] = [[*run.history[1]], tested, run.result["epochs"], run.log_file.read_text()]
    nan = fit(configured(*ODD, "model.kind=nan"), folder / "nan")
    found["nan"] = [nan.result["status"], nan.result["diverged_step"], nan.result["epochs"]]
    return found


def keys(folder: Path) -> dict[str, Any]:
    """What the keys of Lightning's Trainer come to."""
    found: dict[str, Any] = {}
    cases = {
        "all": (*TEMPLATE,),
        "fast_dev_run": (*TEMPLATE, "trainer.fast_dev_run=true"),
        "limited": (*TEMPLATE, "trainer.limit_train_batches=0.5", "trainer.limit_val_batches=1"),
        "limited_ours": (*ODD, "trainer.limit_train_batches=3"),
        "overfit": (*TEMPLATE, "trainer.overfit_batches=1", "trainer.max_epochs=30",
                    "data.batch_size=20"),
        "accumulated": (*TEMPLATE, "trainer.accumulate_grad_batches=2"),
        "early": (*ODD, "callbacks=[early]", "trainer.max_epochs=9"),
        "min_epochs": (*ODD, "callbacks=[early]", "trainer.max_epochs=9", "trainer.min_epochs=5"),
        "patience": (*ODD, "optimizer.lr=1e-12", "trainer.early_stopping_patience=1"),
    }  # fmt: skip
    for name, overrides in cases.items():
        run = fit(configured(*overrides), folder / name)
        last = run.history[-1]
        found[name] = {"epochs": run.result["epochs"], "steps": run.result["steps"],
                       "train": last.get("train/acc"),
                       "stopped": run.result["stopped"]}  # fmt: skip
    counter = Validations()
    fit(configured(*TEMPLATE, "trainer.val_check_interval=0.25"), folder / "v", callbacks=[counter])
    found["validations"] = counter.count
    # Validated after 8 of 12 batches: the best weights are of that time.
    run = fit(configured(*ODD, "trainer.val_check_interval=8"), folder / "between")
    best: Any = Plain.load_from_checkpoint(run.best_checkpoint)
    data = DataModule(configured(*ODD).data)
    data.setup()
    (split,) = data.validations
    with torch.no_grad():
        loss = best.loss((as_float(split.features), split.labels)).item()
    found["between"] = [loss, run.result["best"]["val_loss"]]
    clipped = ("trainer.gradient_clip_val=0.001", "trainer.max_epochs=1", "scheduler=none",
               "trainer.limit_train_batches=1", "optimizer.lr=1")  # fmt: skip
    for algorithm, precision in (("norm", "32"), ("value", "32"), ("norm", "bf16-mixed")):
        name = f"{algorithm} {precision}"
        keys = (f"trainer.gradient_clip_algorithm={algorithm}", f"trainer.precision={precision}")
        seed_everything(0, verbose=False)
        before = odd_module(configured(*ODD).model, (1, 28, 28), 10).layer.weight
        run = fit(configured(*ODD, *clipped, *keys), folder / name)
        change = (weights(run)["layer.weight"] - before).abs()
        found[name] = [float(change.norm()), float(change.max())]
    run = fit(
        configured(*ODD, "trainer.log_every_n_steps=5", "trainer.max_epochs=1"), folder / "log"
    )
    found["lines"] = [
        line.partition("] ")[2].partition(" |")[0]
        for line in run.log_file.read_text().splitlines() if "] step " in line
    ]  # fmt: skip
    try:
        fit(configured(*ODD, "model.kind=nan", "trainer.detect_anomaly=true"), folder / "anomaly")
    except Exception as error:
        found["anomaly"] = str(error)
    return found


class Validations(Callback):
    count = 0

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        self.count += not trainer.sanity_checking


def test_loss(module: Any) -> float:
    test = DataModule(configured(*ODD).data)
    test.setup()
    features, labels, _ = next(iter(test.test_dataloader()))
    with torch.no_grad():
        return float(module.loss((as_float(features), labels)))


def callbacks(folder: Path) -> dict[str, Any]:
    """Lightning's own callbacks."""
    run = fit(
        configured(*TEMPLATE, "callbacks=[checkpoint,rates]", "checkpoint.monitor=val/loss",
                   "checkpoint.mode=min"), folder / "run",
    )  # fmt: skip
    (file,) = run.checkpoints.glob("mine-*.ckpt")
    best = checkpoint.read(run.best_checkpoint)["state_dict"]
    theirs = checkpoint.read(file)["state_dict"]
    averaged = fit(configured(*RESUMED["swa"]), folder / "swa")
    plain = fit(configured(*ODD, "trainer.max_epochs=5"), folder / "plain")
    moving = fit(
        configured(*ODD), folder / "ema", callbacks=[EMAWeightAveraging(decay=0.9)]
    )  # fmt: skip
    losses = []
    for each in (averaged, moving):
        loaded = Plain(784, 10, 0.1)
        loaded.load_state_dict(checkpoint.read(each.best_checkpoint)["state_dict"])
        losses.append(test_loss(loaded))
    return {
        "file": file.name,
        "epoch": run.result["best"]["epoch"],
        "same": all(best[name].equal(theirs[name]) for name in best),
        "columns": [*run.history[-1]],
        "rates": [row["lr-Adam"] for row in run.history[1:]],
        "ema": [losses[1], moving.result["test_loss"]],
        "swa": [losses[0], averaged.result["test_loss"], plain.result["test_loss"]],
    }


def best(folder: Path) -> dict[str, Any]:
    """What the test finds with the best state, here and by Lightning alone, with one device and
    two, and with validations within epochs."""
    found: dict[str, Any] = {}
    for name, keys in {"whole": (), "within": ("trainer.val_check_interval=3",)}.items():
        config = configured(*REMEMBERS, *keys)
        odd.LOADED.clear()
        run = fit(config, folder / name)
        ours = {key: value for key, value in run.result.items() if key.startswith("test")}
        hooks = [*odd.LOADED]
        seed_everything(0, verbose=False)
        module: Any = odd.build(config.model, None, None)
        data = odd.tokens(config.data)
        kept = ModelCheckpoint(folder / f"{name}.theirs", monitor="val_loss", mode="min")
        trainer = Trainer(
            max_epochs=4, accelerator="cpu", logger=False, enable_progress_bar=False,
            val_check_interval=config.trainer.val_check_interval, num_sanity_val_steps=-1,
            callbacks=[odd.counts(config), kept],
        )  # fmt: skip
        trainer.fit(module, data)
        odd.LOADED.clear()
        (theirs,) = trainer.test(module, data, "best", verbose=False, weights_only=False)
        loaded = odd.Remembers.load_from_checkpoint(run.best_checkpoint)
        other = odd.Remembers.load_from_checkpoint(kept.best_model_path, weights_only=False)
        same = loaded.table.weight.equal(other.table.weight)
        seen = [str(loaded.seen), str(other.seen)]
        found[name] = [[ours, theirs], [hooks, odd.LOADED[:4]], seen, same]
    config = configured(*RESUMED["partial"])
    run = fit(config, folder / "partial")
    seed_everything(0, verbose=False)
    part = odd.build(config.model, (1, 28, 28), 10)
    state = checkpoint.read(run.best_checkpoint)["state_dict"]
    part.load_state_dict(state, strict=False)
    found["partial"] = [[*state], test_loss(part), run.result["test_loss"]]
    two = fit(configured(*REMEMBERS, "trainer.devices=2"), folder / "two").result
    found["two"] = [two["test/epoch"], two["test/sum"], two["test/counted"]]
    return found


class KillsARank(Callback):
    """Rank 1 dies once, in the middle of the third epoch; or a scheduler signals it."""

    def __init__(self, marker: Path, number: int) -> None:
        self.marker, self.number = marker, number

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        now = (trainer.global_rank, trainer.current_epoch, trainer.fit_loop.epoch_loop.batch_idx)
        if now == (1, 2, 1) and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), self.number)


ON_TWO = ("trainer.devices=2", "checkpoint.every_n_epochs=1")


def two_ranks(folder: Path) -> dict[str, Any]:
    """Killed and interrupted against whole; two ranks against one with twice the batch size."""
    killed, term = folder / "killed", folder / "term"
    config = configured(*ON_TWO, *RESUMED["template"], "trainer.max_restarts=1")
    whole = fit(config, folder / "template")
    kill = KillsARank(folder / "killed.once", signal.SIGKILL)
    same = {"killed": state(fit(config, killed, callbacks=[kill])) == state(whole)}
    assert kill.marker.exists()
    config = configured(*ON_TWO, *RESUMED["plain"])
    whole = fit(config, folder / "plain")
    try:
        fit(config, term, callbacks=[KillsARank(folder / "term.once", signal.SIGTERM)])
    except Interrupted:
        before = Run(term).result
    same["term"] = state(fit(config, term, resume=True)) == state(whole)
    found: dict[str, Any] = {"same": same, "interrupted": [before["status"], before["epochs"]]}
    for kind in ("plain", "manual"):
        words = [*ODD, f"model.kind={kind}", "optimizer.momentum=0.9", "data.drop_last=true"]
        two = fit(configured(*ON_TWO, *words, "data.batch_size=50"), folder / f"two-{kind}")
        one = fit(configured(*words, "data.batch_size=100"), folder / f"one-{kind}")
        found[kind] = [
            [each.result["ranks"], each.result["test_loss"], *(r["val_loss"] for r in each.history)]
            for each in (two, one)
        ]
    return found


SCENARIOS: dict[str, Callable[[Path], dict[str, Any]]] = {
    each.__name__: each
    for each in (
        resumed,
        lazy,
        interrupted,
        plain_lightning,
        told,
        keys,
        callbacks,
        best,
        two_ranks,
    )
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(SCENARIOS[sys.argv[2]](Path(sys.argv[1]))))
