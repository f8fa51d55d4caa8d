"""The history for TensorBoard, MLflow and W&B, beside history.csv.

None of them is registered with Lightning's Trainer, which would send every epoch as it comes: after
a kill, the epochs since the last checkpoint come twice. Here the history is what counts, and a
logger is brought to hold exactly its rows whenever training begins or goes on. All of it happens on
rank 0.
"""

import logging
import os
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self
from urllib.parse import quote

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer
from torchmetrics.classification import MulticlassConfusionMatrix

from src.config import schema
from src.config.schema import Config
from src.data.sources.source import Source
from src.plots.confusion import confusion
from src.runs.folder import HISTORY, Row, Run
from src.system.errors import InputError, Interrupted
from src.system.extras import LOGGERS, missing_loggers
from src.system.files import alone, require_regular
from src.training import ranks
from src.training.classifier import Classifier
from src.training.history import History

log = logging.getLogger(__name__)

TESTED = ("test/loss", "test/acc")
MLFLOW_STATUS = {"finished": "FINISHED", "interrupted": "KILLED"}  # of all others: FAILED


class Tested(NamedTuple):
    """confusion[i, j]: test samples of class i that were taken for class j."""

    metrics: dict[str, float]
    step: int
    confusion: np.ndarray
    labels: Sequence[str]


class _Logger(Protocol):
    """`rows`, at opening and later, are those of the history that it is to hold, each once."""

    def add(self, row: Row) -> None: ...

    def finish(self, tested: Tested) -> None: ...

    def close(self, status: str) -> None: ...


