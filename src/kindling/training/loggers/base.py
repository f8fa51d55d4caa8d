"""Sends each row of a run's history once to the chosen loggers, on rank 0.

Lightning's Trainer does not get the loggers, because after a kill it would send the epochs since
the last checkpoint twice.
"""

import logging
import re
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer

from kindling.config import registry, schema
from kindling.config.schema import Config
from kindling.config.written import written
from kindling.data.sources.source import Source
from kindling.ranks import processes as ranks
from kindling.records.folder import Row, Run, is_sweep
from kindling.records.labels import read_labels
from kindling.system.errors import InputError, Interrupted, first_line
from kindling.system.extras import LOGGERS, missing_loggers
from kindling.training.callbacks import RunsLast
from kindling.training.history import History
from kindling.training.module import StackModule

log = logging.getLogger(__name__)

OF_NO_SECTION = ("seed", "start_from", "freeze", "callbacks")
Hyperparameters = dict[str, bool | int | float | str]


def hyperparameters(config: Config) -> Hyperparameters:
    """The keys of the experiment that are not null, by their paths, with lists as typed."""
    values = config.identity_values()
    del values["logger"]
    flat = {key: values.pop(key) for key in OF_NO_SECTION if key in values} | {
        f"{name}.{key}": value for name, section in values.items() for key, value in section.items()
    }
    return {
        key: written(value) if isinstance(value, list) else value
        for key, value in flat.items()
        if value is not None
    }


class Tested(NamedTuple):
    """The result of the test. confusion[i, j] counts the samples of class i predicted as j; None
    without classes."""

    metrics: dict[str, float]
    step: int
    confusion: np.ndarray | None
    labels: Sequence[str]


