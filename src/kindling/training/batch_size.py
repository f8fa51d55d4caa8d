"""Chooses data.batch_size=auto: the largest batch whose step fits into the device's memory."""

import logging
import math
from collections.abc import Callable
from functools import partial

import torch

from kindling.config.schema import Config
from kindling.config.written import counted
from kindling.data.loader import batches_per_block
from kindling.data.sources.folds import training_samples
from kindling.data.sources.source import Source
from kindling.models import build_model
from kindling.steps.closed_form import GRAPH_BATCHES
from kindling.steps.optimizers import build_optimizer
from kindling.system import machine
from kindling.system.errors import InputError
from kindling.system.resources import out_of_memory
from kindling.tasks.task import build_task
from kindling.training.grouping import free_bytes
from kindling.training.memory import bytes_per_trial

log = logging.getLogger(__name__)

FIRST = 64


def largest(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest of 64, 128, … that fits, at most `limit`. Raises InputError if none fits."""
    size = min(FIRST, limit)
    if not fits(size):
        raise InputError(
            f"data.batch_size=auto: not even a batch of {size} fits into memory; choose a "
            "smaller model"
        )
    while 2 * size <= limit and fits(2 * size):
        size *= 2
    return size


def choose(config: Config, source: Source) -> int:
    """Chooses and logs the batch size for this model on this device.

    On a GPU, steps with larger and larger batches are tried until memory runs out. On a CPU, the
    system would then kill the process, so the estimate must fit into half of the free memory.
    """
    devices = machine.resolve(config.trainer)
    samples = training_samples(source.train, config.data, source.labels, source.validation)
    limit = max(1, samples // devices.world_size)
    if devices.accelerator == "cpu":
        free = free_bytes(config) // 2 // devices.count
        outputs = config.task.outputs(source.classes)
        needed = partial(bytes_per_trial, config, source.shape, outputs)
        size = largest(limit, lambda size: needed(size) <= free)
    else:
        size = largest(limit, lambda size: _step_fits(config, source, size, devices.torch_device))
    why = "more do not fit into memory" if 2 * size <= limit else f"of {limit} training samples"
    steps = counted(-(-limit // size), "step")
    advice = "fewer steps need a higher optimizer.lr or more trainer.max_epochs"
    log.info("data.batch_size=auto: %d chosen, %s; an epoch has %s; %s", size, why, steps, advice)
    return size


def beside(config: Config, source: Source, size: int, device: torch.device) -> int:
    """The bytes that a run holds on a GPU beside a step with a batch of this size."""
    batch = 4 * size * (math.prod(source.shape) + config.task.outputs(source.classes))
    resident = config.data.loader == "resident"
    splits = (source.train, source.validation, source.test) if resident else ()
    data = sum(split.features.nbytes + split.labels.nbytes for split in splits if split)
    return data + batch * (batches_per_block(batch, device) + GRAPH_BATCHES)


def _step_fits(config: Config, source: Source, size: int, device: torch.device) -> bool:
    """Whether a step with a batch of this size fits into the memory of a GPU, beside the data, a
    block and what a CUDA graph holds of the block."""
    outputs = config.task.outputs(source.classes)
    model = build_model(config.model, source.shape, outputs).to(device)
    held = torch.empty(0)
    try:
        held = torch.empty(beside(config, source, size, device), dtype=torch.uint8, device=device)
        optimizer = build_optimizer(config.optimizer, model.parameters())
        features = torch.zeros(size, *source.shape, device=device)
        labels = torch.zeros_like(source.train.labels[:1]).to(device)
        labels = labels.expand(size, *labels.shape[1:])
        task = build_task(config.task, source.classes)
        task.loss(model(features), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        return False
    finally:
        del held
        for parameter in model.parameters():
            parameter.grad = None
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return True
