"""The callback that decides when a run writes its state, and that writes the files of trials."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins.io import CheckpointIO
from torch import Tensor

from src.config.schema import sort_key
from src.runs import checkpoint
from src.runs.checkpoint import CheckpointPair
from src.runs.folder import Run
from src.system.errors import Interrupted
from src.system.signals import Signals
from src.training import ranks
from src.training.classifier import Classifier
from src.training.lanes import threads_for
from src.training.trial_status import EARLY


class SlotIO(CheckpointIO):
    """Writes Lightning's checkpoints into a slot: synced, with a checksum, and the slot keeps the
    previous checkpoint. Lightning loads `content`, which was checked."""

    def __init__(self, slot: CheckpointPair, content: dict[str, Any] | None) -> None:
        self.slot, self.content = slot, content

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """If `storage_options` is a dictionary, it receives the content, and no file is written."""
        if storage_options is None:
            self.slot.write(checkpoint)
        else:
            storage_options.update(checkpoint)

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        content, self.content = self.content, None  # frees the memory after the restore
        assert content is not None
        return content

    def remove_checkpoint(self, path: Any) -> None:
        Path(path).unlink(missing_ok=True)


class Best(TypedDict):
    """The best weights of a trial, with the parameter names that the model has in a single run."""

    value: float
    epoch: int  # from 1
    step: int
    weights: dict[str, Tensor]


class Checkpoints(Callback):
    """Writes the state when the configuration says so, and before a signal ends the run.

    The best weights of every trial stay in memory and in the state. A single run writes best.ckpt
    before its state. The trials of a stack share one slot; when a trial ends, it gets the files of
    a single run. No state is written after the last block of an epoch: Lightning would resume
    without the validation of that epoch.
    """

    def __init__(self, runs: Sequence[Run], slot: CheckpointPair, signals: Signals) -> None:
        self.runs, self.slot, self.signals = runs, slot, signals
        self.shared = slot.folder != runs[0].checkpoints
        self.best: list[Best | None] = [None] * len(runs)
        self.written_best: int | None = None  # the epoch of a single run's best.ckpt
        self.steps = 0  # optimizer steps at the last checkpoint or block

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best = state_dict["best"]

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.signals.wait_for_block()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.signals.wait_for_block()
        self.written, self.steps = time.monotonic(), trainer.global_step

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        assert isinstance(pl_module, Classifier)
        if pl_module.batch == pl_module.step_plan.batches_per_epoch:
            return
        due, signal = self._due(trainer, pl_module)
        if due or signal:
            self._write(trainer, pl_module)
        if signal:
            raise Interrupted(signal)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Classifier)
        due, signal = self._due(trainer, pl_module)
        epoch, settings = trainer.current_epoch + 1, pl_module.configs[0].checkpoint
        self._note_best(trainer, pl_module, epoch)
        due |= epoch % settings.every_n_epochs == 0
        if epoch == trainer.max_epochs or trainer.should_stop:
            due = True  # a finished run can be trained on, too
        elif self.shared and any(pl_module.status[t].stopped for t in pl_module.stacked):
            self._drop_finished(trainer, pl_module)
            due = True
        if due or signal:
            self._write(trainer, pl_module)
        if signal:
            raise Interrupted(signal)

    def _due(self, trainer: Trainer, classifier: Classifier) -> tuple[bool, int]:
        """Whether steps or time make a checkpoint due, and the signal or 0; equal on all ranks."""
        settings = classifier.configs[0].checkpoint
        steps, before = trainer.global_step, self.steps
        self.steps = steps
        every = settings.every_n_steps
        due = every is not None and steps // every > before // every
        waited = time.monotonic() - self.written
        late = int(settings.every_seconds is not None and waited >= settings.every_seconds)
        signal = self.signals.received or 0
        if trainer.world_size > 1:
            late, signal = ranks.all_max([late, signal], trainer.strategy.root_device)
        return due or bool(late), signal

    def _note_best(self, trainer: Trainer, classifier: Classifier, epoch: int) -> None:
        monitor = classifier.configs[0].checkpoint.monitor
        for trial, metrics in classifier.metrics.items():
            best, value = self.best[trial], metrics[monitor]
            before = sort_key(monitor, best["value"] if best else None)
            diverged = classifier.status[trial].diverged is not None
            if diverged or sort_key(monitor, value) >= before:
                continue
            with classifier.averaged():
                weights = classifier.trial_weights(trial)
            self.best[trial] = Best(
                value=value, epoch=epoch, step=trainer.global_step, weights=weights
            )

    def best_epoch(self, trial: int) -> int | None:
        """The epoch, from 1, whose weights are kept. None if all monitored values are NaN."""
        best = self.best[trial]
        return best["epoch"] if best is not None else None

    def _write(self, trainer: Trainer, classifier: Classifier) -> None:
        if not self.shared and trainer.is_global_zero and self.best_epoch(0) != self.written_best:
            self._write_best(classifier, 0)
            self.written_best = self.best_epoch(0)
        if not self.shared and (classifier.status.diverged or classifier.diverges()):
            return  # the last good state stays
        trainer.save_checkpoint(self.slot.last)
        self.written = time.monotonic()

    def restore_best(self, classifier: Classifier) -> None:
        """Puts the best weights of every trial that has any into its model."""
        for trial, best in enumerate(self.best):
            if best is not None:
                classifier.load_trial_weights(trial, best["weights"])

    def finish(self, classifier: Classifier) -> None:
        """Writes the files of the trials that are still stacked, from the last weights."""
        if self.shared:
            self._write_trial_files(classifier, classifier.stacked, checkpoint.read(self.slot.last))

    def _drop_finished(self, trainer: Trainer, classifier: Classifier) -> None:
        """Writes the files of the trials that have ended, and trains the others without them.

        The state must not be written to disk here, because a resumed run would then train the
        removed trials again. So the state is built in memory.
        """
        ended = [trial for trial in classifier.stacked if not classifier.status[trial].trains]
        captured: dict[str, Any] = {}
        trainer.save_checkpoint(self.slot.last, storage_options=captured)
        if trainer.is_global_zero:
            self._write_trial_files(classifier, ended, captured)
        classifier.drop_finished()

    def _write_trial_files(
        self, classifier: Classifier, trials: Sequence[int], content: dict[str, Any]
    ) -> None:
        history = content["callbacks"]["History"]
        for trial in trials:
            status = classifier.status[trial]
            if self.best[trial] is not None:
                self._write_best(classifier, trial)
            if status.diverged is not None:
                continue  # a single run would have kept its last good state
            model, batch = classifier.models[trial], classifier.data.config.batch
            own = {
                "state_dict": classifier.trial_weights(trial),
                "optimizer_states": [classifier.trial_optimizer_state(trial)],
                "kindling": classifier.metadata[trial],
                "diverged": {},
                # A trial that halving dropped may be trained on.
                "stopped": {0: EARLY} if status.stopped == EARLY else {},
                "stacked": [0],
                "threads": threads_for([model], batch, classifier.threads),
                "average": content["average"][trial : trial + 1],
                "callbacks": {
                    "History": history | {"rows": [history["rows"][trial]]},
                    "Checkpoints": {"best": [self.best[trial]]},
                },
            }
            checkpoint.write(content | own, self.runs[trial].last_checkpoint)

    def _write_best(self, classifier: Classifier, trial: int) -> None:
        best = self.best[trial]
        assert best is not None
        content = {
            "state_dict": best["weights"],
            "epoch": best["epoch"] - 1,
            "global_step": best["step"],
            "kindling": classifier.metadata[trial],
        }
        checkpoint.write(content, self.runs[trial].best_checkpoint)
