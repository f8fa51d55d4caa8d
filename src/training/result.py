"""The content of result.json, and a summary for people."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer
from tabulate import tabulate

from src.config.written import counted
from src.models import count_parameters
from src.runs.folder import Row, Run, columns
from src.runs.outcome import format_metric, in_words, main_metrics
from src.system import machine
from src.system.resources import versions
from src.system.units import seconds
from src.training.classifier import Classifier
from src.training.progress import Utilisation
from src.training.trial_status import EARLY_STOPPING, MAX_TIME

FEW_STEPS = 1000
FEW_SAMPLES = (
    "few steps, and the loss has hardly fallen; type experiment=few_samples, which takes many "
    "small steps by Adam"
)
NOTHING_LEARNT = "no more accurate than always answering the most frequent class"
ACCURATE = ("val/acc", "val/loss", "train/acc", "train/loss")
REMEDY = "python -m src.lr_find with the same settings shows which rates learn"


def facts(classifier: Classifier, trainer: Trainer, seconds: dict[str, float]) -> dict[str, Any]:
    """The entries of result.json that are equal in all trials. `seconds` is wall time by phase."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    data, device = classifier.data, trainer.strategy.root_device
    batch = data.config.batch * trainer.world_size * classifier.step_plan.accumulate
    meters = [callback for callback in callbacks if isinstance(callback, Utilisation)]
    return {
        "seconds": seconds,
        "stacked": len(classifier.configs),
        "step": classifier.step.kind,
        "step_reason": classifier.step.reason or None,
        "data": {
            "name": data.source.name,
            "instead_of": data.source.instead_of,
            "train": data.training_samples,
            "val": len(data.validations[0]),
            "test": len(data.source.test),
            "skipped": data.source.skipped,
        },
        "ranks": trainer.world_size,
        "effective_batch_size": batch,
        "hardware": machine.hardware(device) | {"threads": classifier.threads},
        **machine.peak_memory(device),
        "gpu_utilisation": meters[0].mean if meters else None,
        "versions": versions(),
        "commit": machine.commit(),
    }


def result(
    trial: int,
    history: Sequence[Row],
    classifier: Classifier,
    common: dict[str, Any],
    *,
    best_epoch: int | None,
    steps: int,
) -> dict[str, Any]:
    """The content of result.json. `history` has the rows of the trial, `common` is what `facts`
    returns. `best_epoch` is the epoch of the weights that were tested. The time in
    samples_per_second includes validation."""
    config, validation = classifier.configs[trial], classifier.validation_of(trial)
    rows = [row for row in history if row["epoch"]]
    status = classifier.status[trial]
    best = next((row for row in rows if row["epoch"] == best_epoch), None)
    # Batches of an epoch that max_time cut short.
    batches = classifier.batches_done % classifier.step_plan.batches_per_epoch
    epochs = len(rows) - bool(batches and status.stop_reason)
    samples = common["data"]["train"] * epochs + batches * config.data.batch * common["ranks"]
    return {
        "status": "finished" if status.diverged_step is None else "diverged",
        "diverged_step": status.diverged_step,
        "stopped": status.stop_reason,
        "monitor": config.checkpoint.monitor,
        "best": _values(best, config.checkpoint.monitor),
        "last": _values(rows[-1], config.checkpoint.monitor),
        **(classifier.metrics[trial] if best else {"test/loss": None, "test/acc": None}),
        "epochs": epochs,  # complete epochs
        "steps": status.diverged_step or (rows[-1]["step"] if status.stop_reason else steps),
        "samples_per_second": samples / float(rows[-1]["seconds"] or 1),
        "parameters": count_parameters(classifier.models[trial]),
        "config_hash": config.hash(),
        **common,
        "data": common["data"]
        | {"val": len(validation), "val_most_frequent_class": validation.most_frequent()},
    }


