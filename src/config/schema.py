"""The contract: every configuration key, its range, and the rules across keys.

The defaults live in conf/ alone; here a key has a type and a range. Nothing in this module
imports torch, so a wrong key costs no more than Hydra and pydantic.
"""

import difflib
import functools
import hashlib
import json
import math
import re
import shlex
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)

from src.config.closed_form import has_closed_form, not_covered_values
from src.system.errors import InputError
from src.system.resources import cpu_count

CONF = Path(__file__).absolute().parent.parent.parent / "conf"

FAULTS_SHOWN = 50
MAX_EPOCHS = 10**6  # a history holds no more rows than this
NO_DEFAULT = "has no default"
PLACEHOLDERS = {"data.path": "PATH", "data.target": "COLUMN"}  # of the keys that have none

# Numbers have two ends: what lies beyond is a slip of the keyboard or a stranger's, and would cost
# hours or all memory before it failed.
MOST = 2**31 - 1
LEAST_FLOAT, MOST_FLOAT = 1e-12, 1e12  # float32 holds their squares
MOST_LAYERS = 256
MOST_MILESTONES = 100
MOST_WEIGHTS = 2**40  # of a layer, or numbers of a data set: four terabytes
MOST_FEATURES = 2**24  # of a sample
SHOWN = 80  # characters of a value in a message


def _in_range(value: float) -> float:
    if value and not LEAST_FLOAT <= value <= MOST_FLOAT:
        raise ValueError(f"must lie between {LEAST_FLOAT:g} and {MOST_FLOAT:g}")
    return value


