"""The training steps of an epoch as users get them, without validation, history and checkpoints."""

import time
from collections.abc import Sequence

import torch

from benchmarks.contenders import Contender
from kindling.config.compose import compose
from kindling.config.schema import Config
from kindling.data.module import DataModule
from kindling.steps.base import StepChoice
from kindling.steps.choice import LEARNERS
from kindling.system import machine
from kindling.training.building import build_module

ON_CPU = "trainer.accelerator=cpu"


def configure(*overrides: str) -> tuple[Config, DataModule]:
    """A configuration for any number of epochs, and its data on its device."""
    config = compose(*overrides, "scheduler=none", "trainer.max_epochs=100000")
    data = DataModule(config.data, steps_per_call=config.trainer.steps_per_call)
    data.device = machine.resolve(config.trainer).torch_device
    data.setup()
    return config, data


def trials(config: Config, rates: Sequence[float], seeds: Sequence[int]) -> list[Config]:
    """The configuration with each learning rate and its seed."""
    return [
        config.model_copy(
            update={"optimizer": config.optimizer.model_copy(update={"lr": rate}), "seed": seed}
        )
        for rate, seed in zip(rates, seeds, strict=True)
    ]


class Training:
    """A stack with one trial per configuration, trained by the steps that `trainer.step` gives."""

    def __init__(self, data: DataModule, configs: Sequence[Config]) -> None:
        devices = machine.resolve(configs[0].trainer)
        classifier = build_module(configs, data, devices).to(devices.torch_device)
        self.loader, self.lanes, self.plan = (
            data.train_dataloader(), classifier.lanes, classifier.step_plan,
        )  # fmt: skip
        self.chosen = classifier.step
        self.learner = LEARNERS[self.chosen.kind](
            configs, classifier.models, classifier.order_of, self.lanes, classifier.task
        )
        self.learner.begin(classifier.schedules, self.plan)
        self.epochs = 0

    @property
    def step(self) -> StepChoice:
        """The way of the steps: the chosen one, or what goes on since that one has failed."""
        return self.learner.fallback or self.chosen

    def epoch(self, *, loading: bool = True) -> float:
        """Trains for an epoch. The seconds of the steps, and with `loading` also of the blocks. On
        a GPU, they end when the last block is queued."""
        batch, of_steps = 0, 0.0
        self.loader.sampler.set_epoch(self.epochs)
        with self.lanes.running():
            began = time.perf_counter()
            for block in self.loader:
                given = time.perf_counter()
                self.learner.train(block, self.epochs, batch)
                of_steps += time.perf_counter() - given
                batch += block.batches
            seconds = time.perf_counter() - began if loading else of_steps
        self.epochs += 1
        return seconds


def stack(data: DataModule, configs: Sequence[Config], *, loading: bool = True) -> Contender:
    """Times epochs of a stack. `logits` are those of the first trial."""
    training = Training(data, configs)
    return Contender(
        lambda: training.epoch(loading=loading), torch.no_grad()(training.learner.logits)
    )
