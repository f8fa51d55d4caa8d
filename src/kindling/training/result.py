"""What a run leaves: result.json, also of a run that failed or was interrupted, what to type, a
summary for people, and train.log."""

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer
from tabulate import tabulate

from kindling.config.measures import in_words, score_of
from kindling.config.schema import Config
from kindling.config.written import counted
from kindling.models import count_parameters
from kindling.ranks import processes as ranks
from kindling.records.folder import Result, Row, Run, columns, resume_command, why_no_best
from kindling.records.outcome import format_metric, largest_class, main_metrics
from kindling.steps.base import LIGHTNING
from kindling.system import machine
from kindling.system.colour import cleaned
from kindling.system.errors import InputError, Interrupted, storage_faults
from kindling.system.files import append_text
from kindling.system.installation import as_command
from kindling.system.resources import versions
from kindling.system.units import seconds
from kindling.training.callbacks import APPENDING, FILES_SHARE
from kindling.training.decisions import CALLBACK, EARLY_STOPPING, MAX_TIME
from kindling.training.lightning_module import LightningRun
from kindling.training.memory import advice_on_memory
from kindling.training.module import StackModule
from kindling.training.progress import Utilisation

FEW_STEPS = 1000
MOST_TOLD = 8  # values of a LightningModule
FEW_SAMPLES = (
    "few steps, and the loss has hardly fallen; type experiment=few_samples, which takes many "
    "small steps by Adam"
)
RISEN = "the validation loss was never as low as before training"
NO_BETTER = "no better than always answering the mean of the training samples"
NOTHING_LEARNT = "no more accurate than always answering the most frequent class"
UNEQUAL = 0.8  # the share of a class beside which others hardly count
UNEQUAL_CLASSES = "type trainer.class_weights=balanced, by which all classes count alike"
REMEDY = f"{as_command('lr_find')} with the same settings shows which rates learn"