PositiveInt = Annotated[int, Field(gt=0, le=MOST)]
NonNegativeInt = Annotated[int, Field(ge=0, le=MOST)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False), AfterValidator(_in_range)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False), AfterValidator(_in_range)]
Factor = Annotated[float, Field(ge=1, allow_inf_nan=False), AfterValidator(_in_range)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Probability = Annotated[float, Field(ge=0, lt=1)]


def _as_list(value: Any) -> Any:
    return [value] if type(value) is int else value


def _as_text(value: Any) -> Any:
    return str(value) if type(value) is int else value


def _as_texts(value: Any) -> Any:
    return [_as_text(item) for item in (value if isinstance(value, list) else [value])]


def _given(value: Any) -> Any:
    if value is None or value == "":
        raise ValueError(NO_DEFAULT)
    return _as_text(value)


def _as_duration(value: str) -> str:
    if not set(value) - set("0:"):
        raise ValueError("must be a second or more")
    return value


def _as_project(value: str) -> str:
    if not 1 <= len(value) <= 128 or set(value) & set("/\\#?%:"):  # W&B's own rule
        raise ValueError("must have 1 to 128 characters, none of / \\ # ? % :")
    return value


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _Data(Section):
    root: str | None  # None: $DATA_ROOT, else the folder "data"
    batch_size: PositiveInt | Literal["auto"]  # per device
    val_fraction: Fraction | None  # None: nothing is held out, validation measures the training set
    split_seed: Seed
    drop_last: bool
    order: Literal["seeded", "stream"]  # see src/data/loader.py
    loader: Literal["resident", "workers"]
    num_workers: Annotated[int, Field(ge=0, le=256)]  # processes
    pin_memory: bool
    persistent_workers: bool

    @property
    def batch(self) -> int:
        """The batch size, once `auto` is decided."""
        assert self.batch_size != "auto"
        return self.batch_size


class Mnist(_Data):
    name: Literal["mnist"]
    fallback: Literal["digits"] | None  # what to train on where MNIST cannot be had


class Torchvision(_Data):
    name: Literal["fashion_mnist", "kmnist", "cifar10", "cifar100"]


class Digits(_Data):
    name: Literal["digits"]


class Toy(_Data):
    name: Literal["toy"]
    factor: PositiveInt


class Synthetic(_Data):
    name: Literal["synthetic"]
    samples: PositiveInt
    test_samples: PositiveInt
    shape: Annotated[
        list[PositiveInt], Field(min_length=1, max_length=8), BeforeValidator(_as_list)
    ]
    classes: Annotated[int, Field(ge=2, le=2**20)]


class _Files(_Data):
    path: Annotated[str, BeforeValidator(_given)]
    test_fraction: Fraction  # of each class, where the files have no test set


class ImageFolder(_Files):
    name: Literal["image_folder"]
    size: Annotated[int, Field(gt=0, le=2**12)]  # pixels a side
    channels: Literal[1, 3]
    skip_broken: bool


class Npz(_Files):
    name: Literal["npz"]


class Csv(_Files):
    name: Literal["csv"]
    target: Annotated[str, BeforeValidator(_given)]
    drop: Annotated[list[str], BeforeValidator(_as_texts)]
    encode: Literal["onehot"] | None  # of columns of text; see src/data/tables.py
    fill: Literal["mean", "median", "most_frequent"] | None  # of empty cells


@has_closed_form
class LogisticRegression(Section):
    name: Literal["logistic_regression"]


@has_closed_form
class Mlp(Section):
    name: Literal["mlp"]
    hidden_sizes: Annotated[
        list[PositiveInt],
        Field(min_length=1, max_length=MOST_LAYERS),
        BeforeValidator(_as_list),
    ]
    activation: Literal["relu", "tanh", "gelu"]
    dropout: (
        Probability | Annotated[list[Probability], Field(max_length=MOST_LAYERS)]
    )  # of each hidden layer
    input_dropout: Probability
    norm: Literal["batch", "layer"] | None
    max_norm: PositiveFloat | None
    gradient_checkpointing: bool


class Sgd(Section):
    name: Literal["sgd"]
    lr: PositiveFloat
    weight_decay: NonNegativeFloat
    momentum: Probability
    nesterov: bool


class Adam(Section):
    name: Literal["adam"]
    lr: PositiveFloat
    weight_decay: NonNegativeFloat


class AdamW(Section):
    name: Literal["adamw"]
    lr: PositiveFloat
    weight_decay: NonNegativeFloat


class _Scheduler(Section):
    spread: ClassVar[bool] = False  # whether its shape depends on trainer.max_epochs
    warmup_epochs: NonNegativeFloat


class NoScheduler(_Scheduler):
    name: Literal["none"]


class MultiStep(_Scheduler):
    name: Literal["multistep"]
    milestones: Annotated[list[PositiveInt], Field(max_length=MOST_MILESTONES)]
    gamma: Annotated[PositiveFloat, Field(le=10)]  # to the power of the milestones it stays finite


class Cosine(_Scheduler):
    spread = True
    name: Literal["cosine"]
    eta_min: NonNegativeFloat


class OneCycle(Section):
    spread: ClassVar[bool] = True
    name: Literal["onecycle"]
    pct_start: Fraction
    div_factor: Factor
    final_div_factor: Factor


class Trainer(Section):
    accelerator: Literal["auto", "cpu", "cuda", "mps"]
    devices: PositiveInt | Literal["auto"]  # per node
    num_nodes: PositiveInt
    strategy: Literal["auto", "ddp", "fsdp"]
    max_restarts: NonNegativeInt
    precision: Annotated[Literal["32", "64", "bf16-mixed", "16-mixed"], BeforeValidator(_as_text)]
    max_epochs: Annotated[int, Field(gt=0, le=MAX_EPOCHS)]
    max_time: (
        Annotated[str, Field(pattern=r"^[0-9]{2}(:[0-9]{2}){3}$"), AfterValidator(_as_duration)]
        | None
    )
    accumulate_grad_batches: PositiveInt
    gradient_clip_val: PositiveFloat | None
    label_smoothing: Probability
    ema_decay: Fraction | None
    early_stopping_patience: PositiveInt | None
    deterministic: bool
    step: Literal["auto", "closed_form", "autograd"]
    steps_per_call: PositiveInt | Literal["auto"]
    compile: bool
    cuda_graph: bool
    log_every_step: bool
    progress_bar: bool | Literal["auto"]
    profiler: Literal["simple", "pytorch"] | None

    @property
    def max_seconds(self) -> float:
        """What max_time, DD:HH:MM:SS, allows; infinite without it."""
        if self.max_time is None:
            return math.inf
        days, hours, minutes, seconds = map(int, self.max_time.split(":"))
        return 86400 * days + 3600 * hours + 60 * minutes + seconds


class Checkpoint(Section):
    every_n_epochs: PositiveInt
    every_n_steps: PositiveInt | None
    every_seconds: PositiveFloat | None
    monitor: Literal["val/acc", "val/loss", "train/acc", "train/loss"]
    mode: Literal["min", "max"]


class Logger(Section):
    tensorboard: bool
    mlflow: bool
    wandb: bool
    project: Annotated[str, AfterValidator(_as_project)]
    mlflow_file: str | None  # None: mlflow.db in the run folder

    @property
    def chosen(self) -> list[str]:
        return [name for name in ("tensorboard", "mlflow", "wandb") if getattr(self, name)]


class Augmentation(Section):
    """Half-widths of uniform ranges around no change, a number for each sample; 0 is off."""

    shift: NonNegativeFloat  # pixels, along each axis
    rotate: Annotated[float, Field(ge=0, le=180)]  # degrees
    scale: Probability  # a fraction, of width and height each
    shear: Annotated[float, Field(ge=0, lt=90)]  # degrees, along the rows
    flip: bool  # left to right, every second sample
    elastic: NonNegativeFloat  # pixels, the standard deviation of a smooth random displacement
    elastic_sigma: PositiveFloat  # pixels: how smooth, see src/data/augmentation.py

    @property
    def chosen(self) -> list[str]:
        return [name for name in MOVES if getattr(self, name)]


MOVES = ("shift", "rotate", "scale", "shear", "flip", "elastic")  # what is off at 0 or false
Data = Mnist | Torchvision | Digits | Toy | Synthetic | ImageFolder | Npz | Csv
Model = LogisticRegression | Mlp
Optimizer = Sgd | Adam | AdamW
Scheduler = NoScheduler | MultiStep | Cosine | OneCycle


class Search(Section):
    """What conf/search.yaml has: how `python -m src.search` goes about it."""

    trials: PositiveInt
    batch: Annotated[int, Field(gt=0, le=10_000)]
    sampler: Literal["tpe", "random"]
    seed: Seed
    halving: Annotated[int, Field(ge=2)] | None
    folder: str | None  # None: a folder of searches/ that the space gives its name


class Config(Section):
    seed: Seed
    data: Annotated[Data, Field(discriminator="name")]
    augmentation: Augmentation
    model: Annotated[Model, Field(discriminator="name")]
    optimizer: Annotated[Optimizer, Field(discriminator="name")]
    scheduler: Annotated[Scheduler, Field(discriminator="name")]
    trainer: Trainer
    checkpoint: Checkpoint
    logger: Logger
    resume: str | None  # "auto", or the folder of a run or sweep

    def to_primitives(self) -> dict[str, Any]:
        """Nested dicts, lists and scalars: what a checkpoint or a JSON file may hold."""
        return self.model_dump(mode="json")

    def hash(self) -> str:
        """12 hex digits over every key that is part of the experiment: not where the data lie and
        not whether a run goes on."""
        values = self.to_primitives()
        del values["data"]["root"], values["resume"]
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


def standing(monitor: str, value: float | None) -> float:
    """Where a value of a monitored quantity stands among others: the less, the better. None, NaN
    and infinities are infinite: no number at all is worse than any."""
    if value is None or not math.isfinite(value):
        return math.inf
    return -value if monitor.endswith("acc") else value


def with_batch_size(config: Config, size: int) -> Config:
    data = config.data.model_copy(update={"batch_size": size})
    return config.model_copy(update={"data": data})


def check(values: Mapping[str, Any]) -> Config:
    """The composed values as a checked configuration.

    Raises InputError with a line for every fault there is.
    """
    config, faults = find_faults(values)
    if config is None:
        raise InputError(report(faults))
    return config


def find_faults(values: Mapping[str, Any]) -> tuple[Config | None, list[str]]:
    """The configuration, or None and its faults, a text for each."""
    faults: list[str] = []
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        faults += _schema_faults(error, values)
        config = None
    faults += [
        fault for holds, fault in _rules(_Values(values)) if not holds and fault not in faults
    ]
    return (None if faults else config), faults


def find_search_faults(values: Mapping[str, Any]) -> tuple[Search | None, list[str]]:
    """As find_faults, for the keys of a search without their `search.`."""
    try:
        return Search.model_validate(values), []
    except ValidationError as error:
        by_key: dict[str, list[Any]] = {}
        for detail in error.errors():
            by_key.setdefault(f"search.{detail['loc'][0]}", []).append(detail)
        read = {"search": values}
        return None, [_schema_fault(key, details, read) for key, details in by_key.items()]


def report(faults: Sequence[str]) -> str:
    count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
    lines = "\n".join(f"  {fault}" for fault in faults)
    return f"{count} in the configuration, nothing was started\n{lines}"


class _Values:
    """Reads dotted keys from values that may be wrong: a missing key is None."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __getitem__(self, key: str) -> Any:
        value: Any = self._values
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def number(self, key: str) -> float:
        value = self[key]
        return value if isinstance(value, int | float) else 0


def _rules(v: _Values) -> Iterator[tuple[bool, str]]:
    """The rules across keys: whether each holds, and its fault. They bear wrong types."""
    yield (
        not v["optimizer.nesterov"] or v.number("optimizer.momentum") > 0,
        f"optimizer.nesterov=true needs a momentum, not optimizer.momentum="
        f"{v['optimizer.momentum']}; type optimizer.momentum=0.9",
    )
    milestones = v["scheduler.milestones"]
    if isinstance(milestones, list) and all(isinstance(epoch, int) for epoch in milestones):
        yield (
            milestones == sorted(set(milestones)),
            f"scheduler.milestones={written(milestones)}: epochs must increase, "
            f"for example scheduler.milestones={written(sorted(set(milestones)))}",
        )
    dropout, hidden = v["model.dropout"], v["model.hidden_sizes"]
    if isinstance(dropout, list) and isinstance(hidden, list):
        yield (
            len(dropout) == len(hidden),
            f"model.dropout={written(dropout)}: is one number, or one for each of the "
            f"{len(hidden)} hidden layers",
        )
    yield from _sizes(v)
    yield (
        v["data.loader"] != "resident" or v["data.num_workers"] in (0, None),
        f"data.num_workers={v['data.num_workers']} has no use with data.loader=resident; "
        "type data.loader=workers too",
    )
    yield (
        v["data.loader"] != "resident" or not v["data.pin_memory"],
        "data.pin_memory=true has no use with data.loader=resident; type data.loader=workers too",
    )
    yield (
        not v["data.persistent_workers"] or v.number("data.num_workers") > 0,
        "data.persistent_workers=true needs workers; type data.num_workers=2 too",
    )
    dropped = v["data.drop"]
    yield (
        v["data.target"] not in ([dropped] if isinstance(dropped, str) else dropped or []),
        f"data.drop={written(dropped)}: has data.target={v['data.target']}, the column of classes; "
        "leave it out of data.drop",
    )
    moved = [name for name in MOVES if v[f"augmentation.{name}"]]
    shape = {"toy": [2], "synthetic": _as_list(v["data.shape"])}.get(str(v["data.name"]))
    if moved and isinstance(shape, list):
        yield len(shape) == 3, no_pictures(v["augmentation"], shape, v["data.name"])
    for setting, reason in not_covered_values(v.__getitem__).items():
        yield (
            v["trainer.step"] != "closed_form",
            f"trainer.step=closed_form {reason}, and does not go with {setting}; "
            "type trainer.step=auto",
        )
    yield (
        not (v["trainer.compile"] and v["trainer.strategy"] == "fsdp"),
        "trainer.compile=true compiles whole models, trainer.strategy=fsdp shards them; "
        "type trainer.strategy=ddp or trainer.compile=false",
    )
    for setting, reason in (
        ("model.max_norm", "needs whole rows of weights"),
        ("trainer.ema_decay", "averages whole weights"),
    ):
        yield (
            v[setting] is None or v["trainer.strategy"] != "fsdp",
            f"{setting}={v[setting]} {reason}, trainer.strategy=fsdp shards them; "
            "type trainer.strategy=ddp",
        )
    yield (
        v["model.norm"] != "batch"
        or (v.number("trainer.devices") <= 1 and v.number("trainer.num_nodes") <= 1),
        "model.norm=batch: each device would normalise by the statistics of its own part of a "
        "batch; type model.norm=layer",
    )
    yield (
        v["model.norm"] != "batch" or v["data.batch_size"] != 1,
        "model.norm=batch: one sample has no variance, and data.batch_size=1; "
        "type data.batch_size=2 or more, or model.norm=layer",
    )
    precision, accelerator = v["trainer.precision"], v["trainer.accelerator"]
    yield (
        not (precision == "16-mixed" and accelerator == "cpu"),
        "trainer.precision=16-mixed needs a GPU; on a CPU type trainer.precision=bf16-mixed",
    )
    yield (
        not (str(precision) == "64" and accelerator == "mps"),
        "trainer.precision=64: MPS has no float64; type trainer.precision=32",
    )
    yield (
        not (accelerator == "mps" and v.number("trainer.devices") > 1),
        f"trainer.devices={v['trainer.devices']}: MPS has one device; type trainer.devices=1",
    )
    yield (
        accelerator != "cpu" or v.number("trainer.devices") <= cpu_count(),
        f"trainer.devices={v['trainer.devices']}: this machine lends {cpu_count()} CPU cores; "
        f"type trainer.devices={cpu_count()} or less",
    )
    yield (
        v["logger.mlflow_file"] is None or v["logger.mlflow"] is not False,
        f"logger.mlflow_file={v['logger.mlflow_file']} has no use without MLflow; "
        "type logger=mlflow too",
    )
    quantity = str(v["checkpoint.monitor"]).rpartition("/")[2]
    best = {"acc": "max", "loss": "min"}.get(quantity)
    yield (
        best is None or v["checkpoint.mode"] not in ("min", "max") or v["checkpoint.mode"] == best,
        f"checkpoint.mode={v['checkpoint.mode']} would keep the worst "
        f"{v['checkpoint.monitor']}; type checkpoint.mode={best}",
    )


def _sizes(v: _Values) -> Iterator[tuple[bool, str]]:
    """That what the numbers make together fits into some memory, each by itself in its range."""
    hidden, shape = v["model.hidden_sizes"], _as_list(v["data.shape"])
    if _whole_numbers(hidden):
        weights = max((a * b for a, b in pairwise(hidden)), default=0)
        yield (
            weights <= MOST_WEIGHTS,
            f"model.hidden_sizes={_shown(hidden)}: a layer of {weights:,} weights, at most "
            f"{MOST_WEIGHTS:,}",
        )
    if _whole_numbers(shape):
        features = math.prod(shape)
        yield (
            features <= MOST_FEATURES,
            f"data.shape={_shown(shape)}: {features:,} features of a sample, at most "
            f"{MOST_FEATURES:,}",
        )


def _whole_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 < item <= MOST for item in value)


def no_pictures(augmentation: Mapping[str, Any], shape: Sequence[int], data: str) -> str:
    """The fault of an augmentation of samples that are not (channels, height, width)."""
    name = next(name for name in MOVES if augmentation.get(name))
    return (
        f"augmentation.{name}={written(augmentation[name])} moves pixels, and data={data} has "
        f"samples of shape {written(list(shape))}, not [channels,height,width]; "
        "type augmentation=none"
    )


def differences(saved: Any, now: Any, key: str = "") -> list[str]:
    """A text for each key in which a run that goes on differs from what it was.

    Compares nested primitives. `trainer.max_epochs` may grow, `resume` is not part of a run.
    """
    if isinstance(saved, Mapping) and isinstance(now, Mapping):
        names = [name for name in dict.fromkeys([*saved, *now]) if name != "resume"]
        inner = [
            differences(saved.get(name), now.get(name), f"{key}.{name}" if key else str(name))
            for name in names
        ]
        return [text for texts in inner for text in texts]
    if key.endswith("trainer.max_epochs") and isinstance(saved, int) and now >= saved:
        return []
    if key.endswith("data.batch_size") and now == "auto":
        return []  # what it decided then stays
    return [] if saved == now else [f"{key}: it was {written(saved)}, now {written(now)}"]


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every key of an experiment by its path, and its value as typed: without where the data lie
    and whether a run goes on."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        elif f"{prefix}{name}" not in ("resume", "data.root"):
            yield f"{prefix}{name}", written(value)


# --- what the schema knows of its keys -------------------------------------------------------


def _sections(annotation: Any) -> Iterator[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    elif typing.get_origin(annotation) in (typing.Union, types.UnionType):
        for option in typing.get_args(annotation):
            yield from _sections(option)


@functools.cache
def known_keys() -> frozenset[str]:
    """Every dotted key that some choice of groups has, `name` of a group left out."""
    keys = set()
    for name, field in Config.model_fields.items():
        sections = list(_sections(field.annotation))
        for section in sections:
            keys |= {f"{name}.{key}" for key in section.model_fields if key != "name"}
        if not sections:
            keys.add(name)
    return frozenset(keys)


def options(group: str, folder: Path = CONF) -> list[str]:
    """The choices of a configuration group that a folder has."""
    return sorted(path.stem for path in (folder / group).glob("[!_]*.yaml"))


GROUPS = (
    "data", "augmentation", "model", "optimizer", "scheduler", "trainer", "logger", "experiment",
)  # fmt: skip


def unknown_search_key(key: str, given: str) -> str | None:
    """As unknown_key, of a key that begins with `search.`."""
    keys = [f"search.{name}" for name in Search.model_fields]
    return None if key in keys else f"{given}: unknown key{did_you_mean(key, keys)}"


def unknown_key(key: str, given: str) -> str | None:
    """The fault of an override whose key the schema does not have, or None."""
    if key in known_keys():
        return None
    if key.startswith("search.") and key[len("search.") :] in Search.model_fields:
        return f"{given}: is a key of python -m src.search"
    if key.partition(".")[0] == key and key in GROUPS:
        return None
    return f"{given}: unknown key{did_you_mean(key, [*known_keys(), *GROUPS])}"


def did_you_mean(word: str, words: Sequence[str]) -> str:
    """`; did you mean …?`, looking at the part behind the last dot too, or nothing."""
    close = difflib.get_close_matches(word, words, 1, 0.65)
    if not close:
        last = {key.rpartition(".")[2]: key for key in words}
        close = [last[m] for m in difflib.get_close_matches(word.rpartition(".")[2], last, 1, 0.75)]
    return f"; did you mean {close[0]}?" if close else ""


def _schema_faults(error: ValidationError, values: Mapping[str, Any]) -> list[str]:
    """One text per key: pydantic gives one per member of a union and per element of a list."""
    by_key: dict[str, list[Any]] = {}
    for detail in error.errors():
        by_key.setdefault(_key(detail["loc"]), []).append(detail)
    shown = [*by_key.items()][:FAULTS_SHOWN]  # what to type instead of a key takes long to find
    more = [f"and {len(by_key) - len(shown):,} more"] if len(by_key) > len(shown) else []
    return [_schema_fault(key, details, values) for key, details in shown] + more


def _key(location: tuple[int | str, ...]) -> str:
    """('optimizer', 'sgd', 'lr') → optimizer.lr; an index into a list is left out."""
    first, *rest = [str(part) for part in location]
    field = Config.model_fields.get(first)
    tagged = field is not None and field.discriminator is not None
    return ".".join([first, *rest[1:2]] if tagged else [first, *rest[:1]])


def _schema_fault(key: str, details: Sequence[Any], values: Mapping[str, Any]) -> str:
    kinds = {detail["type"] for detail in details}
    section = key.partition(".")[0]
    read = _Values(values)
    name = read[f"{section}.name"]
    given = f"{key}={_shown(read[key])}"
    if "extra_forbidden" in kinds:
        if key in known_keys():
            return f"{given}: {section}={name} has no such key"
        return unknown_key(key, given) or f"{given}: not allowed here"
    if kinds & {"union_tag_invalid", "union_tag_not_found"}:
        choices = options(section)
        return f"{section}={name}: must be one of {', '.join(choices)}"
    if "missing" in kinds:
        return f"{key}: is missing{_example(key, name)}"
    if details[0]["msg"].endswith(NO_DEFAULT):
        return f"{key}: {NO_DEFAULT}; type {key}={PLACEHOLDERS[key]}"
    reasons = [_reason(detail, read[key]) for detail in details]
    text = " or ".join(dict.fromkeys(reasons)).replace(" or must be ", " or ")
    listed = kinds == {"literal_error"}  # an example adds nothing to a complete list
    return f"{given}: {text}{'' if listed else _example(key, name)}"


def _reason(detail: Any, value: Any) -> str:
    if detail["type"] == "literal_error":
        allowed = re.findall(r"'([^']*)'", detail["msg"])
        hint = did_you_mean(value, allowed) if isinstance(value, str) else ""
        return f"must be {'one of ' if len(allowed) > 1 else ''}{', '.join(allowed)}{hint}"
    if detail["type"] == "string_pattern_mismatch":
        return "must be DD:HH:MM:SS"
    message = str(detail["msg"]).removeprefix("Value error, ")
    message = message.replace("Input should", "must").replace("List should", "must")
    return message.replace(" after validation", "")


def _example(key: str, name: Any) -> str:
    """What to type: the shipped value of the key."""
    section = key.partition(".")[0]
    shipped = yaml.safe_load((CONF / "train.yaml").read_text("utf-8"))
    shipped |= yaml.safe_load((CONF / "search.yaml").read_text("utf-8"))
    unnamed = [] if name else options(section)  # of a section that does not tell its choice, any
    for choice in (name, "default", "_common", *unnamed):
        path = CONF / section / f"{choice}.yaml"
        if path.exists():
            shipped = {**shipped, section: yaml.safe_load(path.read_text("utf-8"))}
        value = _Values(shipped)[key]
        if value is not None:
            return f", for example {key}={written(value)}"
    return ""


def _shown(value: Any) -> str:
    """As `written`; of what is long the beginning."""
    text = written(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def written(value: Any) -> str:
    """A value as one types it on the command line."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, list):
        return "[" + ",".join(_item(item) for item in value) + "]"
    return str(value)


def _item(value: Any) -> str:
    """An element of a list, in quotes where Hydra would read its text as something else."""
    plain = not isinstance(value, str) or re.fullmatch(r"(?a)[^\W\d][\w.-]*", value)
    if plain and str(value).lower() not in ("true", "false", "null", "nan", "inf"):
        return written(value)
    # Hydra takes a backslash as such, but before a quote.
    escaped = re.sub(r'(\\*)"', r'\1\1\\"', str(value))
    escaped += "\\" * (len(escaped) - len(escaped.rstrip("\\")))
    return f'"{escaped}"'


def typed(key: str, value: Any) -> str:
    """KEY=VALUE as one types it in a shell."""
    text = f"{key}={written(value)}"
    return text if re.fullmatch(r"[\w.,=\[\]+-]+", text) else shlex.quote(text)
