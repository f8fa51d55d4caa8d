"""logger=tensorboard: event files in the run folder."""

import time
from collections.abc import Mapping

from kindling.config import schema
from kindling.config.measures import CLASSIFICATION, score_of
from kindling.plots.pictures import confusion
from kindling.records.folder import Run, columns
from kindling.records.outcome import all_metrics
from kindling.training.loggers.base import Hyperparameters, RunLogger, Tested


class Logger(RunLogger):
    """Event files in <run>/tensorboard, written again from the history by a resumed run. Their
    times count only training, so the hours between a kill and a resume leave no gap."""

    SUFFIX = ".kindling"  # only event files with this suffix are deleted

    def __init__(
        self, config: schema.Logger, values: Hyperparameters, run: Run, seconds: float
    ) -> None:
        super().__init__(config, values, run, seconds)
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        folder = run.folder / "tensorboard"
        for old in folder.glob(f"events.out.tfevents.*{self.SUFFIX}"):
            old.unlink()
        self.writer = SummaryWriter(folder, filename_suffix=self.SUFFIX)
        # For the tab of hyperparameters, which shows a run from its start on.
        monitor = str(values["checkpoint.monitor"])
        task = str(values.get("task.name", CLASSIFICATION))
        every = (*columns(task, monitor), *all_metrics(monitor, score_of(task)))
        names = [name for name in every if "/" in name]
        experiment, start, self.end = hparams(values, dict.fromkeys(names, 0.0))  # type: ignore[no-untyped-call]
        self.add_summary = self.writer._get_file_writer().add_summary  # type: ignore[no-untyped-call]
        self.add_summary(experiment)
        self.add_summary(start)
        self.began = time.time() - seconds

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        clock = self.began + metrics["seconds"] if "seconds" in metrics else None
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step, walltime=clock)
        self.writer.flush()

    def log_test(self, tested: Tested) -> None:
        super().log_test(tested)
        # A run that diverged at once has no best weights to test.
        if tested.metrics and tested.confusion is not None:
            figure = confusion(tested.confusion, tested.labels)
            self.writer.add_figure("test/confusion", figure, tested.step)
        self.add_summary(self.end)

    def close(self, status: str) -> None:
        self.writer.close()
