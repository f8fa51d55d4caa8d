"""The callback that decides when a run writes its checkpoints, and that writes them."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NotRequired

from lightning.pytorch import Callback, Trainer
from torch import Tensor
from typing_extensions import TypedDict  # pydantic needs it before Python 3.12

from kindling.config.measures import sort_key
from kindling.models import count_parameters
from kindling.ranks import processes as ranks
from kindling.records import checkpoint
from kindling.records.checkpoint import CheckpointPair
from kindling.records.folder import Count, Run
from kindling.records.groups import Epoch
from kindling.steps.base import contiguous, copied
from kindling.steps.lanes import threads_for
from kindling.system.errors import Interrupted
from kindling.system.files import write_into_folder, write_together
from kindling.system.signals import Signals
from kindling.training.callbacks import FILES_SHARE, RunsLast, require_storable
from kindling.training.decisions import EARLY_STOPPING
from kindling.training.module import StackModule

# Bytes per second at which the first checkpoint of a stack is expected to be written, beyond so
# many bytes that are written before anyone waits for them.
SPEED, UNNOTICED = 1e9, 32e6
COPIES = 3  # of the weights in a state: themselves, the optimizer's and the best


class Best(TypedDict):
    """The best weights of a trial, with the names that they have in a single run."""

    value: float
    epoch: Epoch  # from 1
    step: Count
    weights: dict[str, Tensor]
    # Of a LightningModule, in place of weights: the parts of best.ckpt that Lightning, the module,
    # the callbacks and the data module give.
    content: NotRequired[dict[str, Any]]


class Checkpoints(RunsLast):
    """Writes the state when the configuration says so, and before a signal ends the run.

    The best weights of every trial stay in memory and in the state. A single run writes best.ckpt
    before its state. The trials of a stack have a common state; when a trial ends, its folder gets
    the files of a single run. Between the last block of an epoch and its validation, no state is
    written, because a resumed run would skip that validation. The last block may be one after
    which a callback stops the run.
    """

    def __init__(
        self, runs: Sequence[Run], pair: CheckpointPair, signals: Signals, users: Sequence[Callback]
    ) -> None:
        self.runs, self.pair, self.signals, self.users = runs, pair, signals, users
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

    def on_sanity_check_start(self, trainer: Trainer, module: StackModule) -> None:
        self.signals.wait_for_block()

    def on_train_start(self, trainer: Trainer, module: StackModule) -> None:
        self.signals.wait_for_block()
        require_storable(self.users)
        self.written, self.steps = time.monotonic(), trainer.global_step
        if self.is_stack:
            sizes = sum(count_parameters(module.models[trial]) for trial in module.stacked)
            self.cost = max(0.0, COPIES * 4 * sizes - UNNOTICED) / SPEED

    def on_train_batch_end(self, trainer: Trainer, module: StackModule, *_: Any) -> None:
        ends = module.batches_done == module.step_plan.batches_per_epoch
        if ends or trainer.should_stop:  # a state does not hold `should_stop`, only why
            return
        self._write_if(*self._due(trainer, module), trainer, module)

    def on_train_epoch_end(self, trainer: Trainer, module: StackModule) -> None:
        if not module.batches_done:  # a callback has stopped the epoch before its first step
            return
        epoch = trainer.current_epoch + 1
        due, signal = self._due(trainer, module, epoch)
        self._note_best(trainer, module, epoch)
        if epoch == trainer.max_epochs or trainer.should_stop:
            lost = (time.monotonic() - self.written) * FILES_SHARE
            if self.is_stack and lost < self.cost and not (due or signal):
                # The trials get their own files at once. Killed before that, the stack goes on from
                # its last state: to write another takes more than a fiftieth of the time since.
                self._capture(trainer)
                return
            due = True  # a finished run can be resumed with a larger trainer.max_epochs
        elif self.is_stack and not module.status.stopped.keys().isdisjoint(module.stacked):
            self._drop_ended(trainer, module)
        self._write_if(due, signal, trainer, module)

    def _due(
        self, trainer: Trainer, module: StackModule, ended: int | None = None
    ) -> tuple[bool, int]:
        """Whether a checkpoint is due after a block, the last of epoch `ended` (from 1) or None.
        Also returns a received signal or 0. All ranks get the same answer."""
        settings = module.configs[0].checkpoint
        earlier_steps, self.steps = self.steps, trainer.global_step
        every = settings.every_n_steps
        due = every is not None and self.steps // every > earlier_steps // every
        waited = time.monotonic() - self.written
        time_due = settings.every_seconds is not None and waited >= settings.every_seconds
        if ended is not None and settings.every_n_epochs is not None:
            due |= ended % settings.every_n_epochs == 0
        elif ended is not None:
            time_due |= waited * FILES_SHARE >= self.cost
        signal = self.signals.received or 0
        if trainer.world_size > 1:
            device = trainer.strategy.root_device
            some_time_due, signal = ranks.all_max([int(time_due), signal], device)
            time_due = bool(some_time_due)
        return due or time_due, signal

    def _write_if(self, due: bool, signal: int, trainer: Trainer, module: StackModule) -> None:
        """Writes the state if that is due or a signal ends the run. Then raises Interrupted."""
        if due or signal:
            began = time.monotonic()
            self._write(trainer, module)
            self.written = time.monotonic()
            self.cost = self.written - began
        if signal:
            raise Interrupted(signal)

    def _note_best(self, trainer: Trainer, module: StackModule, epoch: int) -> None:
        monitor, step = module.configs[0].checkpoint.monitor, trainer.global_step
        better: dict[int, float] = {}
        for trial, metrics in module.metrics.items():
            best, value = self.best[trial], metrics[monitor]
            bound = sort_key(monitor, best["value"] if best else None)
            if trial not in module.status.diverged and sort_key(monitor, value) < bound:
                better[trial] = value
        with module.averaged():
            copies = module.copied_weights([*better])
        for (trial, value), weights in zip(better.items(), copies, strict=True):
            self.best[trial] = Best(value=value, epoch=epoch, step=step, weights=weights)

    def best_epoch(self, trial: int) -> int | None:
        """The epoch of the best weights, from 1. None if all monitored values are NaN."""
        best = self.best[trial]
        return best["epoch"] if best is not None else None

    def _write(self, trainer: Trainer, module: StackModule) -> None:
        if self.is_stack:
            content = self._capture(trainer)
            if trainer.is_global_zero:
                self.pair.write(content)
            return
        if trainer.is_global_zero and self.best_epoch(0) != self.written_best:
            self._write_best(module)
        if not (module.status.diverged or module.diverges()):  # the state before that is kept
            trainer.save_checkpoint(self.pair.last)

    def _write_best(self, module: StackModule) -> None:
        checkpoint.write(self._best_content(module, 0), self.runs[0].best_checkpoint)
        self.written_best = self.best_epoch(0)

    def _capture(self, trainer: Trainer) -> dict[str, Any]:
        """The content of a checkpoint of this moment; empty on ranks other than 0."""
        content: dict[str, Any] = {}
        trainer.save_checkpoint(self.pair.last, storage_options=content)
        if trainer.is_global_zero:
            self.common = content | {"state_dict": None, "optimizer_states": None}
            self.common["callbacks"] = {"History": content["callbacks"]["History"]}
        return content

    def restore_best(self, module: Any) -> None:
        """Loads the best weights of each trial, if there are any, into its model."""
        for trial, best in enumerate(self.best):
            if best is not None:
                module.load_weights(trial, best["weights"])

    def finish(self, module: Any) -> None:
        """Writes the files of the trials that are still stacked, from the last state."""
        if self.is_stack:
            last = self.common if self.common is not None else checkpoint.read(self.pair.last)
            self._write_trial_files(module, module.stacked, last)
            self.common = None  # frees the memory

    def _drop_ended(self, trainer: Trainer, module: StackModule) -> None:
        """Writes the files of the trials that no longer train, and removes them from the stack.

        No state of the stack is written for that. A stack that is killed before its next one trains
        the removed trials again, from the state before, to the same files.
        """
        ended = sorted({*module.stacked} - {*module.status.active_trials})
        content = self._capture(trainer)
        if trainer.is_global_zero:
            self._write_trial_files(module, ended, content)
        module.drop_ended()

    def _write_trial_files(
        self, module: StackModule, trials: Sequence[int], content: dict[str, Any]
    ) -> None:
        """`content` is that of a checkpoint of the stack; its weights, optimizers and best weights
        are not needed."""
        kept = self._kept(module, trials)
        files = (self._trial_files(module, trial, content) for trial in kept)
        packed = ({path: checkpoint.pack(each) for path, each in f.items()} for f in files)
        write_together(write_into_folder, packed)

    def _kept(self, module: StackModule, ended: Sequence[int]) -> list[int]:
        """Those of `ended` that may be among the best checkpoint.keep trials of the sweep: no trial
        that is worse than so many ended ones of this stack."""
        settings = module.configs[0].checkpoint
        if not isinstance(settings.keep, int):
            return list(ended)

        def rank(trial: int) -> tuple[float, int]:
            best = self.best[trial]
            value = best["value"] if best and trial not in module.status.diverged else None
            return sort_key(settings.monitor, value), trial

        training = set(module.stacked) - set(ended)
        known = [trial for trial in range(len(self.runs)) if trial not in training]
        chosen = set(sorted(known, key=rank)[: settings.keep])
        return [trial for trial in ended if trial in chosen]

    def _trial_files(
        self, module: StackModule, trial: int, content: dict[str, Any]
    ) -> dict[Path, dict[str, Any]]:
        """The contents of best.ckpt and last.ckpt of a trial, as a single run writes them."""
        files: dict[Path, dict[str, Any]] = {}
        statuses, run = module.status, self.runs[trial]
        if self.best[trial] is not None:
            files[run.best_checkpoint] = self._best_content(module, trial)
        # The last state of a diverged trial shows the divergence; a single run would not write it.
        if module.configs[trial].checkpoint.keep == "best" or trial in statuses.diverged:
            return files
        history = content["callbacks"]["History"]
        model, batch = module.models[trial], module.data.config.batch
        files[run.last_checkpoint] = content | {
            "state_dict": copied(model),
            "optimizer_states": [module.trial_optimizer_state(trial)],
            "kindling": module.metadata[trial],
            "diverged": {},
            # A trial that halving stopped can be resumed.
            "stopped": {0: EARLY_STOPPING} if statuses.stopped.get(trial) == EARLY_STOPPING else {},
            "stacked": [0],
            "threads": threads_for([model], module.data.source.shape, batch, module.threads),
            "average": content["average"][trial : trial + 1],
            "callbacks": {
                "History": history | {"rows": [history["rows"][trial]]},
                "Checkpoints": {"best": [_alone(self.best[trial])]},
            },
            "logged": None,
            "user_callbacks": {},
        }
        return files

    def _best_content(self, module: StackModule, trial: int) -> dict[str, Any]:
        best = _alone(self.best[trial])
        assert best is not None
        return {
            "state_dict": best["weights"],
            "epoch": best["epoch"] - 1,
            "global_step": best["step"],
            "kindling": module.metadata[trial],
        }


def _alone(best: Best | None) -> Best | None:
    """With weights of its own: views would save those of the whole stack."""
    if best is None:
        return None
    return {**best, "weights": {name: contiguous(v) for name, v in best["weights"].items()}}
