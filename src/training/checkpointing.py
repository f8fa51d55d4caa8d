"""What a run keeps of its state: when it is written, and how it is put together again."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins.io import CheckpointIO
from torch import Tensor

from src.config.schema import standing
from src.runs import checkpoint
from src.runs.checkpoint import Slot
from src.runs.folder import Run
from src.system.errors import Interrupted
from src.system.signals import Signals
from src.training import ranks
from src.training.classifier import Classifier
from src.training.lanes import threads_for
from src.training.stopping import EARLY


class SlotIO(CheckpointIO):
    """Lightning's door to the slot: checkpoints are synced, have a checksum and a predecessor."""

    def save_checkpoint(
        self,
        checkpoint: dict[str, Any],
        path: Any,
        storage_options: Any = None,
    ) -> None:
        Slot(Path(path).parent).write(checkpoint)

    def load_checkpoint(
        self,
        path: Any,
        map_location: Any = None,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        return checkpoint.read(Path(path))

    def remove_checkpoint(self, path: Any) -> None:
        Path(path).unlink(missing_ok=True)


class Checkpoints(Callback):
    """Writes the state where the configuration says, and before a signal ends the run.

    The best weights of every trial, of all epochs, stay in memory and in the state. A single run
    writes its best.ckpt before its state; trials of a stack share one slot until they end, then
    `finish` gives each what its solo run would have left.

    Within an epoch the state is written between blocks, but not behind the last one: Lightning
    would go on from there without the epoch's validation.
    """

    def __init__(self, runs: Sequence[Run], slot: Slot, signals: Signals) -> None:
        self.runs, self.slot, self.signals = runs, slot, signals
        self.shared = slot.folder != runs[0].checkpoints
        self.best: list[dict[str, Any] | None] = [None] * len(runs)
        self.written_best: int | None = None  # the epoch of a single run's best.ckpt
        self.begun = False  # training, after whatever was restored
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

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self.begun = True

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, Classifier)
        if pl_module.batch == pl_module.when.batches_per_epoch:
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
            due = True  # the end can be gone on from, too
        elif self.shared and not pl_module.stopped.keys().isdisjoint(pl_module.stacked):
            self._let_go(trainer, pl_module)
            due = True
        if due or signal:
            self._write(trainer, pl_module)
        if signal:
            raise Interrupted(signal)

    def _due(self, trainer: Trainer, classifier: Classifier) -> tuple[bool, int]:
        """Whether a checkpoint is due by steps or time, and the signal received or 0; the same on
        all ranks."""
        settings = classifier.configs[0].checkpoint
        steps, before = trainer.global_step, self.steps
        self.steps = steps
        every = settings.every_n_steps
        due = every is not None and steps // every > before // every
        waited = time.monotonic() - self.written
        late = int(settings.every_seconds is not None and waited >= settings.every_seconds)
        signal = self.signals.received or 0
        if trainer.world_size > 1:
            late, signal = ranks.greatest([late, signal], trainer.strategy.root_device)
        return due or bool(late), signal

    def _note_best(self, trainer: Trainer, classifier: Classifier, epoch: int) -> None:
        monitor = classifier.configs[0].checkpoint.monitor
        for trial, metrics in classifier.metrics.items():
            best, value = self.best[trial], metrics[monitor]
            before = standing(monitor, best["value"] if best else None)
            if trial in classifier.diverged or standing(monitor, value) >= before:
                continue
            with classifier.averaged():
                weights = classifier.trial_weights(trial)
            self.best[trial] = {
                "value": value,
                "epoch": epoch,
                "step": trainer.global_step,
                "weights": weights,
            }

    def best_epoch(self, trial: int) -> int | None:
        """The epoch, from 1, whose weights are kept; None where no monitored value is a number."""
        best = self.best[trial]
        return best["epoch"] if best is not None else None

    def _write(self, trainer: Trainer, classifier: Classifier) -> None:
        if not self.shared and trainer.is_global_zero and self.best_epoch(0) != self.written_best:
            self._write_best(classifier, 0)
            self.written_best = self.best_epoch(0)
        if not self.shared and (classifier.diverged or classifier.diverges()):
            return  # the last good state stays
        trainer.save_checkpoint(self.slot.last)
        self.written = time.monotonic()

    def restore_best(self, classifier: Classifier) -> None:
        """Puts the best weights of every trial that has any into its model."""
        for trial, best in enumerate(self.best):
            if best is not None:
                classifier.load_trial_weights(trial, best["weights"])

    def finish(self, classifier: Classifier) -> None:
        """Writes the files of every trial of a stack; its models hold the last weights."""
        if not self.shared:
            return
        self._leave(classifier, classifier.stacked, checkpoint.read(self.slot.last))

    def _let_go(self, trainer: Trainer, classifier: Classifier) -> None:
        """Writes the files of the trials that have ended, and trains the others without them. What
        is written is what a checkpoint of this moment would be; on the disk it would be one that
        a killed stack went on from with them."""
        ended = [trial for trial in classifier.stacked if trial not in classifier.going]
        content = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        if trainer.is_global_zero:
            self._leave(classifier, ended, content)
        classifier.shrink()

    def _leave(
        self, classifier: Classifier, trials: Sequence[int], content: dict[str, Any]
    ) -> None:
        history = content["callbacks"]["History"]
        for trial in trials:
            run = self.runs[trial]
            if self.best[trial] is not None:
                self._write_best(classifier, trial)
            if trial not in classifier.diverged:
                why = classifier.stopped.get(trial)
                own = {
                    "state_dict": classifier.trial_weights(trial),
                    "optimizer_states": [classifier.trial_optimizer_state(trial)],
                    "kindling": classifier.saved_with[trial],
                    "diverged": {},
                    "stopped": {0: why} if why == EARLY else {},  # others may be gone on with
                    "stacked": [0],
                    "threads": threads_for(
                        [classifier.models[trial]], classifier.data.config.batch, classifier.threads
                    ),
                    "average": content["average"][trial : trial + 1],
                    "callbacks": {
                        "History": history | {"rows": [history["rows"][trial]], "ended": []},
                        "Checkpoints": {"best": [self.best[trial]]},
                    },
                }
                checkpoint.write(content | own, run.last_checkpoint)

    def _write_best(self, classifier: Classifier, trial: int) -> None:
        best = self.best[trial]
        assert best is not None
        weights: dict[str, Tensor] = best["weights"]
        content = {
            "state_dict": weights,
            "epoch": best["epoch"] - 1,
            "global_step": best["step"],
            "kindling": classifier.saved_with[trial],
        }
        checkpoint.write(content, self.runs[trial].best_checkpoint)
