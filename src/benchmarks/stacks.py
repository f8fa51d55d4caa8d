"""The training steps of an epoch as users get them, without validation, history and checkpoints."""

import time
from collections.abc import Sequence
from itertools import count

import torch

from src.benchmarks.contenders import Contender
from src.config.compose import compose
from src.config.schema import Config
from src.data.module import DataModule
from src.system import machine
from src.training.fit import build_classifier
from src.training.learners import LEARNERS


def configure(*overrides: str) -> tuple[Config, DataModule]:
    """A configuration for any number of epochs on the CPU, and its data."""
    config = compose(
        *overrides, "scheduler=none", "trainer.accelerator=cpu", "trainer.max_epochs=100000"
    )
    data = DataModule(config.data, steps_per_call=config.trainer.steps_per_call)
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


def stack(data: DataModule, configs: Sequence[Config], *, loading: bool = True) -> Contender:
    """Trains a stack with one trial per configuration, by the steps that `trainer.step` gives.
    Times the steps, and with `loading` also the blocks. `logits` are those of the first trial."""
    classifier = build_classifier(configs, data, machine.Devices("cpu", 1))
    loader, kind = data.train_dataloader(), classifier.step.kind
    models, lanes = classifier.models, classifier.lanes
    learner = LEARNERS[kind](configs, models, classifier.order_of, lanes)
    steps = learner.steps(classifier.schedules, classifier.step_plan, None)
    epochs = count()

    def train() -> float:
        epoch, batch, of_steps = next(epochs), 0, 0.0
        loader.sampler.set_epoch(epoch)
        with lanes.running():
            began = time.perf_counter()
            for block in loader:
                given = time.perf_counter()
                steps(block, epoch, batch)
                of_steps += time.perf_counter() - given
                batch += block.batches
            return time.perf_counter() - began if loading else of_steps

    return Contender(train, torch.no_grad()(learner.logits))
