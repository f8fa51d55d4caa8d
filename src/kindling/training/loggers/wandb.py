"""logger=wandb: an offline run of W&B in the run folder."""

import os
import shutil
from collections.abc import Mapping

from kindling.config import schema
from kindling.records.folder import Run
from kindling.system.errors import InputError, first_line
from kindling.training.loggers.base import Hyperparameters, RunLogger, Tested


class Logger(RunLogger):
    """An offline run of W&B in <run>/wandb, written again from the history by a resumed run, under
    the same id. The next `wandb sync` therefore replaces the run on the server."""

    def __init__(
        self, config: schema.Logger, values: Hyperparameters, run: Run, seconds: float
    ) -> None:
        super().__init__(config, values, run, seconds)
        os.environ["WANDB_ERROR_REPORTING"] = "false"  # W&B would send reports, even offline
        import wandb

        run.folder.mkdir(parents=True, exist_ok=True)
        identity = run.identity()
        for old in (run.folder / "wandb").glob(f"offline-run-*-{identity}"):
            hidden = old.rename(old.with_name(f".{old.name}"))  # W&B's process may still write
            shutil.rmtree(hidden, ignore_errors=True)
        settings = wandb.Settings(
            silent=True,
            console="off",  # train.log has the output
            reinit="create_new",  # does not change a W&B run of the user's notebook
            x_disable_meta=True,  # W&B would ask the metadata servers of clouds
        )
        try:
            self.run = wandb.init(
                mode="offline", dir=run.folder, project=config.project, name=self.run_name,
                id=identity, config=values, settings=settings, tags=self.labels.tags,
            )  # fmt: skip
        except Exception as error:
            raise InputError(f"logger=wandb: W&B cannot begin ({first_line(error)})") from None

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        self.run.log({**metrics, "step": step})

    def log_test(self, tested: Tested) -> None:
        self.run.summary.update(tested.metrics)

    def close(self, status: str) -> None:
        self.run.finish(exit_code=0 if status == "finished" else 1)
