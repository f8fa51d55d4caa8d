"""`callbacks=[mine]` logs the norm of the weights: a column of history.csv, and of the loggers."""

import torch
from kindling.config.schema import Config
from lightning.pytorch import Callback, LightningModule, Trainer


class Norm(Callback):
    def on_train_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        weights = torch.nn.utils.parameters_to_vector(module.parameters())
        module.log("norm", weights.norm())


def build(config: Config) -> Callback:
    return Norm()