class RunLogger(ABC):
    """Holds each row of a run's history once, even after kills: a resumed run builds its loggers
    again and sends all rows again. Each module of this folder has a subclass, `Logger`, for the
    logger with the module's name; extensions bring others."""

    def __init__(
        self, config: schema.Logger, values: Hyperparameters, run: Run, seconds: float
    ) -> None:
        """Logs `values`. `seconds`: time trained before. May raise InputError."""
        above, own = run.folder.absolute().parts[-2:]  # DATE/TIME, or TIME/NUMBER
        self.labels = read_labels(run.folder)
        self.run_name = f"{above}/{own}"
        if name := self.labels.name:
            self.run_name = f"{name}/{own}" if is_sweep(run.folder.parent) else name

    @abstractmethod
    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Logs a row of the history, or the metrics of the test."""

    def log_test(self, tested: Tested) -> None:
        self.log_metrics(tested.metrics, tested.step)

    @abstractmethod
    def close(self, status: str) -> None:
        """`status` is that of the run: finished, diverged, interrupted or failed."""


def _brought(name: str, *arguments: Any) -> RunLogger:
    """The logger of an extension. Raises InputError if it cannot begin."""
    build = registry.resolve("logger", name)
    where = f"logger.own={name}: {registry.location('logger', name)}"
    try:
        logger = build(*arguments)
    except InputError:
        raise
    except Exception as error:  # of any code
        raise InputError(
            f"{where} cannot begin ({type(error).__name__}: {first_line(error)}); correct the "
            "code, or leave the logger out"
        ) from error
    if not isinstance(logger, RunLogger):
        raise InputError(
            f"{where} returns {type(logger).__name__}, must return a RunLogger, of {__name__}"
        )
    return logger


class Loggers(RunsLast):
    """Sends each row of the history to the loggers of the configuration.

    Only rank 0 has loggers. They are opened before training begins; if one fails then, all ranks
    raise the InputError of rank 0. If a logger fails later, it is dropped with a warning, and the
    run continues.
    """

    def __init__(self, config: Config, run: Run, history: History, source: Source | None) -> None:
        """`source`: that of Kindling's own models, whose classes a test compares."""
        self.config, self.run, self.history, self.source = config, run, history, source
        self.loggers: dict[str, RunLogger] = {}
        self.rows_sent, self.status = 0, "failed"
        self.seconds = 0.0  # the time that opening the loggers took

    def on_fit_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Opens the loggers. By now, Lightning has restored the history."""
        if not self.config.logger.chosen:
            return
        began, fault = time.perf_counter(), None
        try:
            if trainer.is_global_zero:
                self._open()
        except InputError as error:
            fault = str(error)
        for answer in ranks.gather({"fault": fault}):
            if answer["fault"] is not None:
                raise InputError(answer["fault"])
        self.seconds = time.perf_counter() - began

    def _open(self) -> None:
        chosen = self.config.logger.chosen
        if absent := missing_loggers(chosen):
            raise InputError("\n  ".join(absent))
        used = self.config.data.name if self.source is None else self.source.name
        values = hyperparameters(self.config) | {"data.used": used}
        for name in chosen:
            arguments = self.config.logger, values, self.run, self.history.seconds
            if name not in LOGGERS:
                self.loggers[name] = _brought(name, *arguments)
                continue
            package = LOGGERS[name][0]
            if package not in sys.modules:
                log.info("logger=%s: %s is imported, which may take half a minute", name, package)
            build: type[RunLogger] = import_module(f"kindling.training.loggers.{name}").Logger
            self.loggers[name] = build(*arguments)

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Closes the loggers at the end of the body."""
        try:
            yield
        except (Interrupted, KeyboardInterrupt, SystemExit):
            self.status = "interrupted"
            raise
        finally:
            self._each("close", lambda logger: logger.close(self.status))

    def on_test_start(self, trainer: Trainer, module: StackModule) -> None:
        self.counts: torch.Tensor | None = None

    def on_test_batch_end(
        self, trainer: Trainer, module: StackModule, outputs: Any, batch: Any, *_: Any
    ) -> None:
        if self.config.logger.chosen and self.source is not None:
            logits = module.learner.logits(batch.features)  # of the first trial
            counts = module.task.confusion(logits, batch.labels)
            if counts is not None:
                self.counts = counts.cpu() + (0 if self.counts is None else self.counts)

    def on_test_epoch_end(self, trainer: Trainer, module: StackModule) -> None:
        if self.config.logger.chosen and self.source is not None:
            everywhere = [each["counts"] for each in ranks.gather({"counts": self.counts})]
            known = [counts.numpy() for counts in everywhere if counts is not None]
            self.confusion = np.sum(known, axis=0) if known else None

    def on_train_epoch_end(self, trainer: Trainer, module: StackModule) -> None:
        self._catch_up()

    on_sanity_check_end = on_train_start = on_train_epoch_end  # type: ignore[assignment]

    def _catch_up(self) -> None:
        """Sends the rows since the last call. The first call also sends the restored rows."""
        rows = self.history.rows[0]
        for row in rows[self.rows_sent :]:
            self._write(row)
        self.rows_sent = len(rows)

    def _write(self, row: Row) -> None:
        metrics = {name: float(value) for name, value in row.items() if value is not None}
        step = int(metrics.pop("step"))
        self._each("write", lambda logger: logger.log_metrics(metrics, step))

    def finish(self, result: Mapping[str, Any]) -> None:
        """Sends the result of the test, before result.json is written."""
        if not self.loggers:
            return
        self._catch_up()  # a run that was resumed after its last epoch has not sent its rows yet
        metrics = {
            name: value
            for name, value in result.items()
            if re.match("test[/_]", name) and isinstance(value, float)
        }
        if self.source is None:
            self._each("finish", lambda logger: logger.log_metrics(metrics, result["steps"]))
        else:
            tested = Tested(metrics, result["steps"], self.confusion, self.source.labels)
            self._each("finish", lambda logger: logger.log_test(tested))
        self.status = result["status"]

    def _each(self, what: str, action: Callable[[RunLogger], None]) -> None:
        for name, logger in list(self.loggers.items()):
            try:
                action(logger)
            except Exception as error:
                del self.loggers[name]
                log.warning(
                    "logger=%s cannot %s (%s); it is left out, history.csv holds all",
                    name, what, first_line(error),
                )  # fmt: skip
