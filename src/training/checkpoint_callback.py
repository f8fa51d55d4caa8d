"""The callback that decides when a run writes its checkpoints, and that writes them."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins.io import CheckpointIO
from torch import Tensor

from src.config.schema import sort_key
from src.models import count_parameters
from src.runs import checkpoint
from src.runs.checkpoint import CheckpointPair
from src.runs.folder import Run
from src.system.errors import Interrupted
from src.system.files import write_into_folder, write_together
from src.system.signals import Signals
from src.training import ranks
from src.training.classifier import Classifier
from src.training.lanes import threads_for
from src.training.learners import contiguous
from src.training.trial_status import EARLY_STOPPING

SHARE = 0.02  # of the time, for checkpoints whose number the user left to this class
# Bytes per second at which the first checkpoint of a stack is expected to be written, beyond so
# many bytes that are written before anyone waits for them.
SPEED, UNNOTICED = 1e9, 32e6
COPIES = 3  # of the weights in a state: themselves, the optimizer's and the best


class CheckpointPairIO(CheckpointIO):
    """Writes Lightning's checkpoints by `CheckpointPair`; Lightning loads the checked `content`."""

    def __init__(self, pair: CheckpointPair, content: dict[str, Any] | None) -> None:
        self.pair, self.content = pair, content

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """If `storage_options` is a dictionary, it receives the content, and no file is written."""
        if storage_options is None:
            self.pair.write(checkpoint)
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
    """The best weights of a trial, with the names that they have in a single run."""

    value: float
    epoch: int  # from 1
    step: int
    weights: dict[str, Tensor]


