"""Sends each row of a run's history once to the chosen loggers, on rank 0.

Lightning's Trainer does not get the loggers, because after a kill it would send the epochs since
the last checkpoint twice.
"""

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torchmetrics.classification import MulticlassConfusionMatrix

from src.config.schema import Config
from src.data.sources.source import Source
from src.runs.folder import Row, Run
from src.system.errors import InputError, Interrupted, first_line
from src.system.extras import LOGGERS, missing_loggers
from src.training import ranks
from src.training.classifier import Classifier
from src.training.history import History
from src.training.loggers.base import RunLogger, Tested, hyperparameters

log = logging.getLogger(__name__)


class Loggers(Callback):
    """Sends each row of the history to the loggers of the configuration.

    Only rank 0 has loggers. They are opened before training begins; if one fails then, all ranks
    raise the InputError of rank 0. If a logger fails later, it is dropped with a warning, and the
    run continues.
    """

    def __init__(self, config: Config, run: Run, history: History, source: Source) -> None:
        self.config, self.run, self.history, self.source = config, run, history, source
        self.loggers: dict[str, RunLogger] = {}
        self.rows_sent, self.status = 0, "failed"
        self.seconds = 0.0  # the time that opening the loggers took

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
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
        absent = missing_loggers(chosen)
        if absent:
            raise InputError("\n  ".join(absent))
        values = hyperparameters(self.config) | {"data.used": self.source.name}
        for name in chosen:
            package = LOGGERS[name][0]
            if package not in sys.modules:
                log.info("logger=%s: %s is imported, which may take half a minute", name, package)
            self.loggers[name] = _logger_class(name)(
                self.config.logger, values, self.run, self.history.seconds
            )

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Closes the loggers at the end of the body."""
        try:
            yield
        except (Interrupted, KeyboardInterrupt, SystemExit):
            self.status = "interrupted"
            raise
        finally:
            self._each("close", lambda logger: logger.finalize(self.status))

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.matrix = MulticlassConfusionMatrix(self.source.classes).to(pl_module.device)

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *_: Any
    ) -> None:
        assert isinstance(pl_module, Classifier)
        if self.config.logger.chosen:
            self.matrix.update(pl_module.predict_classes(batch.features), batch.labels)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.config.logger.chosen:
            self.confusion = self.matrix.compute().cpu().numpy()  # over all ranks

    def _catch_up(self) -> None:
        """Sends the rows since the last call. The first call also sends the restored rows."""
        rows = self.history.rows[0]
        for row in rows[self.rows_sent :]:
            self._write(row)
        self.rows_sent = len(rows)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._catch_up()

    on_sanity_check_end = on_train_start = on_train_epoch_end

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
            if name.startswith("test/") and value is not None
        }
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


def _logger_class(name: str) -> type[RunLogger]:
    """The class of src/training/loggers/NAME.py."""
    module = import_module(f"src.training.loggers.{name}")
    (logger_class,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, RunLogger) and value is not RunLogger
    )
    return logger_class
