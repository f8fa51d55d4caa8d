"""Decides which trials of a sweep train as one stack, and says why others train alone."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from src.config.closed_form import not_covered, not_stacked, not_vmapped
from src.config.schema import Config
from src.data.loader import CHUNK
from src.data.sources.catalogue import describe
from src.models import model_cost, try_model
from src.models.vmapped import why_no_vmap
from src.system import machine
from src.system.resources import free_memory

# Keys in which trials of one stack may differ. They may also differ in every number of the
# scheduler, and in the widths of hidden_sizes but not in their count.
FUSIBLE = ("seed", "data.fold", "optimizer.lr", "optimizer.weight_decay", "optimizer.momentum")


@dataclass(frozen=True)
class Group:
    """The numbers of trials that train as one stack."""

    trials: list[int]
    alone: str | None = None  # the reason why the trial of this group trains alone


@dataclass(frozen=True)
class Place:
    """A device on which a group trains."""

    free_bytes: int  # of its memory
    on_cpu: bool


# The operations of the forward pass of a batch, above which vmap takes longer on a CPU than one
# model after the other, because torch's convolutions of many groups are slow. See
# `python -m src.benchmark suite=vmap`.
VMAP_PAYS = 1e7

# Trials of a stack on a CPU, where more trials train no faster, but need memory all the time.
MOST_ON_CPU = 1000


def plan(
    configs: Sequence[Config],
    max_trials: int | None = None,
    slots: int = 1,
    place: Callable[[Config], Place] | None = None,
    *,
    compared: bool = False,
) -> list[Group]:
    """Groups of trials that differ only in fusible keys, with at most `max_trials` trials each. If
    `max_trials` is None, a group takes at most half of the free memory of its `place`, by default a
    device of this machine. The plan then depends on the free memory, so a sweep saves the plan. On
    a CPU a stack has at most MOST_ON_CPU trials too, unless its trials are `compared`, by halving.

    There are at least `slots` groups, if there are as many trials.
    """
    place = place or here
    alone: list[Group] = []
    alike: dict[str, list[int]] = {}
    for trial, config in enumerate(configs):
        reason = why_alone(config, place)
        if reason is not None:
            alone.append(Group([trial], reason))
        else:
            alike.setdefault(_key(config), []).append(trial)
    kinds = list(alike.values())
    parts = []
    for trials in kinds:
        most = max_trials or _most_that_fit([configs[t] for t in trials], place)
        if max_trials is None and not compared and place(configs[trials[0]]).on_cpu:
            most = min(most, MOST_ON_CPU)
        parts.append(math.ceil(len(trials) / most))
    while len(alone) + sum(parts) < min(slots, len(configs)):
        largest = max(range(len(kinds)), key=lambda kind: len(kinds[kind]) / parts[kind])
        parts[largest] += 1
    # Trials in turn, because neighbours often have the same width: so the parts take equally long.
    stacks = [
        Group(trials[part::count])
        for trials, count in zip(kinds, parts, strict=True)
        for part in range(count)
    ]
    return sorted([*alone, *stacks], key=lambda group: group.trials)


def why_alone(config: Config, place: Callable[[Config], Place] | None = None) -> str | None:
    """Why a trial cannot join any stack, or would train more slowly there; or None."""
    trainer, loggers = config.trainer, config.logger.chosen
    reasons = {
        f"{setting}: a stack {reason}": True for setting, reason in not_stacked(config).items()
    } | {
        "trainer.step=autograd differentiates one model at a time": trainer.step == "autograd",
        "trainer.log_every_step=true prints the steps of one run": trainer.log_every_step,
        "trainer.max_time ends each run by its own clock": trainer.max_time is not None,
        "data.order=stream draws the order from the stream that drew the weights": (
            config.data.order == "stream"
        ),
        f"logger={','.join(loggers)} follows one run": bool(loggers),
        "data.batch_size=auto fills the memory with one model": config.data.batch_size == "auto",
        "trainer.profiler writes into one run's folder": trainer.profiler is not None,
    }
    found = next((reason for reason, holds in reasons.items() if holds), None)
    if found is None and not_covered(config):
        found = _why_no_vmap(config)
        if found is None and trainer.step == "auto" and (place or here)(config).on_cpu:
            found = _why_slower(config)
    return found


def _why_no_vmap(config: Config) -> str | None:
    for setting, cause in not_vmapped(config).items():
        return f"{setting}: torch.func.vmap {cause}"
    reason = why_no_vmap(config.model, *_described(config))
    return reason and f"model={config.model.name} {reason}"


def _why_slower(config: Config) -> str | None:
    tried = try_model(config.model, *_described(config))
    if tried.operations * config.data.batch <= VMAP_PAYS:
        return None
    return (
        f"model={config.model.name} trains faster alone on a CPU; trainer.step=vmap makes a stack"
    )


def _described(config: Config) -> tuple[tuple[int, ...], int]:
    data = describe(config.data)
    return tuple(data.shape), data.classes


def _key(config: Config) -> str:
    """The settings that trials of a stack have in common."""
    values = config.unlabelled().to_primitives()
    for key in FUSIBLE:
        section, _, name = key.rpartition(".")
        (values[section] if section else values).pop(name, None)
    if config.data.name == "csv":  # the columns are learned from the training rows of the fold
        values["data"]["fold"] = config.data.fold
    values["scheduler"] = values["scheduler"]["name"]
    values["model"]["hidden_sizes"] = len(values["model"].get("hidden_sizes", ()))
    return json.dumps(values, sort_keys=True)


def bytes_per_trial(config: Config, shape: Sequence[int], classes: int, batch: int) -> int:
    """An upper bound of the memory of one trial in a stack: weights, gradients, two moments, best
    weights and moving average; activations of a batch and of a chunk of an evaluation; a batch."""
    cost = model_cost(config.model, shape, classes)
    copies = 5 + (config.trainer.ema_decay is not None)
    floats = copies * cost.model + cost.evaluated_sample * CHUNK + cost.trained_sample * batch
    return floats * (8 if config.trainer.precision == "64" else 4)


def _most_that_fit(configs: Sequence[Config], place: Callable[[Config], Place]) -> int:
    """How many of these trials, all on the same data, fit into half of the free memory."""
    config = configs[0]
    data = describe(config.data)
    largest = max(bytes_per_trial(c, data.shape, data.classes, c.data.batch) for c in configs)
    return max(1, place(config).free_bytes // 2 // largest)


def here(config: Config) -> Place:
    """The device of this machine that a run takes."""
    return Place(free_bytes(config), machine.resolve(config.trainer).accelerator == "cpu")


def free_bytes(config: Config) -> int:
    """The free memory of the device that a run takes."""
    device = machine.resolve(config.trainer).torch_device
    return int(torch.cuda.mem_get_info()[0]) if device.type == "cuda" else free_memory()
