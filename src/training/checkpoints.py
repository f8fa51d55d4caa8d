"""What a run keeps: the best and the newest weights of each trial."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from src.run import Run
from src.training.classifier import Classifier


class Checkpoints(Callback):
    """At the end of every n-th epoch: the newest state in one file, the best weights in memory.

    A single run writes its best.ckpt and last.ckpt as it goes. Trials of a stack share one file
    until they end, `shared`; then `finish` gives each what its solo run would have left.
    """

    def __init__(self, runs: Sequence[Run], shared: Path | None = None) -> None:
        self.runs, self.shared = runs, shared
        self.best: list[dict[str, Any] | None] = [None] * len(runs)
        self.random: Tensor | None = None

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "random": torch.get_rng_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best = state_dict["best"]
        self.random = state_dict["random"]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.random is not None:  # resumed: dropout goes on where it stood
            torch.set_rng_state(self.random)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Classifier)
        epoch, checkpoint = trainer.current_epoch + 1, pl_module.configs[0].checkpoint
        if epoch % checkpoint.every_n_epochs:
            return
        sign = 1 if checkpoint.mode == "max" else -1
        for trial, metrics in enumerate(pl_module.metrics):
            best, value = self.best[trial], metrics[checkpoint.monitor]
            if trial in pl_module.diverged or (best and sign * value <= sign * best["value"]):
                continue
            self.best[trial] = {
                "value": value,
                "epoch": epoch,
                "step": trainer.global_step,
                "weights": pl_module.trial_weights(trial),
            }
            if self.shared is None and trainer.is_global_zero:
                self._write_best(pl_module, trial)
        if self.shared is None and 0 in pl_module.diverged:
            return  # the last good state stays
        trainer.save_checkpoint(self.shared or self.runs[0].last_checkpoint)

    def restore_best(self, classifier: Classifier) -> None:
        """Puts the best weights of every trial that has any into its model."""
        for trial, best in enumerate(self.best):
            if best is not None:
                classifier.load_trial_weights(trial, best["weights"])

    def finish(self, classifier: Classifier) -> None:
        """Writes the files of every trial of a stack; its models hold the last weights."""
        if self.shared is None:
            return
        content = torch.load(self.shared, map_location="cpu", weights_only=True)
        for trial, run in enumerate(self.runs):
            if self.best[trial] is not None:
                self._write_best(classifier, trial)
            if trial not in classifier.diverged:
                own = {
                    "state_dict": classifier.trial_weights(trial),
                    "optimizer_states": [classifier.trial_optimizer_state(trial)],
                    "kindling": classifier.saved_with[trial],
                    "callbacks": {},
                }
                write_checkpoint(content | own, run.last_checkpoint)

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
        write_checkpoint(content, self.runs[trial].best_checkpoint)


def write_checkpoint(content: dict[str, Any], path: Path) -> None:
    """The file is the old one or the new one at every instant."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    torch.save(content, beside)
    beside.replace(path)
