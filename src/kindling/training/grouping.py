"""Decides which trials of a sweep train as one stack, and says why others train alone."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import nn

from kindling.config.closed_form import FAMILIES, not_covered, not_stacked, not_vmapped
from kindling.config.measures import REGRESSION
from kindling.config.registry import is_lightning
from kindling.config.schema import Config
from kindling.data.class_balance import BALANCED
from kindling.data.sources.catalogue import describe
from kindling.models import construct_model, try_model
from kindling.ranks.processes import share_memory
from kindling.steps.base import NATIVE
from kindling.steps.choice import choose_step
from kindling.steps.kernel import block_memory, is_trained
from kindling.steps.optimizers import has_stacked
from kindling.steps.vmap import why_no_vmap
from kindling.system import machine
from kindling.system.errors import InputError
from kindling.system.resources import free_memory
from kindling.training.memory import bytes_per_trial

# Keys in which trials of one stack may differ. They may also differ in every number of the
# scheduler, if their family can, in the widths of hidden layers but not in their count, and where
# the engine trains them, in all settings of the model.
FUSIBLE = ("seed", "data.fold", "optimizer.lr", "optimizer.weight_decay", "optimizer.momentum")


@dataclass(frozen=True)
class Group:
    """The numbers of trials that train as one stack."""

    trials: list[int]
    alone: str | None = None  # the reason why the trial of this group trains alone


@dataclass(frozen=True)
class TrainingDevice:
    """A device on which a group trains."""

    free_bytes: int  # of its memory
    on_cpu: bool
    block_memory: int = 0  # of a thread block of the CUDA kernel; 0 if the kernel does not run


# The operations of the forward pass of a batch, above which vmap takes longer on a CPU than one
# model after the other, because torch's convolutions of many groups are slow. See
# `python -m src.benchmark suite=vmap`.
VMAP_PAYS = 1e7

# Trials of a stack on a CPU, where more trials train no faster, but need memory all the time.
MOST_ON_CPU = 1000


def here(config: Config) -> TrainingDevice:
    devices = machine.resolve(config.trainer)
    on_one_gpu = devices.accelerator == "cuda" and devices.world_size == 1
    return TrainingDevice(
        free_bytes(config), devices.accelerator == "cpu", block_memory() if on_one_gpu else 0
    )


def free_bytes(config: Config) -> int:
    device = machine.resolve(config.trainer).torch_device
    return int(torch.cuda.mem_get_info()[0]) if device.type == "cuda" else free_memory()


def group_trials(
    configs: Sequence[Config],
    max_trials: int | None = None,
    slots: int = 1,
    device_of: Callable[[Config], TrainingDevice] = here,
    *,
    compared: bool = False,
) -> list[Group]:
    """Groups of trials that differ only in fusible keys, with at most `max_trials` trials each. If
    `max_trials` is None, a group takes at most half of the free memory of its device, by default
    one of this machine. The groups then depend on the free memory, so a sweep saves them. On a CPU
    a stack has at most MOST_ON_CPU trials too, unless its trials are `compared`, by halving. On a
    GPU, trials that the CUDA kernel trains are not stacked with others, which it does not train,
    unless they are compared: the kernel trains all trials of a stack or none.

    The number of groups is a multiple of `slots`, if there are as many trials: otherwise some slots
    would wait for the last groups. Data that cannot be read are no fault here: only the group of
    such trials fails, when it trains.
    """
    alone: list[Group] = []
    alike: dict[tuple[str, str], list[int]] = {}
    for trial, config in enumerate(configs):
        reason = None
        with suppress(Exception):  # unreadable data; training will fail and say why
            reason = why_alone(config, device_of)
        if reason is not None:
            alone.append(Group([trial], reason))
        else:
            alike.setdefault(_key(config), []).append(trial)
    kinds = _across_models(alike, configs, device_of)
    if not compared:
        kinds = [part for trials in kinds for part in _by_kernel(trials, configs, device_of)]
    parts = []
    for trials in kinds:
        first, most = configs[trials[0]], max_trials or len(trials)
        if max_trials is None:
            with suppress(Exception):  # as above
                data = _described(first)
                stack = [configs[trial] for trial in trials]
                needed = max(bytes_per_trial(each, *data, each.data.batch) for each in stack)
                most = max(1, device_of(first).free_bytes // 2 // needed)
            if not compared and device_of(first).on_cpu:
                most = min(most, MOST_ON_CPU)
        parts.append(math.ceil(len(trials) / most))
    rounds = math.ceil((len(alone) + sum(parts)) / slots)
    while len(alone) + sum(parts) < min(rounds * slots, len(configs)):
        largest = max(range(len(kinds)), key=lambda kind: len(kinds[kind]) / parts[kind])
        parts[largest] += 1
    # Trials in turn, because neighbours often have the same width: so the parts take equally long.
    stacks = [
        Group(trials[part::count])
        for trials, count in zip(kinds, parts, strict=True)
        for part in range(count)
    ]
    return sorted([*alone, *stacks], key=lambda group: group.trials)


def why_alone(config: Config, device_of: Callable[[Config], TrainingDevice] = here) -> str | None:
    """Why a trial cannot join any stack, or would train more slowly there; or None."""
    trainer, loggers = config.trainer, config.logger.chosen
    if is_lightning("model", config.model.name):
        return f"model={config.model.name} is a LightningModule, which trains alone"
    reasons = {
        f"{setting}: a stack {reason}": True for setting, reason in not_stacked(config.read).items()
    } | {
        "trainer.step=autograd differentiates one model at a time": trainer.step == "autograd",
        "trainer.log_every_step=true prints the steps of one run": trainer.log_every_step,
        "trainer.log_every_n_steps prints the steps of one run": bool(trainer.log_every_n_steps),
        "trainer.max_time ends each run by its own clock": trainer.max_time is not None,
        "data.order=stream draws the order from the stream that drew the weights": (
            config.data.order == "stream"
        ),
        f"logger={','.join(loggers)} follows one run": bool(loggers),
        f"callbacks={','.join(config.callbacks)} follow one run": bool(config.callbacks),
        f"optimizer={config.optimizer.name} trains one model": not has_stacked(
            config.optimizer.name
        ),
        "data.batch_size=auto fills the memory with one model": config.data.batch_size == "auto",
        "trainer.profiler writes into one run's folder": trainer.profiler is not None,
    }
    found = next((reason for reason, holds in reasons.items() if holds), None)
    if found is not None or not not_covered(config.read):
        return found
    for setting, cause in not_vmapped(config.read).items():
        return f"{setting}: torch.func.vmap {cause}"
    name = f"model={config.model.name}"
    if reason := why_no_vmap(config.model, *_described(config)):
        return f"{name} {reason}"
    if trainer.step == "auto" and device_of(config).on_cpu:
        operations = try_model(config.model, *_described(config)).operations
        if operations * config.data.batch > VMAP_PAYS:
            return f"{name} trains faster alone on a CPU; trainer.step=vmap makes a stack"
    return None


def _described(config: Config) -> tuple[tuple[int, ...], int]:
    data = describe(config.data, config.task)
    return data.shape, config.task.outputs(data.classes)


def _key(config: Config) -> tuple[str, str]:
    """What the trials of a stack share, and what their models share where the engine does not
    train them."""
    values = config.unlabelled().to_primitives()
    for key in FUSIBLE:
        section, _, name = key.rpartition(".")
        (values[section] if section else values).pop(name, None)
    # What is learned from the training samples of a fold: the columns, the scale of the numbers,
    # the weights of the classes.
    learnt = config.data.name == "csv" or config.task.name == REGRESSION
    if learnt or config.trainer.class_weights == BALANCED:
        values["data"]["fold"] = config.data.fold
    values["scheduler"] = values["scheduler"]["name"]
    values["model"] = config.model.name
    return json.dumps(values, sort_keys=True), json.dumps(config.model.in_stacks, sort_keys=True)


def _across_models(
    alike: Mapping[tuple[str, str], list[int]],
    configs: Sequence[Config],
    device_of: Callable[[Config], TrainingDevice],
) -> list[list[int]]:
    """The trials that may form a stack; `alike` has them by `_key`."""
    kinds: dict[tuple[str, str], list[int]] = {}
    for (shared, model), trials in alike.items():
        of_engine = _by_engine(configs[trials[0]], device_of)
        kinds.setdefault((shared, "" if of_engine else model), []).extend(trials)
    return [sorted(trials) for trials in kinds.values()]


def _by_engine(config: Config, device_of: Callable[[Config], TrainingDevice]) -> bool:
    """Whether the engine trains the trial. Each trial is on its own there, also within a stack."""
    if config.model.name not in FAMILIES or not device_of(config).on_cpu:
        return False
    devices = machine.resolve(config.trainer)
    with torch.device("meta"):
        model = construct_model(config.model, (1, 8, 8), 2)
    with suppress(InputError):
        chosen = choose_step(
            [config], [model], devices.accelerator, devices.world_size, shared=share_memory()
        )
        return chosen.kind == NATIVE
    return False


def _by_kernel(
    trials: Sequence[int], configs: Sequence[Config], device_of: Callable[[Config], TrainingDevice]
) -> list[list[int]]:
    """The trials that the CUDA kernel trains, and the others. All have the same `_key`."""
    config = configs[trials[0]]
    memory = device_of(config).block_memory
    if not memory or config.trainer.step != "auto":
        return [[*trials]]
    shape, classes = _described(config)
    models: dict[str, nn.Module] = {}  # by their settings; they have no weights
    parts: dict[bool, list[int]] = {True: [], False: []}
    for trial in trials:
        model = configs[trial].model
        name = model.model_dump_json()
        if name not in models:
            with torch.device("meta"):
                models[name] = construct_model(model, shape, classes)
        parts[is_trained(configs[trial], models[name], memory)].append(trial)
    return [part for part in parts.values() if part]
