"""logger=mlflow: a run in a SQLite file of MLflow."""

import logging
import os
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing, nullcontext
from pathlib import Path
from urllib.parse import quote

from kindling.config import schema
from kindling.records.folder import Run
from kindling.system.errors import InputError
from kindling.system.files import require_regular, wait_for_lock
from kindling.training.loggers.base import Hyperparameters, RunLogger

STATUS = {"finished": "FINISHED", "interrupted": "KILLED"}  # of all others: FAILED


class Logger(RunLogger):
    """A run of MLflow in a SQLite file. A resumed run finds its MLflow run by a tag. MLflow cannot
    delete metrics, so only the rows that it lacks are sent."""

    TAG = "kindling.id"
    GROWS = "trainer.max_epochs"  # saved as a tag, because MLflow's parameters cannot change

    def __init__(
        self, config: schema.Logger, values: Hyperparameters, run: Run, seconds: float
    ) -> None:
        super().__init__(config, values, run, seconds)
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # MLflow would ask a server about it
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param, RunTag

        for chatter in ("mlflow", "alembic"):
            logging.getLogger(chatter).setLevel(logging.WARNING)
        self.metric = Metric
        chosen = config.mlflow_file
        file = Path(chosen) if chosen else run.folder / "mlflow.db"
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            # Another process may create the tables or the experiment of the same file.
            with wait_for_lock(file.with_name(f".{file.name}.lock")) if chosen else nullcontext():
                _require_database(file)
                self.client = MlflowClient(f"sqlite:///{quote(str(file.absolute()))}")
                self.run_id, self.logged = self._find(config.project, run)
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
        """Finds or creates the MLflow run. Returns its id and each logged (metric, step)."""
        identity, client = run.identity(), self.client
        saved = client.get_experiment_by_name(project)
        artifacts = (run.folder.absolute() / "mlflow_artifacts").as_uri()
        experiment = saved.experiment_id if saved else client.create_experiment(project, artifacts)
        runs = client.search_runs([experiment], f"tags.`{self.TAG}` = '{identity}'")
        if not runs:
            tags = {self.TAG: identity, "kindling.folder": str(run.folder.absolute())}
            tags |= dict.fromkeys(self.labels.tags, "")
            created = client.create_run(experiment, run_name=self.run_name, tags=tags)
            return created.info.run_id, set()
        run_id: str = runs[0].info.run_id
        return run_id, {
            (name, metric.step)
            for name in runs[0].data.metrics
            for metric in client.get_metric_history(run_id, name)
        }

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        missing = [
            self.metric(name, value, now, step)
            for name, value in metrics.items()
            if (name, step) not in self.logged
        ]
        self.client.log_batch(self.run_id, metrics=missing)  # all of them or none

    def close(self, status: str) -> None:
        self.client.set_terminated(self.run_id, STATUS.get(status, "FAILED"))


def _require_database(file: Path) -> None:
    """Raises SQLite's error for the file at once. MLflow would try ten times, for minutes."""
    if file.exists():
        require_regular(file, file.stat())
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("BEGIN IMMEDIATE")