def _values(row: Row | None, monitor: str) -> Row:
    names = [name for name in columns(monitor) if name not in ("step", "seconds", "lr")]
    return {name: None if row is None else row[name] for name in names}


def shown(folder: Path) -> Path:
    """The path to type: relative if the folder lies below the current folder."""
    here = Path.cwd()
    return folder.relative_to(here) if folder.is_relative_to(here) else folder


def _learnt_little(run: Run) -> bool:
    """Whether a few steps of SGD have not halved the validation loss."""
    initial, *losses = (row["val/loss"] for row in run.history)
    lowest = min((loss for loss in losses if loss is not None), default=math.inf)
    few = run.config.optimizer.name == "sgd" and run.result["steps"] < FEW_STEPS
    begun_anew = run.config.start_from is None  # weights of another run have learnt already
    return few and begun_anew and initial is not None and not lowest < initial / 2


def _no_better_than_a_constant(run: Run) -> bool:
    """Classes that are balanced on purpose, or another measure, may cost accuracy."""
    accuracy = run.result["best"]["val/acc"]
    share = run.result["data"].get("val_most_frequent_class", 0.0)
    balanced = run.config.trainer.class_weights or run.config.data.sampler
    if accuracy is None or balanced or run.config.checkpoint.monitor not in ACCURATE:
        return False
    return share < 1 and not accuracy > share


def _measured(monitor: str, values: Mapping[str, Any], split: str) -> str:
    """The measure that is monitored, if any, and the accuracy, of the validation or the test."""
    names = dict.fromkeys([*main_metrics(monitor), "val/acc", "test/acc", monitor])
    shown = [name for name in names if name.startswith(split)]
    return ", ".join(f"{in_words(name)} {format_metric(name, values[name])}" for name in shown)


def summary(run: Run) -> str:
    """A finished run as a table for people."""
    result = run.result
    best, data, monitor = result["best"], result["data"], result["monitor"]
    used = (
        f"{data['name']}: {data['train']:,} train, {data['val']:,} validation, "
        f"{data['test']:,} test"
    )
    rows = [("data", used)]
    if data["instead_of"]:
        rows.append(("!", f"instead of {data['instead_of']}"))
    if data["skipped"]:
        rows.append(("!", f"{data['skipped']} broken pictures left out"))
    if result["status"] == "diverged":
        rows.append(("!", f"diverged at step {result['diverged_step']}; {REMEDY}"))
    elif _learnt_little(run):
        rows.append(("!", FEW_SAMPLES))
    elif _no_better_than_a_constant(run):
        share = format_metric("acc", data["val_most_frequent_class"])
        rows.append(("!", f"{NOTHING_LEARNT} ({share}); {REMEDY}"))
    if result["stopped"]:
        trainer = run.config.trainer
        why = {
            EARLY_STOPPING: f"{trainer.early_stopping_patience} epochs without a better {monitor}",
            MAX_TIME: f"trainer.max_time={trainer.max_time} is over",
        }
        rows.append(("stopped", f"early: {why[result['stopped']]}"))
    if best["epoch"] is not None:
        rows += [
            ("best validation", f"{_measured(monitor, best, 'val')}, epoch {best['epoch']}"),
            (
                "test",
                f"{_measured(monitor, result, 'test')}, "
                f"loss {format_metric('loss', result['test/loss'])}",
            ),
        ]
    step, reason = result["step"].replace("_", " "), result["step_reason"]
    if reason and run.config.trainer.step == "auto":
        step += f" ({reason})"
    trained = [counted(result["epochs"], "epoch"), counted(result["steps"], "step"), step]
    rows += [
        ("trained", ", ".join(trained)),
        ("time", ", ".join(f"{name} {seconds(s)} s" for name, s in result["seconds"].items())),
        ("speed", f"{result['samples_per_second']:,.0f} samples/s"),
        ("folder", str(shown(run.folder))),
    ]
    return tabulate(rows, tablefmt="plain")
