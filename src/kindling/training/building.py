"""Builds the data and the models of a run or stack: weights from the seed or of another run, and
layers that keep theirs."""

import logging
from collections.abc import Sequence

import torch
from lightning.pytorch import seed_everything
from torch import nn

from kindling.config import registry
from kindling.config.schema import Config
from kindling.config.written import counted
from kindling.data.loader import StreamOrder
from kindling.data.module import DataModule
from kindling.models import build_model
from kindling.models.summary import in_a_line
from kindling.ranks import processes as ranks
from kindling.records.loading import open_trained
from kindling.records.lookup import MODEL, checkpoint_of, find
from kindling.steps.base import VMAP
from kindling.steps.choice import choose_step
from kindling.steps.lanes import available
from kindling.steps.vmap import why_no_vmap
from kindling.system import machine
from kindling.system.errors import InputError
from kindling.training import random_state
from kindling.training.lightning_module import LightningRun, build_run
from kindling.training.memory import require_room
from kindling.training.module import StackModule

log = logging.getLogger(__name__)

SHOWN = 5  # names in a line


def check_devices(config: Config, devices: machine.Devices) -> None:
    """Raises InputError for batch norm on several devices. Warns of a slow precision."""
    typed = config.model.typed_batch_norm
    if devices.world_size > 1 and typed:
        raise InputError(
            f"{typed}: each of {devices.world_size} devices would normalise by the statistics of "
            "its own part of a batch; type trainer.devices=1"
        )
    slow = machine.slow_precision(config.trainer.precision, devices.accelerator)
    if slow and ranks.is_rank_zero():
        log.warning("%s", slow)


def open_data(configs: Sequence[Config], devices: machine.Devices) -> DataModule:
    """Loads the data set. Raises InputError for a batch norm whose last batch has one sample."""
    config = configs[0]
    lightning = registry.is_lightning("model", config.model.name)
    data = DataModule(
        config.data,
        task=config.task,
        steps_per_call=1 if lightning else config.trainer.steps_per_call,
        world_size=devices.world_size,
        folds=[*dict.fromkeys(each.data.fold for each in configs if each.data.fold is not None)],
        limits=config.trainer,
    )
    data.setup()  # before Lightning does it: the models need the shape of the samples
    data.require_variance(config.model.typed_batch_norm)
    source = data.source
    if ranks.is_rank_zero():
        data.tell()
    if source.instead_of:
        text = f"training on {source.name} instead of {source.instead_of}"
        log.warning("%s; to stop instead, type data=mnist", text)
    return data


def build_any(
    configs: Sequence[Config], devices: machine.Devices, *, fresh: bool
) -> StackModule | LightningRun:
    """Opens the data and builds what trains: Kindling's module, or the user's LightningModule."""
    config = configs[0]
    if not registry.is_lightning("model", config.model.name):
        return build_module(configs, open_data(configs, devices), devices, fresh=fresh)
    foreign = registry.is_lightning("data", config.data.name)
    data = None if foreign else open_data(configs, devices)
    seed_everything(config.seed, verbose=False)
    return build_run(config, data)


def build_module(
    configs: Sequence[Config], data: DataModule, devices: machine.Devices, *, fresh: bool = True
) -> StackModule:
    """Initialises each model from its own seed, and if `fresh`, with weights of `start_from`. Gives
    each different seed an order of samples."""
    seed_everything(configs[-1].seed, verbose=False)
    if len(configs) == 1 and devices.accelerator == "cpu":  # stacks have as many trials as fit
        require_room(configs[0], data)
    models = [_build_model(config, data, fresh=fresh) for config in configs]
    keys = list(dict.fromkeys((config.seed, config.data.fold) for config in configs))
    orders = [data.order(seed, fold) for seed, fold in keys]
    if data.config.order == "stream":  # such a run trains alone, so there is one seed
        orders = [StreamOrder(torch.get_rng_state())]
    data.set_orders(orders, len(configs))
    threads = available() if devices.accelerator == "cpu" else 1
    step = choose_step(
        configs, models, devices.accelerator, devices.world_size,
        weighted=data.train.weights is not None, shared=ranks.share_memory(),
    )  # fmt: skip
    section, outputs = configs[0].model, configs[0].task.outputs(data.source.classes)
    if step.kind == VMAP and (reason := why_no_vmap(section, data.source.shape, outputs)):
        raise InputError(
            f"trainer.step=vmap: model={section.name} {reason}; type trainer.step=auto"
        )
    number_of = {key: number for number, key in enumerate(keys)}
    orders_of = [number_of[config.seed, config.data.fold] for config in configs]
    return StackModule(configs, models, data, orders_of, step, threads)


