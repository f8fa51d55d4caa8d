"""The history of each trial: a row per epoch in history.csv, and a line in the log."""

import logging
import math
import statistics
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any

from lightning.pytorch import Trainer
from tqdm import tqdm

from kindling.config.measures import measure_of, sort_key
from kindling.config.schema import Config
from kindling.ranks import processes as ranks
from kindling.records.config_files import adopt
from kindling.records.folder import ALWAYS, MOST_LOGGED, OF_SCORE, WIDTH, Row, Run
from kindling.records.outcome import format_metric, known_value
from kindling.system.errors import InputError
from kindling.system.units import seconds
from kindling.training.callbacks import APPENDING, FILES_SHARE, RunsLast
from kindling.training.decisions import sort_keys
from kindling.training.module import StackModule

log = logging.getLogger(__name__)

SHOWN = 6  # values in a line that only a LightningModule logs


class History(RunsLast):
    """Appends a row to the history of each trial before training and after each epoch, until the
    epoch in which the trial diverged or stopped.

    The trials of a stack have a file each, which takes longer than a fast epoch. Their rows are
    written together at times: whenever a trial ends, at the end, and as often as takes FILES_SHARE
    of the time. A resumed run writes history.csv again from the rows in its checkpoint. After a
    kill, the file may have fewer or more rows than the checkpoint.

    The files of a run that has ended, and is to train on, change after its first step: an error
    before that loses nothing.
    """

    def __init__(self, runs: Sequence[Run], columns: Sequence[str]) -> None:
        self.runs, self.columns = runs, columns
        self.logged: list[str] = []  # more columns, which callbacks of the user have logged
        self.rows: list[list[Row]] = [[] for _ in runs]
        self.in_file = [0] * len(runs)  # rows of each trial
        # The last time, and the seconds that writing takes.
        self.written, self.cost = time.monotonic(), len(runs) * APPENDING
        self.training = len(runs)  # trials
        self.earlier_seconds = 0.0  # of training before a resume
        self.started: float | None = None
        self.held = any(run.ended for run in runs)  # until the first step

    @property
    def seconds(self) -> float:
        """Seconds of training, including the training before a resume."""
        return self.earlier_seconds + (time.perf_counter() - self.started if self.started else 0.0)

    @property
    def epochs(self) -> int:
        return max(int(rows[-1]["epoch"] or 0) if rows else 0 for rows in self.rows)

    def state_dict(self) -> dict[str, Any]:
        rows = [[list(row.values()) for row in trial] for trial in self.rows]
        return {"seconds": self.seconds, "rows": rows, "logged": [*self.logged]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.earlier_seconds = state_dict["seconds"]
        self.logged = [*state_dict.get("logged", [])]  # a checkpoint may be older than this field
        names = [*self.columns, *self.logged]
        self.rows = [
            [dict(zip(names, row, strict=True)) for row in trial] for trial in state_dict["rows"]
        ]
        self._write_anew()

    def begin(self, configs: Sequence[Config]) -> None:
        """Gives runs that had ended their new configurations, and history.csv."""
        if not self.held:
            return
        self.held = False
        for run, config in zip(self.runs, configs, strict=True):
            if ranks.is_rank_zero() and run.ended:
                adopt(run, config)
        self._write_anew()

    def on_sanity_check_end(self, trainer: Trainer, module: StackModule) -> None:
        self._note(trainer, module, epoch=0)

    def on_train_start(self, trainer: Trainer, module: StackModule) -> None:
        """Lets the learning rates follow the history."""
        for trial, schedule in enumerate(module.schedules):
            schedule.sort_keys = partial(sort_keys, self.rows[trial], module.configs[trial])
        self.started = time.perf_counter()
        if not self.rows[0]:  # nothing was validated before training
            self._note(trainer, module, epoch=0)

    def on_train_batch_end(self, trainer: Trainer, module: StackModule, *_: Any) -> None:
        self.begin(module.configs)

    def on_train_epoch_end(self, trainer: Trainer, module: StackModule) -> None:
        if module.batches_done:  # else a callback has stopped the epoch before its first step
            self._note(trainer, module, trainer.current_epoch + 1)

    def on_train_end(self, trainer: Trainer, module: StackModule) -> None:
        self._write()

    def on_exception(self, trainer: Trainer, module: StackModule, exception: BaseException) -> None:
        with suppress(OSError):  # perhaps a full disk is the exception
            self._write()

    def _note(self, trainer: Trainer, module: StackModule, epoch: int) -> None:
        rows, seconds = [], self.seconds
        logged = module.logged.take(trainer)
        self._add_columns(logged)
        for trial, metrics in module.metrics.items():
            rate = module.rate(trial) if epoch else None
            row: Row = {"epoch": epoch, "step": trainer.global_step, "seconds": seconds}
            row |= {"lr": rate, **metrics, **logged}
            rows.append({name: row.get(name) for name in [*self.columns, *self.logged]})
            diverged = module.status.diverged.get(trial, math.inf)
            if not self.rows[trial] or int(self.rows[trial][-1]["step"] or 0) < diverged:
                self.rows[trial].append(rows[-1])
        before, self.training = self.training, len(module.status.active_trials)
        waited = time.monotonic() - self.written
        if len(self.runs) == 1 or self.training < before or waited * FILES_SHARE >= self.cost:
            self._write()
        if trainer.is_global_zero:
            diverged = len(module.status.diverged)
            names = self.columns if len(self.columns) > len(ALWAYS) else [*rows[0]]
            shown = [{name: row[name] for name in names} for row in rows]
            text = _line(shown, trainer.max_epochs or 0, len(self.runs) > 1, diverged)
            with tqdm.external_write_mode():  # clears the progress bar while the line is written
                log.info("%s", text)

    def _add_columns(self, names: Iterable[str]) -> None:
        """Adds what callbacks have logged, if it is new. Raises InputError for too many."""
        new = [name for name in names if name not in self.logged]
        if len(self.columns) == len(ALWAYS):  # all are a LightningModule's, which may log hundreds
            if len(self.logged) < MOST_LOGGED < len(self.logged) + len(new):
                log.warning("the history has columns for %d of the logged names", MOST_LOGGED)
            new = new[: MOST_LOGGED - len(self.logged)]
        if not new:
            return
        self.logged += new
        if len(self.logged) > MOST_LOGGED:
            raise InputError(
                f"self.log: {len(self.logged)} names were logged, and the history takes "
                f"{MOST_LOGGED}; log under fewer names, or with logger=False"
            )
        for row in chain(*self.rows):
            row.update(dict.fromkeys(new))
        self._write_anew()

    def _write_anew(self) -> None:
        """Writes the whole files, which begin with the names of the columns."""
        if self.held:
            return
        for trial, rows in enumerate(self.rows):
            self.in_file[trial] = len(rows)
            if rows and ranks.is_rank_zero():
                self.runs[trial].write_history(rows)

    def _write(self) -> None:
        """Writes the rows that the files lack."""
        if self.held or not ranks.is_rank_zero():
            return
        began = time.monotonic()
        for trial, (rows, count) in enumerate(zip(self.rows, self.in_file, strict=True)):
            if count < len(rows):
                self.runs[trial].append_history(rows[count:])
                self.in_file[trial] = len(rows)
        self.written = time.monotonic()
        self.cost = self.written - began


def _line(rows: Sequence[Row], epochs: int, stacked: bool, diverged: int) -> str:
    """One line of the log about an epoch. `diverged` is the number of diverged trials."""
    row = rows[0]
    name = [*row][-1]  # the score of the validation, or the measure that is monitored
    names = tuple(row)[:WIDTH]
    score = names[-1].rpartition("/")[2] if names in OF_SCORE.values() else ""
    usual = names if score else ALWAYS
    width = len(str(epochs))
    parts = [f"epoch {row['epoch']:>{width}}/{epochs}"]
    if stacked:
        parts.append(f"{len(rows)} trials")
        known = [value for row in rows if (value := known_value(row[name])) is not None]
        if known:
            ends = min(known, key=lambda value: sort_key(name, value)), statistics.median(known)
            best, median = (format_metric(name, value) for value in ends)
            parts.append(f"{name.replace('/', ' ')} best {best} median {median}")
        if diverged:
            parts.append(f"{diverged} diverged")
    else:
        for split in ("train", "val"):
            loss, value = row.get(f"{split}/loss"), row.get(f"{split}/{score}")
            if loss is not None and value is not None:
                texts = format_metric("loss", loss), format_metric(score, value)
                parts.append(f"{split} loss {texts[0]} {score} {texts[1]:>7}")
        others = [key for key in row if key not in usual and row[key] is not None][:SHOWN]
        parts += [f"{measure_of(key) or key} {format_metric(key, row[key]):>7}" for key in others]
        if row["lr"] is not None:
            parts.append(f"lr {row['lr']:<8.4g}")
    if row["epoch"]:
        parts.append(f"{seconds(row['seconds'] or 0.0):>6} s")
    return "  ".join(parts)
