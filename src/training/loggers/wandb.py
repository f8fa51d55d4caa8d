"""logger=wandb: an offline run of W&B in the run folder."""

import os
import shutil
from collections.abc import Mapping

from src.config import schema
from src.runs.folder import Run
from src.system.errors import InputError, first_line
from src.training.loggers.base import RunLogger, Tested, Values


class RunWandb(RunLogger):
    """An offline run of W&B in <run>/wandb, written anew from the history, under the same id: one
    that was sent before is replaced on the server by the next `wandb sync`."""

    def __init__(self, config: schema.Logger, values: Values, run: Run, seconds: float) -> None:
        super().__init__(config, values, run, seconds)
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
                mode="offline", dir=run.folder, project=config.project, name=self.run_name,
                id=identity, config=values, settings=settings,
            )  # fmt: skip
        except Exception as error:
            raise InputError(f"logger=wandb: W&B cannot begin ({first_line(error)})") from None

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self.run.log({**metrics, "step": step})

    def log_test(self, tested: Tested) -> None:
        self.run.summary.update(tested.metrics)

    def finalize(self, status: str) -> None:
        self.run.finish(exit_code=0 if status == "finished" else 1)
