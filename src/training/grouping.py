"""Which trials of a sweep train as one stack, and why others train alone."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from src.config import schema
from src.config.schema import Config
from src.data.loader import CHUNK
from src.data.sources.catalogue import describe
from src.system import machine
from src.system.resources import free_memory

# Trials of a stack may differ in these; of the scheduler in every number, of hidden_sizes in the
# widths but not in their count.
FUSIBLE = ("seed", "optimizer.lr", "optimizer.weight_decay", "optimizer.momentum")


@dataclass(frozen=True)
class Group:
    """Numbers of trials that train as one stack; `alone` is why a trial could not join any."""

    trials: list[int]
    alone: str | None = None


def plan(configs: Sequence[Config], max_trials: int | None = None) -> list[Group]:
    """Groups of trials that agree in all but the fusible keys, none larger than `max_trials`.

    Without `max_trials` a group is cut to half of the memory that is free on the device. The
    groups depend on the configurations and that number only, so that a sweep that is started
    again finds the same ones.
    """
    groups: list[Group] = []
    alike: dict[str, list[int]] = {}
    for trial, config in enumerate(configs):
        reason = why_alone(config)
        if reason is not None:
            groups.append(Group([trial], reason))
        else:
            alike.setdefault(_key(config), []).append(trial)
    for trials in alike.values():
        most = max_trials or _fitting(configs[trials[0]], [configs[t] for t in trials])
        parts = math.ceil(len(trials) / most)
        size = math.ceil(len(trials) / parts)
        groups += [Group(trials[i : i + size]) for i in range(0, len(trials), size)]
    return sorted(groups, key=lambda group: group.trials)


def why_alone(config: Config) -> str | None:
    """What keeps a trial out of every stack, or None."""
    trainer, loggers = config.trainer, config.logger.chosen
    by_autograd = [*schema.autograd_alone(config)]
    if trainer.step == "autograd":
        by_autograd.append("trainer.step=autograd")
    if by_autograd:
        return f"{by_autograd[0]} differentiates one model at a time"
    reasons = {
        "trainer.log_every_step=true prints the steps of one run": trainer.log_every_step,
        "trainer.max_time ends each run by its own clock": trainer.max_time is not None,
        "data.order=stream draws the order from the stream that drew the weights": (
            config.data.order == "stream"
        ),
        f"logger={','.join(loggers)} follows one run": bool(loggers),
        "data.batch_size=auto fills the memory with one model": config.data.batch_size == "auto",
        "trainer.profiler writes into one run's folder": trainer.profiler is not None,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _key(config: Config) -> str:
    """What trials of a stack have in common."""
    values = config.to_primitives()
    for key in FUSIBLE:
        section, _, name = key.rpartition(".")
        (values[section] if section else values).pop(name, None)
    values["scheduler"] = values["scheduler"]["name"]
    values["model"]["hidden_sizes"] = len(values["model"].get("hidden_sizes", ()))
    return json.dumps(values, sort_keys=True)


def bytes_per_trial(config: Config, inputs: int, classes: int, batch: int) -> int:
    """What one trial of a stack takes, at most: weights, gradient, two moments, the best weights
    and the moving average; activations and their gradients of a batch, with what dropout and
    norms keep, and of an evaluation's chunk; and a batch of its own, as bytes and as floats."""
    model, hidden, by_unit, by_input = config.model, [], 2, 2
    if isinstance(model, schema.Mlp):
        hidden = model.hidden_sizes
        by_unit += 2 * bool(model.dropout) + 3 * (model.norm is not None)
        by_input += 2 * bool(model.input_dropout)
    sizes = [inputs, *hidden, classes]
    weights = sum((a + 1) * b for a, b in pairwise(sizes)) + 4 * sum(hidden)
    copies = 5 + (config.trainer.ema_decay is not None)
    units = sum(hidden) + classes
    floats = copies * weights + 2 * units * CHUNK + (by_unit * units + by_input * inputs) * batch
    width = 8 if config.trainer.precision == "64" else 4
    return int(floats * width)


def _fitting(config: Config, configs: Sequence[Config]) -> int:
    data = describe(config.data)
    inputs = math.prod(data.shape)
    largest = max(bytes_per_trial(each, inputs, data.classes, each.data.batch) for each in configs)
    return max(1, free_bytes(config) // 2 // largest)


def free_bytes(config: Config) -> int:
    """Of the memory of the device that a run takes."""
    device = machine.resolve(config.trainer).torch_device
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info()[0]
        return free
    return free_memory()