class Checkpoints(Callback):
    """Writes the state when the configuration says so, and before a signal ends the run.

    The best weights of every trial stay in memory and in the state. A single run writes best.ckpt
    before its state. The trials of a stack have a common state; when a trial ends, its folder gets
    the files of a single run. Between the last block of an epoch and its validation, no state is
    written, because a resumed run would skip that validation.
    """

    def __init__(self, runs: Sequence[Run], pair: CheckpointPair, signals: Signals) -> None:
        self.runs, self.pair, self.signals = runs, pair, signals
        self.is_stack = pair.folder != runs[0].checkpoints
        self.best: list[Best | None] = [None] * len(runs)
        self.written_best: int | None = None  # the epoch of a single run's best.ckpt
        # What the trials of a stack have in common, and their histories and averages, as the last
        # checkpoint, or the end, holds them. None before the first checkpoint of this process.
        self.common: dict[str, Any] | None = None
        self.steps = 0  # optimizer steps at the last checkpoint or block
        self.cost = 0.0  # seconds that the last checkpoint took

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best = state_dict["best"]

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.signals.wait_for_block()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.signals.wait_for_block()
        self.written, self.steps = time.monotonic(), trainer.global_step
        assert isinstance(pl_module, Classifier)
        if self.is_stack:
            sizes = sum(count_parameters(pl_module.models[trial]) for trial in pl_module.stacked)
            self.cost = max(0.0, COPIES * 4 * sizes - UNNOTICED) / SPEED

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        assert isinstance(pl_module, Classifier)
        if pl_module.batches_done == pl_module.step_plan.batches_per_epoch:
            return
        due, signal = self._due(trainer, pl_module)
        self._write_if(due, signal, trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Classifier)
        epoch = trainer.current_epoch + 1
        due, signal = self._due(trainer, pl_module, epoch)
        self._note_best(trainer, pl_module, epoch)
        if epoch == trainer.max_epochs or trainer.should_stop:
            lost = (time.monotonic() - self.written) * SHARE
            if self.is_stack and lost < self.cost and not (due or signal):
                # The trials get their own files at once. Killed before that, the stack goes on from
                # its last state: to write another takes more than a fiftieth of the time since.
                self._note_common(self._captured(trainer), trainer)
                return
            due = True  # a finished run can be resumed with a larger trainer.max_epochs
        elif self.is_stack and any(pl_module.status[n].stop_reason for n in pl_module.stacked):
            self._drop_ended(trainer, pl_module)
            due = True
        self._write_if(due, signal, trainer, pl_module)

    def _due(
        self, trainer: Trainer, classifier: Classifier, ended: int | None = None
    ) -> tuple[bool, int]:
        """Whether a checkpoint is due after a block, the last of epoch `ended` (from 1) or None.
        Also returns a received signal or 0. All ranks get the same answer."""
        settings = classifier.configs[0].checkpoint
        earlier_steps, self.steps = self.steps, trainer.global_step
        every_n_steps, every_n_epochs = settings.every_n_steps, settings.every_n_epochs
        due = (
            every_n_steps is not None
            and self.steps // every_n_steps > earlier_steps // every_n_steps
        )
        waited = time.monotonic() - self.written
        time_due = settings.every_seconds is not None and waited >= settings.every_seconds
        if ended is not None:
            if every_n_epochs is None:
                time_due = time_due or waited * SHARE >= self.cost
            else:
                due = due or ended % every_n_epochs == 0
        signal = self.signals.received or 0
        if trainer.world_size > 1:
            device = trainer.strategy.root_device
            some_time_due, signal = ranks.all_max([int(time_due), signal], device)
            time_due = bool(some_time_due)
        return due or time_due, signal

    def _write_if(self, due: bool, signal: int, trainer: Trainer, classifier: Classifier) -> None:
        """Writes the state if that is due or a signal ends the run. Then raises Interrupted."""
        if due or signal:
            began = time.monotonic()
            self._write(trainer, classifier)
            self.written = time.monotonic()
            self.cost = self.written - began
        if signal:
            raise Interrupted(signal)

    def _note_best(self, trainer: Trainer, classifier: Classifier, epoch: int) -> None:
        monitor, step = classifier.configs[0].checkpoint.monitor, trainer.global_step
        better: dict[int, float] = {}
        for trial, metrics in classifier.metrics.items():
            best, value = self.best[trial], metrics[monitor]
            bound = sort_key(monitor, best["value"] if best else None)
            diverged = classifier.status[trial].diverged_step is not None
            if not diverged and sort_key(monitor, value) < bound:
                better[trial] = value
        with classifier.averaged():
            copies = classifier.copied_weights([*better])
        for (trial, value), weights in zip(better.items(), copies, strict=True):
            self.best[trial] = Best(value=value, epoch=epoch, step=step, weights=weights)

    @property
    def best_values(self) -> list[float | None]:
        """The best monitored value of each trial so far; None where there is none."""
        return [best["value"] if best is not None else None for best in self.best]

    def best_epoch(self, trial: int) -> int | None:
        """The epoch of the best weights, from 1. None if all monitored values are NaN."""
        best = self.best[trial]
        return best["epoch"] if best is not None else None

    def _write(self, trainer: Trainer, classifier: Classifier) -> None:
        if not self.is_stack:
            if trainer.is_global_zero and self.best_epoch(0) != self.written_best:
                checkpoint.write(self._best_content(classifier, 0), self.runs[0].best_checkpoint)
                self.written_best = self.best_epoch(0)
            if classifier.status.diverged_steps or classifier.diverges():
                return  # the state before the divergence is kept
            trainer.save_checkpoint(self.pair.last)
            return
        content = self._captured(trainer)
        if trainer.is_global_zero:
            self.pair.write(content)
        self._note_common(content, trainer)

    def _note_common(self, content: dict[str, Any], trainer: Trainer) -> None:
        if trainer.is_global_zero:
            self.common = content | {"state_dict": None, "optimizer_states": None}
            self.common["callbacks"] = {"History": content["callbacks"]["History"]}

    def _captured(self, trainer: Trainer) -> dict[str, Any]:
        """The content of a checkpoint of this moment; empty on ranks other than 0."""
        captured: dict[str, Any] = {}
        trainer.save_checkpoint(self.pair.last, storage_options=captured)
        return captured

    def restore_best(self, classifier: Classifier) -> None:
        """Loads the best weights of each trial, if there are any, into its model."""
        for trial, best in enumerate(self.best):
            if best is not None:
                classifier.load_trial_weights(trial, best["weights"])

    def finish(self, classifier: Classifier) -> None:
        """Writes the files of the trials that are still stacked, from the last state."""
        if self.is_stack:
            last = self.common if self.common is not None else checkpoint.read(self.pair.last)
            self._write_trial_files(classifier, classifier.stacked, last)
            self.common = None  # frees the memory

    def _drop_ended(self, trainer: Trainer, classifier: Classifier) -> None:
        """Writes the files of the trials that no longer train, and removes them from the stack.

        The state is built in memory, not written to disk: from such a file, a resumed run would
        train the removed trials again.
        """
        ended = [trial for trial in classifier.stacked if not classifier.status[trial].trains]
        captured = self._captured(trainer)
        if trainer.is_global_zero:
            self._write_trial_files(classifier, ended, captured)
        classifier.drop_ended()

    def _write_trial_files(
        self, classifier: Classifier, trials: Sequence[int], content: dict[str, Any]
    ) -> None:
        """`content` is that of a checkpoint of the stack; its weights, optimizers and best weights
        are not needed."""
        kept = self._kept(classifier, trials)
        files = (self._trial_files(classifier, trial, content) for trial in kept)
        packed = ({path: checkpoint.pack(each) for path, each in f.items()} for f in files)
        write_together(write_into_folder, packed)

    def _kept(self, classifier: Classifier, ended: Sequence[int]) -> list[int]:
        """Those of `ended` that may be among the best checkpoint.keep trials of the sweep: no trial
        that is worse than so many ended ones of this stack."""
        settings = classifier.configs[0].checkpoint
        if not isinstance(settings.keep, int):
            return list(ended)

        def rank(trial: int) -> tuple[float, int]:
            best, diverged = self.best[trial], classifier.status[trial].diverged_step is not None
            value = best["value"] if best is not None and not diverged else None
            return sort_key(settings.monitor, value), trial

        training = set(classifier.stacked) - set(ended)
        known = [trial for trial in range(len(self.runs)) if trial not in training]
        chosen = set(sorted(known, key=rank)[: settings.keep])
        return [trial for trial in ended if trial in chosen]

    def _trial_files(
        self, classifier: Classifier, trial: int, content: dict[str, Any]
    ) -> dict[Path, dict[str, Any]]:
        """The contents of best.ckpt and last.ckpt of a trial, as a single run writes them."""
        files: dict[Path, dict[str, Any]] = {}
        status, run = classifier.status[trial], self.runs[trial]
        if self.best[trial] is not None:
            files[run.best_checkpoint] = self._best_content(classifier, trial)
        if classifier.configs[trial].checkpoint.keep == "best":
            return files
        if status.diverged_step is not None:
            return files  # the last state shows the divergence; a single run would not write it
        history = content["callbacks"]["History"]
        model, batch = classifier.models[trial], classifier.data.config.batch
        files[run.last_checkpoint] = content | {
            "state_dict": classifier.trial_weights(trial),
            "optimizer_states": [classifier.trial_optimizer_state(trial)],
            "kindling": classifier.metadata[trial],
            "diverged": {},
            # A trial that halving stopped can be resumed.
            "stopped": {0: EARLY_STOPPING} if status.stop_reason == EARLY_STOPPING else {},
            "stacked": [0],
            "threads": threads_for(
                [model], classifier.data.source.shape, batch, classifier.threads
            ),
            "average": content["average"][trial : trial + 1],
            "callbacks": {
                "History": history | {"rows": [history["rows"][trial]]},
                "Checkpoints": {"best": [_alone(self.best[trial])]},
            },
        }
        return files

    def _best_content(self, classifier: Classifier, trial: int) -> dict[str, Any]:
        best = _alone(self.best[trial])
        assert best is not None
        return {
            "state_dict": best["weights"],
            "epoch": best["epoch"] - 1,
            "global_step": best["step"],
            "kindling": classifier.metadata[trial],
        }


def _alone(best: Best | None) -> Best | None:
    """With weights of its own: views would save those of the whole stack."""
    if best is None:
        return None
    return {**best, "weights": {name: contiguous(v) for name, v in best["weights"].items()}}