def facts(
    module: StackModule | LightningRun, trainer: Trainer, seconds: Mapping[str, float]
) -> dict[str, Any]:
    """The entries of result.json that are equal in all trials. `seconds` is wall time by phase."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    device = trainer.strategy.root_device
    meters = [callback for callback in callbacks if isinstance(callback, Utilisation)]
    # Of a LightningDataModule, only its name is known.
    data: dict[str, Any] = {"data": {"name": module.configs[0].data.name}}
    if (opened := module.data) is not None:
        batch = opened.config.batch * trainer.world_size * module.step_plan.accumulate
        data = {
            "data": {
                "name": opened.source.name,
                "instead_of": opened.source.instead_of,
                "train": opened.training_samples,
                "val": len(opened.validations[0]),
                "test": len(opened.test),
                "skipped": opened.source.skipped,
                "test_most_frequent_class": opened.test.most_frequent,
                "test_in_training": opened.test_in_training,
            },
            "effective_batch_size": batch,
        }
    return {
        "seconds": seconds,
        "stacked": len(module.configs),
        "step": module.step.kind,
        "step_reason": module.step.reason or None,
        **({"resumes_from": "epoch"} if isinstance(module, LightningRun) else {}),
        **data,
        "ranks": trainer.world_size,
        "hardware": machine.hardware(device) | {"threads": module.threads},
        **machine.peak_memory(device),
        "gpu_utilisation": meters[0].mean if meters else None,
        "versions": versions(),
        "commit": machine.commit(),
    }


def result(
    trial: int,
    history: Sequence[Row],
    module: StackModule | LightningRun,
    common: dict[str, Any],
    *,
    best_epoch: int | None,
    steps: int,
) -> dict[str, Any]:
    """The content of result.json. `history` has the rows of the trial, `common` is what `facts`
    returns. `best_epoch` is the epoch of the weights that were tested. The time in
    samples_per_second includes validation."""
    config = module.configs[trial]
    rows = [row for row in history if row["epoch"]]
    diverged, stopped = module.status.diverged.get(trial), module.status.stopped.get(trial)
    best = next((row for row in rows if row["epoch"] == best_epoch), None)
    return {
        "status": "finished" if diverged is None else "diverged",
        "task": config.task.name,
        "diverged_step": diverged,
        "stopped": stopped,
        "monitor": config.checkpoint.monitor,
        "best": _values(best, rows[-1], module),
        "last": _values(rows[-1], rows[-1], module),
        **_tested(module, trial, known=best is not None),
        **reached(rows, module, trial, steps),
        "parameters": count_parameters(module.models[trial]),
        "config_hash": config.hash(),
        **common,
        **_of_validation(trial, rows, module, common),
    }


def _tested(module: StackModule | LightningRun, trial: int, *, known: bool) -> dict[str, Any]:
    if isinstance(module, LightningRun):
        return dict(module.tested)
    score = score_of(module.configs[trial].task.name)
    return module.metrics[trial] if known else {"test/loss": None, f"test/{score}": None}


def _of_validation(
    trial: int,
    rows: Sequence[Row],
    module: StackModule | LightningRun,
    common: Mapping[str, Any],
) -> dict[str, Any]:
    """What depends on the samples that a trial has trained on, and is validated on."""
    data, config = module.data, module.configs[trial]
    if data is None:
        return {}
    validation = data.validations[data.validation_number(config.data.fold)]
    # Batches of an epoch that max_time or a callback cut short.
    batches = module.batches_done % module.step_plan.batches_per_epoch
    whole = len(rows) - bool(batches and trial in module.status.stopped)
    of_batch = config.data.batch * common["ranks"]
    of_epoch = common["data"]["train"]
    if config.trainer.limit_train_batches is not None:
        of_epoch = min(of_epoch, module.step_plan.batches_per_epoch * of_batch)
    samples = of_epoch * whole + batches * of_batch
    return {
        "samples_per_second": samples / float(rows[-1]["seconds"] or 1),
        "data": common["data"]
        | {"val": len(validation), "val_most_frequent_class": validation.most_frequent},
    }


def reached(
    history: Sequence[Row], module: StackModule | LightningRun, trial: int, steps: int
) -> dict[str, Any]:
    """How far a trial has come. `steps` are those of the whole stack; a trial that has ended
    before has fewer."""
    rows = [row for row in history if row["epoch"]]
    if rows and trial in module.status.stopped:
        steps = int(rows[-1]["step"] or 0)
    # The last of the epochs may have been cut short.
    return {"epochs": len(rows), "steps": module.status.diverged.get(trial, steps)}


def _values(row: Row | None, last: Row, module: StackModule | LightningRun) -> Row:
    """What was measured in an epoch; of a LightningModule, all that it has logged."""
    config = module.configs[0]
    known = columns(config.task.name, config.checkpoint.monitor)
    names = [*last] if isinstance(module, LightningRun) else known
    names = [name for name in names if name not in ("step", "seconds", "lr")]
    return {name: None if row is None else row[name] for name in names}


def mark_failed(runs: Sequence[Run], error: Exception) -> None:
    """Writes the results of runs that have not ended."""
    for run in runs:
        if not run.ended:
            text = f"{type(error).__name__}: {error}"
            _replace_result(run, {"status": "failed", "error": text})


def mark_interrupted(
    runs: Sequence[Run], signal_number: int, progress: Sequence[dict[str, int]] = ()
) -> None:
    """Writes the results of interrupted runs. Without `progress`, which only a process that trains
    knows, the results that rank 0 has already written are kept."""
    for run, so_far in zip_longest(runs, progress):
        if run.ended or (not progress and run.result.get("status") == "interrupted"):
            continue
        content = {
            "status": "interrupted",
            "signal": Interrupted(signal_number).name,
            "resume": resume_command(shown(run.resume_folder)),
            **(so_far or {"epochs": 0, "steps": 0}),
        }
        _replace_result(run, content)


def _replace_result(run: Run, content: dict[str, Any]) -> None:
    """Writes the result of an unsuccessful run; `before` keeps an earlier finished result."""
    with suppress(OSError):  # a full disk must not hide the error itself
        earlier = run.result
        kept = {"before": earlier} if earlier.get("status") == "finished" else {}
        run.write_result(content | kept)


def shown(folder: Path) -> Path:
    """The path to type: relative if the folder lies below the current folder."""
    here = Path.cwd()
    return folder.relative_to(here) if folder.is_relative_to(here) else folder


def command_to_go_on(run: Run, config: Config) -> str:
    """What to type; with the number of epochs, if an ended run has not begun to train on."""
    epochs = config.trainer.max_epochs
    if run.ended and not run.ended_as(config):
        return f"{resume_command(shown(run.folder))} trainer.max_epochs={epochs}"
    return resume_command(shown(run.resume_folder))


@contextmanager
def advice_on_failure(run: Run, config: Config) -> Iterator[None]:
    """Turns a full disk into an error that says what to type, and exhausted memory as `memory`."""
    advice = (
        "the last checkpoint is intact. When files can be written again, type\n  "
        f"{command_to_go_on(run, config)}"
    )
    with advice_on_memory(config), storage_faults(run.folder, f"; {advice}"):
        yield


def summary(run: Run) -> str:
    """A table of the result of a finished run, with what is doubtful about it."""
    result = run.result
    best, data = result["best"], result["data"]
    used = data["name"]
    if "train" in data:
        used += f": {data['train']:,} train, {data['val']:,} validation, {data['test']:,} test"
    rows = [("data", used)]
    if data.get("instead_of"):
        rows.append(("!", f"instead of {data['instead_of']}"))
    if data.get("skipped"):
        rows.append(("!", f"{counted(data['skipped'], 'broken picture')} left out"))
    if result["status"] == "diverged":
        own = result["step"] == LIGHTNING
        remedy = "type trainer.gradient_clip_val=1, or choose a lower rate" if own else REMEDY
        rows.append(("!", f"diverged at step {result['diverged_step']}; {remedy}"))
    elif (told := why_no_best(result)) or result["step"] == LIGHTNING:
        rows += [("!", told)] if told else []  # how a LightningModule learns is the user's own
    elif _risen(run):
        rows.append(("!", f"{RISEN}; {REMEDY}"))
    elif _learnt_little(run):
        rows.append(("!", FEW_SAMPLES))
    elif _no_better_than_a_constant(run):
        share = data["val_most_frequent_class"]
        told = "" if share is None else f"{NOTHING_LEARNT} ({format_metric('acc', share)})"
        remedy = UNEQUAL_CLASSES if (share or 0) > UNEQUAL else REMEDY
        rows.append(("!", f"{told or NO_BETTER}; {remedy}"))
    if result["stopped"]:
        trainer = run.config.trainer
        why = {
            EARLY_STOPPING: f"{trainer.early_stopping_patience} epochs without a better "
            f"{result['monitor']}",
            MAX_TIME: f"trainer.max_time={trainer.max_time} is over",
            CALLBACK: "a callback has set trainer.should_stop",
        }
        rows.append(("stopped", f"early: {why[result['stopped']]}"))
    if best["epoch"] is not None and result["step"] == LIGHTNING:
        logged = {name: value for name, value in best.items() if name != "epoch"}
        rows.append((f"epoch {best['epoch']}", _in_words(logged)))
        tested_values = {n: v for n, v in result.items() if n.startswith("test")}
        rows.append(("test", _in_words(tested_values) or "none"))
    elif best["epoch"] is not None:
        validated, tested = _measured(result, best, "val"), _measured(result, result, "test")
        rows.append(("best validation", f"{validated}, epoch {best['epoch']}"))
        rows.append(("test", f"{tested}, loss {format_metric('loss', result['test/loss'])}"))
    step, reason = result["step"].replace("_", " "), result["step_reason"]
    if reason and run.config.trainer.step == "auto":
        step += f" ({reason})"
    speed = result.get("samples_per_second")
    trained = [counted(result["epochs"], "epoch"), counted(result["steps"], "step"), step]
    rows += [
        ("trained", ", ".join(trained)),
        ("time", ", ".join(f"{name} {seconds(s)} s" for name, s in result["seconds"].items())),
        *([("speed", f"{speed:,.0f} samples/s")] if speed is not None else []),
        ("folder", str(shown(run.folder))),
    ]
    return tabulate(rows, tablefmt="plain")


def _in_words(values: Mapping[str, Any]) -> str:
    known = [f"{name} {format_metric(name, value)}" for name, value in values.items()]
    return ", ".join(known[:MOST_TOLD]) + (", …" if known[MOST_TOLD:] else "")


def _losses(run: Run) -> tuple[float, float]:
    """The validation loss before training, and the lowest after it; NaN where they are unknown."""
    initial, *losses = (row["val/loss"] for row in run.history)
    lowest = min((loss for loss in losses if loss is not None), default=math.nan)
    return math.nan if initial is None else initial, lowest


def _risen(run: Run) -> bool:
    """Whether the validation loss was always higher than before training, by 1% or more."""
    initial, lowest = _losses(run)
    return lowest > initial + abs(initial) / 100


def _learnt_little(run: Run) -> bool:
    """Whether a few steps of SGD have not halved the validation loss."""
    initial, lowest = _losses(run)
    few = run.config.optimizer.name == "sgd" and run.result["steps"] < FEW_STEPS
    begun_anew = run.config.start_from is None  # weights of another run have learnt already
    return few and begun_anew and lowest >= initial / 2


def _no_better_than_a_constant(run: Run) -> bool:
    """Classes that are balanced on purpose, or another measure, may cost accuracy."""
    score = score_of(run.result.get("task"))
    value: Any = run.result["best"].get(f"val/{score}")
    # Of numbers, the mean has an R² of 0.
    share = run.result["data"].get("val_most_frequent_class") or 0.0
    balanced = run.config.trainer.class_weights or run.config.data.sampler
    known = (f"val/{score}", "val/loss", f"train/{score}", "train/loss")
    if value is None or balanced or run.config.checkpoint.monitor not in known:
        return False
    return share < 1 and not value > share


def _measured(result: Result, values: Mapping[str, Any], split: str) -> str:
    """The measure that is monitored, if any, and the score, of the validation or the test; accuracy
    with the share of the largest class."""
    monitor, data = result["monitor"], dict[str, Any](result["data"])
    score = score_of(result.get("task"))
    names, last = dict.fromkeys([*main_metrics(monitor, score), monitor]), f"{split}/{score}"
    shown = [name for name in names if name.startswith(split) and name != last] + [last]
    texts = [f"{in_words(name)} {format_metric(name, values[name])}" for name in shown]
    share = largest_class(data.get(f"{split}_most_frequent_class"))
    return ", ".join(texts) + (f" ({share})" if share else "")


class _LogFiles(logging.Handler):
    """Appends to the train.log of every trial: a single run's lines at once, those of a stack as
    often as takes FILES_SHARE of the time. Each file is opened only to write, because a stack may
    have more trials than a process may have open files."""

    def __init__(self, runs: Sequence[Run]) -> None:
        super().__init__(logging.INFO)
        self.runs = runs
        self.lines = ""  # that the files lack
        self.written, self.cost = time.monotonic(), len(runs) * APPENDING
        self.setFormatter(logging.Formatter("[%(asctime)s][%(levelname)s] %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.lines += f"{cleaned(self.format(record))}\n"
        due = (time.monotonic() - self.written) * FILES_SHARE >= self.cost
        if len(self.runs) == 1 or due or record.levelno > logging.INFO:
            self.flush()

    def flush(self) -> None:
        began = time.monotonic()
        for run in self.runs if self.lines else ():
            with suppress(OSError, InputError):
                append_text(run.log_file, self.lines)
        self.lines, self.written = "", time.monotonic()
        self.cost = self.written - began


@contextmanager
def logging_to(runs: Sequence[Run]) -> Iterator[None]:
    """On rank 0, also writes the log of the project to train.log. The caller's handlers remain."""
    if not ranks.is_rank_zero():
        yield
        return
    logger = logging.getLogger("kindling")
    level, files = logger.level, _LogFiles(runs)
    logger.setLevel(logging.INFO)
    logger.addHandler(files)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(files)
        files.flush()