def _build_model(config: Config, data: DataModule, *, fresh: bool) -> nn.Module:
    random_state.seed_streams(config.seed)
    outputs = config.task.outputs(data.source.classes)
    model = build_model(config.model, data.source.shape, outputs)
    if config.trainer.precision == "64":  # Lightning would convert it after a checkpoint was loaded
        model.double()
    if config.start_from is not None and fresh:
        line = load_weights(model, config)
        if ranks.is_rank_zero():
            log.info("%s", line)
    freeze(model, config.freeze)
    return model


def load_weights(model: nn.Module, config: Config) -> str:
    """Copies the best weights of the run `start_from`, for layers whose names and shapes are those
    of the model, and returns a line about it. Raises InputError if there is no such run, for a
    committee, and if none of its layers fits."""
    assert config.start_from is not None
    folder = find(config.start_from, MODEL)
    trained = open_trained(folder)
    if trained.members:
        raise InputError(f"start_from={folder}: is a committee; name one of its members")
    theirs, own = trained.model.state_dict(), model.state_dict()
    other = {
        _layer(name)
        for name, value in own.items()
        if name not in theirs or theirs[name].shape != value.shape
    }
    fits = [name for name in own if _layer(name) not in other]  # a layer comes whole or not at all
    weights = {name for name, _ in model.named_parameters()}
    if not weights & {*fits}:
        line = in_a_line(trained.config.model.name, trained.model)
        raise InputError(
            f"start_from={folder}: none of its weights fits, because it is {line}, and this model "
            f"{in_a_line(config.model.name, model)}; choose the same sizes"
        )
    with torch.no_grad():
        for name in fits:
            own[name].copy_(theirs[name])
    layers = list(dict.fromkeys(map(_layer, own)))
    new = [layer for layer in layers if layer in other]
    added = f"; new: {_shortened(new)}" if new else ""
    known = len(layers) - len(new)
    return f"weights of {checkpoint_of(folder)}: {known} of {counted(len(layers), 'layer')}{added}"


def _layer(name: str) -> str:
    return name.rpartition(".")[0]


def freeze(model: nn.Module, names: Sequence[str]) -> None:
    """Excludes layers from the training, by their names or those of layers around them. Running
    statistics of norms go on. Raises InputError for a name that has no weights, and if nothing
    would train."""
    for name in names:
        inside = [p for key, p in model.named_parameters() if f"{key}.".startswith(f"{name}.")]
        if not inside:
            known = dict.fromkeys(_layer(key) for key, _ in model.named_parameters())
            raise InputError(
                f"freeze={name}: no layer with weights has this name; the layers are "
                f"{_shortened([*known])}"
            )
        for parameter in inside:
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InputError(f"freeze={','.join(names)}: leaves nothing to train; leave out a layer")


def _shortened(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def log_beginning(
    module: StackModule | LightningRun, devices: machine.Devices, resumes: bool
) -> None:
    """Logs the model of a single run, the data, and the effective batch size if it differs from the
    batch size of each device."""
    config, count = module.configs[0], devices.world_size
    if len(module.configs) == 1 and not resumes:
        way = module.step.kind.replace("_", " ")
        name = getattr(config.model, "class_name", config.model.name)
        line = in_a_line(name, module.models[0])
        log.info("%s; %s steps on %s", line, way, devices.accelerator)
    data = module.data
    if not resumes:
        other = f"data={config.data.name}: a LightningDataModule"
        log.info("%s", other if data is None else data.in_a_line())
    accumulated = config.trainer.accumulate_grad_batches
    if data is not None and count * accumulated > 1:
        batch = config.data.batch
        log.info(
            f"effective batch size {batch * count * accumulated}: {batch} on each of {count} "
            f"device(s), {accumulated} accumulated"
        )
