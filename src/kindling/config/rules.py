"""The rules that look at several keys at once. Rules for one key are in config/schema.py."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from kindling.config.closed_form import not_covered, not_vmapped
from kindling.config.measures import (
    CLASSIFICATION,
    LOGGED_NAME,
    SCORES,
    higher_is_better,
    known_entry,
    monitors,
)
from kindling.config.registry import LIGHTNING, is_lightning
from kindling.config.schema import AUGMENTATIONS, DATA_SECTIONS, MODEL_SECTIONS
from kindling.config.section import MOST, ModelSection, Section
from kindling.config.written import Values, shortened, written
from kindling.system.resources import cpu_count

MOST_WEIGHTS = 2**40  # in a layer: four terabytes
MOST_FEATURES = 2**24  # in a sample
# Of data=npz: samples, labels and weights.
ARRAYS = tuple(f"{name}{end}" for end in ("", "_val", "_test") for name in "xyw")


def broken_rules(values: Mapping[str, Any]) -> Iterator[str]:
    """A message for each broken rule. Wrong types are tolerated: the schema reports them."""
    v = Values(values)
    for rules in (
        _model_and_optimizer, _data, _columns, _splits, _trainer, _epochs_and_batches, _lightning
    ):  # fmt: skip
        yield from rules(v)
    if v["freeze"] and v["start_from"] is None:
        yield f"freeze={written(v['freeze'])} would keep random weights; type start_from=RUN too"
    if v["logger.mlflow_file"] is not None and v["logger.mlflow"] is False:
        yield (
            f"logger.mlflow_file={v['logger.mlflow_file']} has no use without MLflow; "
            "type logger=mlflow too"
        )
    monitor, mode, task = v["checkpoint.monitor"], v["checkpoint.mode"], v["task.name"]
    yield from _task(v, str(task or CLASSIFICATION))
    best = "max" if higher_is_better(str(monitor)) else "min"
    logged = is_lightning("model", v["model.name"]) and isinstance(monitor, str)
    if monitor not in monitors() and isinstance(monitor, str):
        if logged and known_entry(monitor) is None:
            yield (
                f"checkpoint.monitor={monitor}: its name does not tell whether more is better; "
                f"write monitors={{{monitor!r}: {str(mode)!r}}} into the extension, where it "
                "registers the module"
            )
            return
        if not logged and LOGGED_NAME.fullmatch(monitor) and LIGHTNING:
            yield f"checkpoint.monitor={monitor}: must be one of {', '.join(monitors())}"
    if (monitor in monitors() or logged) and mode in ("min", "max") and mode != best:
        yield (
            f"checkpoint.mode={mode} would keep the worst {monitor}; type checkpoint.mode={best}"
        )


def _task(v: Values, task: str) -> Iterator[str]:
    if task not in SCORES:  # the schema reports it
        return
    monitor, data = str(v["checkpoint.monitor"]), str(v["data.name"])
    lightning = is_lightning("model", v["model.name"])  # logs what it likes
    if monitor in monitors() and monitor not in monitors(task) and not lightning:
        best = f"val/{SCORES[task]}"
        yield (
            f"checkpoint.monitor={monitor}: is no measure of task={task}, must be one of "
            f"{', '.join(monitors(task))}; type checkpoint.monitor={best} "
            f"checkpoint.mode={'max' if higher_is_better(best) else 'min'}"
        )
    tasks = getattr(DATA_SECTIONS.get(data), "tasks", None)  # of a LightningDataModule, none
    if tasks is not None and task not in tasks:
        yield (
            f"task={task}: data={data} has labels for {' and '.join(tasks)}; type task={tasks[0]}, "
            "or choose other data, such as data=csv with a table of your own, or in Python "
            "data=arrays"
        )
    learnt = getattr(MODEL_SECTIONS.get(str(v["model.name"])), "learns", None)
    if learnt is not None and task not in learnt:
        yield (
            f"model={v['model.name']}: learns {' and '.join(learnt)}, not task={task}; type "
            "model=mlp"
        )
    own = task == CLASSIFICATION and v["task.loss"] == "cross_entropy"
    for key, absent in (("label_smoothing", 0), ("class_weights", None)):
        value = v[f"trainer.{key}"]
        if value != absent and value is not None and not own and v["task.loss"] is not None:
            yield (
                f"trainer.{key}={written(value)}: is a part of the cross entropy of classes, not "
                f"of task.loss={v['task.loss']}; type trainer.{key}={written(absent)}"
            )
    if v["data.sampler"] is not None and task != CLASSIFICATION:
        yield (
            f"data.sampler={v['data.sampler']}: draws classes, and task={task} has none; type "
            "data.sampler=null"
        )
    target = v["data.target"]
    if isinstance(target, list) and len({*map(str, target)}) < len(target):
        yield f"data.target={shortened(target)}: names a column twice; leave one out"
    if isinstance(target, list) and task == CLASSIFICATION and len(target) != 1:
        yield (
            f"data.target={shortened(target)}: classes have one column; type task=multilabel, or "
            "task=regression for numbers"
        )


def _model_and_optimizer(v: Values) -> Iterator[str]:
    if v["optimizer.nesterov"] and v.number("optimizer.momentum") <= 0:
        yield (
            "optimizer.nesterov=true needs a momentum, not "
            f"optimizer.momentum={v['optimizer.momentum']}; type optimizer.momentum=0.9"
        )
    milestones = v["scheduler.milestones"]
    if isinstance(milestones, list) and all(isinstance(epoch, int) for epoch in milestones):
        increasing = sorted(set(milestones))
        if milestones != increasing:
            yield (
                f"scheduler.milestones={written(milestones)}: epochs must increase, "
                f"for example scheduler.milestones={written(increasing)}"
            )
    if section := MODEL_SECTIONS.get(str(v["model.name"])):
        yield from _layers(v, section)
        yield from _batch_norm(v, section)


def _layers(v: Values, section: type[ModelSection]) -> Iterator[str]:
    sizes = v[f"model.{section.sizes_key}"]
    for key in section.keys_per_layer:
        given = v[f"model.{key}"]
        if isinstance(given, list) and isinstance(sizes, list) and len(given) != len(sizes):
            yield (
                f"model.{key}={written(given)}: must be one number, or one for each of the "
                f"{len(sizes)} hidden layers"
            )
    if _whole_numbers(sizes):
        pairs = pairwise(sizes)
        weights = max((section.weights_between(*pair, v.__getitem__) for pair in pairs), default=0)
        if weights > MOST_WEIGHTS:
            yield (
                f"model.{section.sizes_key}={shortened(sizes)}: a {section.layer} of "
                f"{weights:,} weights, at most {MOST_WEIGHTS:,}"
            )


def _batch_norm(v: Values, section: type[ModelSection]) -> Iterator[str]:
    if section.always_batch_norm:
        typed, instead = f"model={v['model.name']}", ""
    elif v["model.norm"] == "batch":
        typed, instead = "model.norm=batch", ", or model.norm=layer"
    else:
        return
    for key in ("trainer.devices", "trainer.num_nodes"):
        if v.number(key) > 1:
            yield (
                f"{typed}: each device would use the statistics of its own part of a batch; type "
                f"{key}=1{instead}"
            )
    if v["data.batch_size"] == 1:
        yield (
            f"{typed}: one sample has no variance, and data.batch_size=1; type "
            f"data.batch_size=2 or more{instead}"
        )


def _data(v: Values) -> Iterator[str]:
    if v["data.loader"] == "resident":
        unused = "has no use with data.loader=resident; type data.loader=workers too"
        if v["data.num_workers"] not in (0, None):
            yield f"data.num_workers={v['data.num_workers']} {unused}"
        if v["data.pin_memory"]:
            yield f"data.pin_memory=true {unused}"
    if v["data.sampler"] is not None and v["data.order"] == "stream":
        yield (
            f"data.sampler={v['data.sampler']} has an order of its own, and does not go with "
            "data.order=stream; type data.order=seeded"
        )
    if v["data.persistent_workers"] and v.number("data.num_workers") <= 0:
        yield "data.persistent_workers=true needs workers; type data.num_workers=2 too"
    shape = v["data.shape"]
    shape = [shape] if type(shape) is int else shape
    if _whole_numbers(shape) and math.prod(shape) > MOST_FEATURES:
        yield (
            f"data.shape={shortened(shape)}: {math.prod(shape):,} features in a sample, at most "
            f"{MOST_FEATURES:,}"
        )
    section = DATA_SECTIONS.get(str(v["data.name"]), Section)  # before the data are read
    known = shape if "shape" in section.model_fields else getattr(section, "known_shape", None)
    moved = [name for name in AUGMENTATIONS if v[f"augmentation.{name}"]]
    if moved and isinstance(known, list) and len(known) != 3:
        yield no_pictures(v["augmentation"], known, v["data.name"])
    if v["augmentation.anneal"] and not {*moved} - {"own"}:
        yield (
            f"augmentation.anneal={written(v['augmentation.anneal'])} has no use without "
            "augmentation; type augmentation=digits too"
        )


def _columns(v: Values) -> Iterator[str]:
    def columns(key: str) -> set[str]:
        given = v[key]
        return {*map(str, given if isinstance(given, list) else [given])} - {"None"}

    targets = columns("data.target")
    if both := targets & columns("data.drop"):
        yield (
            f"data.drop={written(v['data.drop'])}: would drop {min(both)}, which data.target names "
            "as a label; leave it out of data.drop"
        )
    for key in ("data.group", "data.weights"):
        if targets & columns(key):
            yield (
                f"{key}={v[key]}: data.target names this column as a label; name another column, "
                f"or type {key}=null"
            )
    if both := columns("data.numbers") & columns("data.categories"):
        yield (
            f"data.numbers={written(v['data.numbers'])}: data.categories has {min(both)} too; "
            "leave it out of one"
        )


def _splits(v: Values) -> Iterator[str]:
    folds, fold = v["data.folds"], v["data.fold"]
    if isinstance(folds, int) and fold is None:
        yield (
            f"data.folds={folds}: name the fold too, data.fold=0 or, with -m, "
            f"'data.fold=range({folds})'"
        )
    elif isinstance(fold, int) and folds is None:
        yield f"data.fold={fold} has no use without data.folds; type data.folds=5 too"
    elif isinstance(fold, int) and isinstance(folds, int) and fold >= folds:
        yield f"data.fold={fold}: the folds of data.folds={folds} are 0 to {folds - 1}"
    if folds is not None and v["data.order"] == "stream":
        yield "data.order=stream has no order for a fold; type data.order=seeded"
    own = v["data.val_path"]
    if own is not None and folds is not None:
        yield (
            f"data.folds={folds} would not use data.val_path={own}; type data.folds=null "
            "data.fold=null, or data.val_path=null"
        )
    elif own is not None and v["data.val_fraction"] is None:
        yield (
            "data.val_fraction=null would validate on the training set, not on "
            f"data.val_path={own}; leave one of them out"
        )
    group = v["data.group"]
    if v["data.name"] == "npz" and group in ARRAYS:
        kind = {"x": "features", "y": "labels", "w": "weights"}[group[0]]
        yield (
            f"data.group={group}: is an array of {kind}; name another array of the file, or type "
            "data.group=null"
        )


# With a LightningModule, keys that would do nothing: what means off, and what to do instead.
OF_OUR_LOSS = "the module computes its loss itself; leave the key out"
OF_BUILD = "do that in the function that builds the module"
NOT_OF_LIGHTNING: Mapping[str, tuple[Sequence[Any], str]] = {
    "trainer.label_smoothing": ((0,), OF_OUR_LOSS),
    "trainer.class_weights": ((), OF_OUR_LOSS),
    "data.weights": ((), "its batches are features and labels; leave the key out"),
    "trainer.ema_decay": ((), "register Lightning's WeightAveraging by register_callback"),
    "trainer.compile": ((False,), OF_BUILD),
    "trainer.log_every_step": ((False,), "type trainer.log_every_n_steps=1"),
    "trainer.steps_per_call": (("auto", 1), "each call has one batch; leave the key out"),
    "trainer.strategy": (("auto", "ddp"), "its weights are whole; type trainer.strategy=ddp"),
    "checkpoint.every_n_steps": (
        (), "checkpoints are written between epochs; type checkpoint.every_n_epochs=1"
    ),
    "start_from": ((), OF_BUILD),
    "freeze": (([],), OF_BUILD),
}  # fmt: skip


def _lightning(v: Values) -> Iterator[str]:
    """A LightningModule, and keys that need one or that do not go with one."""
    name, data, step = v["model.name"], v["data.name"], v["trainer.step"]
    if not is_lightning("model", name):
        if step == "lightning":
            yield (
                f"trainer.step=lightning: model={name} is not a LightningModule; type "
                "trainer.step=auto"
            )
        if is_lightning("data", data):
            yield (
                f"data={data}: is a LightningDataModule, and model={name} is not a "
                "LightningModule; choose other data"
            )
        if v["trainer.val_check_interval"] is not None:
            yield (
                f"trainer.val_check_interval={v['trainer.val_check_interval']}: model={name} is "
                "validated after each epoch; for shorter epochs type "
                "trainer.limit_train_batches=0.25 trainer.max_epochs=40"
            )
        return
    if step in ("autograd", "vmap"):  # `_trainer` refuses the others
        yield f"trainer.step={step}: model={name} is a LightningModule; type trainer.step=auto"
    for key, (off, instead) in NOT_OF_LIGHTNING.items():
        if v[key] is not None and v[key] not in off:
            yield f"{key}={written(v[key])} does not go with a LightningModule: {instead}"
    if v["data.batch_size"] == "auto":
        yield "data.batch_size=auto does not go with a LightningModule: type data.batch_size=100"
    if is_lightning("data", data) and any(v[f"augmentation.{key}"] for key in AUGMENTATIONS):
        yield f"augmentation has no pictures in data={data}; type augmentation=none"


def _epochs_and_batches(v: Values) -> Iterator[str]:
    if v["trainer.gradient_clip_algorithm"] == "value" and v["trainer.gradient_clip_val"] is None:
        yield (
            "trainer.gradient_clip_algorithm=value has no use without a bound; type "
            "trainer.gradient_clip_val=0.5 too"
        )
    least, most = v.number("trainer.min_epochs"), v.number("trainer.max_epochs")
    if least > most > 0:
        yield (
            f"trainer.min_epochs={least}: is more than trainer.max_epochs={most}; type "
            f"trainer.max_epochs={least} or more"
        )
    if v["trainer.overfit_batches"] is not None:
        others = {"trainer.limit_train_batches", "trainer.limit_val_batches", "data.folds"}
        others |= {"trainer.fast_dev_run"} if v["trainer.fast_dev_run"] else set()
        for key in sorted(key for key in others if v[key] is not None):
            yield (
                f"{key}={written(v[key])}: trainer.overfit_batches decides what is trained on; "
                "leave one of them out"
            )
        for key, value in (("data.order", "stream"), ("data.sampler", "balanced")):
            if v[key] == value:
                yield (
                    f"{key}={value} chooses samples, and so does trainer.overfit_batches; leave "
                    "one of them out"
                )


def _trainer(v: Values) -> Iterator[str]:
    step = v["trainer.step"]
    if step in ("native", "closed_form", "vmap"):
        reasons = (not_vmapped if step == "vmap" else not_covered)(v.__getitem__)
        for setting, reason in (reasons | _not_native(v) if step == "native" else reasons).items():
            yield (
                f"trainer.step={step} {reason}, and does not go with {setting}; "
                "type trainer.step=auto"
            )
    if v["trainer.strategy"] == "fsdp":
        if v["trainer.compile"]:
            yield (
                "trainer.compile=true compiles whole models, trainer.strategy=fsdp shards them; "
                "type trainer.strategy=ddp or trainer.compile=false"
            )
        for setting, reason in (
            ("model.max_norm", "needs whole rows of weights"),
            ("trainer.ema_decay", "averages whole weights"),
        ):
            if v[setting] is not None:
                yield (
                    f"{setting}={v[setting]} {reason}, trainer.strategy=fsdp shards them; "
                    "type trainer.strategy=ddp"
                )
    precision, accelerator = v["trainer.precision"], v["trainer.accelerator"]
    devices = v.number("trainer.devices")
    if precision == "16-mixed" and accelerator == "cpu":
        yield "trainer.precision=16-mixed needs a GPU; on a CPU type trainer.precision=bf16-mixed"
    if str(precision) == "64" and accelerator == "mps":
        yield "trainer.precision=64: MPS has no float64; type trainer.precision=32"
    if accelerator == "mps" and devices > 1:
        yield f"trainer.devices={devices}: MPS has one device; type trainer.devices=1"
    if accelerator == "cpu" and devices > cpu_count():
        yield (
            f"trainer.devices={devices}: this program may use {cpu_count()} CPU cores; "
            f"type trainer.devices={cpu_count()} or less"
        )


def _not_native(v: Values) -> dict[str, str]:
    """The settings that the engine does not cover though the closed form does, with the reasons."""
    accelerator, precision = v["trainer.accelerator"], v["trainer.precision"]
    found = {}
    if accelerator in ("cuda", "mps"):
        found[f"trainer.accelerator={accelerator}"] = "trains on a CPU"
    if precision == "bf16-mixed":
        found[f"trainer.precision={precision}"] = "has no 16-bit products"
    if v.number("trainer.num_nodes") > 1:
        found[f"trainer.num_nodes={v['trainer.num_nodes']}"] = (
            "exchanges gradients within one machine alone"
        )
    return found


def _whole_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 < item <= MOST for item in value)


def no_pictures(augmentation: Mapping[str, Any], shape: Sequence[int], data: str) -> str:
    """The fault of an augmentation of samples that are not (channels, height, width)."""
    name = next(name for name in AUGMENTATIONS if augmentation.get(name))
    return (
        f"augmentation.{name}={written(augmentation[name])} changes pictures, and data={data} has "
        f"samples of shape {written(list(shape))}, not [channels,height,width]; "
        "type augmentation=none"
    )