class Loggers(Callback):
    """Hands each row of the history to the loggers that the configuration chose.

    Opened before training begins, so that what is wrong is told by then: all ranks raise the
    InputError of rank 0, which alone has loggers. Closed at the end of its `with`. A logger that
    fails later is left out with a warning: it ends no run.
    """

    def __init__(self, config: Config, run: Run, history: History, source: Source) -> None:
        self.config, self.run, self.history, self.source = config, run, history, source
        self.loggers: dict[str, _Logger] = {}
        self.given, self.status = 0, "failed"
        self.seconds = 0.0  # that opening took

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit" or not self.config.logger.chosen:
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
            opener, package = OPENERS[name], LOGGERS[name][0]
            if package not in sys.modules:
                log.info("logger=%s: %s is imported, which may take half a minute", name, package)
            self.loggers[name] = opener(self.config.logger, values, self.run, self.history.seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        stopped = isinstance(error, Interrupted | KeyboardInterrupt | SystemExit)
        status = "interrupted" if stopped else self.status
        self._each("close", lambda logger: logger.close(status))

    def on_sanity_check_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._catch_up()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._catch_up()  # what was restored

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._catch_up()

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.counted = MulticlassConfusionMatrix(self.source.classes).to(pl_module.device)

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *_: Any
    ) -> None:
        assert isinstance(pl_module, Classifier)
        if self.config.logger.chosen:
            self.counted.update(pl_module.classes_of(batch.features), batch.labels)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.config.logger.chosen:
            self.confusion = self.counted.compute().cpu().numpy()  # over all ranks

    def _catch_up(self) -> None:
        rows = self.history.rows[0]
        for row in rows[self.given :]:
            self._each("write", lambda logger, row=row: logger.add(row))  # type: ignore[misc]
        self.given = len(rows)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Hands over what the test came to, before result.json says that all is done."""
        if not self.loggers:
            return
        self._catch_up()  # a run that went on from its end has no epoch left
        metrics = {name: result[name] for name in TESTED if result[name] is not None}
        tested = Tested(metrics, result["steps"], self.confusion, self.source.labels)
        self._each("finish", lambda logger: logger.finish(tested))
        self.status = result["status"]

    def _each(self, what: str, action: Callable[[_Logger], None]) -> None:
        for name, logger in list(self.loggers.items()):
            try:
                action(logger)
            except Exception as error:
                del self.loggers[name]
                reason = next(iter(str(error).splitlines()), type(error).__name__)
                log.warning(
                    "logger=%s cannot %s (%s); it is left out, history.csv holds all",
                    name, what, reason,
                )  # fmt: skip


Values = dict[str, bool | int | float | str]


def hyperparameters(config: Config) -> Values:
    """The keys of the experiment by their paths, lists as one types them; what is null is left
    out, and so is where things lie."""
    values = config.to_primitives()
    del values["logger"], values["resume"], values["data"]["root"]
    flat = {
        f"{section}.{key}": value
        for section, inner in values.items()
        for key, value in (inner.items() if isinstance(inner, dict) else [])
    }
    flat = {"seed": values["seed"]} | flat
    return {
        key: schema.written(value) if isinstance(value, list) else value
        for key, value in flat.items()
        if value is not None
    }


def _measured(row: Row) -> dict[str, float]:
    return {name: float(value) for name, value in row.items() if value is not None}


class _TensorBoard:
    """Event files in <run>/tensorboard, written anew from the history; their clock is the time of
    training, so that hours between a kill and what came after it leave no gap."""

    SUFFIX = ".kindling"  # what is deleted is ours

    def __init__(self, _config: schema.Logger, values: Values, run: Run, seconds: float) -> None:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        folder = run.folder / "tensorboard"
        for old in folder.glob(f"events.out.tfevents.*{self.SUFFIX}"):
            old.unlink()
        self.writer = SummaryWriter(folder, filename_suffix=self.SUFFIX)
        names = [name for name in (*HISTORY, *TESTED) if "/" in name]
        # For its tab of hyperparameters, which is to have a run from its start.
        experiment, start, self.end = hparams(values, dict.fromkeys(names, 0.0))  # type: ignore[no-untyped-call]
        self.add_summary = self.writer._get_file_writer().add_summary  # type: ignore[no-untyped-call]
        self.add_summary(experiment)
        self.add_summary(start)
        self.began = time.time() - seconds

    def add(self, row: Row) -> None:
        values = _measured(row)
        step, clock = int(values.pop("step")), self.began + values["seconds"]
        for name, value in values.items():
            self.writer.add_scalar(name, value, step, walltime=clock)
        self.writer.flush()

    def finish(self, tested: Tested) -> None:
        for name, value in tested.metrics.items():
            self.writer.add_scalar(name, value, tested.step)
        figure = confusion(tested.confusion, tested.labels)
        self.writer.add_figure("test/confusion", figure, tested.step)
        self.add_summary(self.end)

    def close(self, status: str) -> None:
        self.writer.close()


class _MLflow:
    """A run of MLflow in a SQLite file, found again by a tag when ours goes on. MLflow deletes no
    metric, and an epoch comes to the same values again: it is given the rows that it lacks."""

    TAG = "kindling.id"
    GROWS = "trainer.max_epochs"  # MLflow's parameters are fixed, its tags are not

    def __init__(self, config: schema.Logger, values: Values, run: Run, _seconds: float) -> None:
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # it asks a server whether to send any
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param, RunTag

        for chatter in ("mlflow", "alembic"):
            logging.getLogger(chatter).setLevel(logging.WARNING)
        self.metric = Metric
        shared = config.mlflow_file
        file = Path(shared) if shared else run.folder / "mlflow.db"
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            # Another process may make the tables, or the experiment, of the same database.
            with alone(file.with_name(f".{file.name}.lock")) if shared else nullcontext():
                _require_database(file)
                self.client = MlflowClient(f"sqlite:///{quote(str(file.absolute()))}")
                self.run_id, self.held = self._find(config.project, run)
        except Exception as error:  # of sqlite, SQLAlchemy, alembic, MLflow and the file system
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise InputError(
                f"logger.mlflow_file={file}: MLflow cannot use it ({reason}); name another file, "
                "or delete it if it holds nothing else: history.csv holds all"
            ) from None
        texts = {key: str(value) for key, value in values.items()}
        tags = [RunTag(self.GROWS, texts.pop(self.GROWS))]
        params = [Param(key, text) for key, text in texts.items()]
        self.client.log_batch(self.run_id, params=params, tags=tags)
        self.client.update_run(self.run_id, status="RUNNING")

    def _find(self, project: str, run: Run) -> tuple[str, set[tuple[str, int]]]:
        """The MLflow run that is this one's, begun if there is none; and each metric and step that
        it holds."""
        identity, client = run.identity(), self.client
        found = client.get_experiment_by_name(project)
        place = (run.folder.absolute() / "mlflow_artifacts").as_uri()
        experiment = found.experiment_id if found else client.create_experiment(project, place)
        known = client.search_runs([experiment], f"tags.`{self.TAG}` = '{identity}'")
        if not known:
            tags = {self.TAG: identity, "kindling.folder": str(run.folder.absolute())}
            created = client.create_run(experiment, run_name=_name(run), tags=tags)
            return created.info.run_id, set()
        run_id: str = known[0].info.run_id
        return run_id, {
            (name, metric.step)
            for name in (*HISTORY, *TESTED)
            for metric in client.get_metric_history(run_id, name)
        }

    def add(self, row: Row) -> None:
        values = _measured(row)
        self._log(values, int(values.pop("step")))

    def finish(self, tested: Tested) -> None:
        self._log(tested.metrics, tested.step)

    def _log(self, values: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        lacking = [
            self.metric(name, value, now, step)
            for name, value in values.items()
            if (name, step) not in self.held
        ]
        self.client.log_batch(self.run_id, metrics=lacking)  # all of them or none

    def close(self, status: str) -> None:
        self.client.set_terminated(self.run_id, MLFLOW_STATUS.get(status, "FAILED"))


class _Wandb:
    """An offline run of W&B in <run>/wandb, written anew from the history, under the same id: one
    that was sent before is replaced on the server by the next `wandb sync`."""

    def __init__(self, config: schema.Logger, values: Values, run: Run, _seconds: float) -> None:
        os.environ["WANDB_ERROR_REPORTING"] = "false"  # it reports home, offline too
        import wandb

        run.folder.mkdir(parents=True, exist_ok=True)
        identity = run.identity()
        for old in (run.folder / "wandb").glob(f"offline-run-*-{identity}"):
            gone = old.rename(old.with_name(f".{old.name}"))  # W&B's own process may write still
            shutil.rmtree(gone, ignore_errors=True)
        settings = wandb.Settings(
            silent=True,
            console="off",  # train.log has it
            reinit="create_new",  # a notebook's own run of W&B stays its own
            x_disable_meta=True,  # it would ask a cloud's metadata server
        )
        try:
            self.run = wandb.init(
                mode="offline",
                dir=run.folder,
                project=config.project,
                name=_name(run),
                id=identity,
                config=values,
                settings=settings,
            )
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise InputError(f"logger=wandb: W&B cannot begin a run ({reason})") from None

    def add(self, row: Row) -> None:
        self.run.log(_measured(row))

    def finish(self, tested: Tested) -> None:
        self.run.summary.update(tested.metrics)

    def close(self, status: str) -> None:
        self.run.finish(exit_code=0 if status == "finished" else 1)


OPENERS: dict[str, Callable[[schema.Logger, Values, Run, float], _Logger]] = {
    "tensorboard": _TensorBoard,
    "mlflow": _MLflow,
    "wandb": _Wandb,
}


def _name(run: Run) -> str:
    """<date>/<time>, or <time>/<number> of a trial."""
    return "/".join(run.folder.absolute().parts[-2:])


def _require_database(file: Path) -> None:
    """Raises what SQLite finds wrong with a file, or with the place for a new one, at once; MLflow
    would ask ten times, for minutes."""
    if file.exists():
        require_regular(file, file.stat())
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("BEGIN IMMEDIATE")
