"""What the extension registers of lightning-hydra-template's parts."""

import math
from functools import partial
from typing import Any

import torch
from torch import nn

from tests.helpers.lit.mnist_datamodule import MNISTDataModule
from tests.helpers.lit.mnist_module import MNISTLitModule


def template(section: Any, shape: Any, outputs: Any) -> MNISTLitModule:
    net = nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(shape or (1, 8, 8)), section.width),
        nn.BatchNorm1d(section.width),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(section.width, outputs or 10),
    )
    return MNISTLitModule(
        net,
        optimizer=partial(torch.optim.Adam, lr=section.lr),
        scheduler=partial(
            torch.optim.lr_scheduler.ReduceLROnPlateau, mode="min", factor=0.1, patience=0
        ),
        compile=section.compile,
    )


def template_data(section: Any) -> MNISTDataModule:
    return MNISTDataModule(
        data_dir="drawn", batch_size=section.batch_size, num_workers=section.num_workers
    )
