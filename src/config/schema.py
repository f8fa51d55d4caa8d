"""Every section and key of a configuration, with its type and range.

The default values are in conf/. Rules that look at several keys are in src/config/rules.py. To add
a model, an optimizer or a data set, write its section here and add it to the union of its kind.
Nothing in src/config/ imports torch, so that a wrong key is reported within a second.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from src.config.closed_form import has_closed_form

# In a checkout the folder conf/; a wheel has it in src/.
CONF = next(
    folder / "conf" for folder in Path(__file__).absolute().parents[2:0:-1]
    if (folder / "conf" / "train.yaml").exists()
)  # fmt: skip
GROUPS = (
    "data", "augmentation", "model", "optimizer", "scheduler", "trainer", "logger", "experiment",
)  # fmt: skip
NO_DEFAULT = "has no default"

# Every number has a lower and an upper limit. A value beyond them is a typing mistake or comes from
# a stranger's file, and would cost hours or all memory before it failed.
MOST = 2**31 - 1
LATEST = "latest"  # in place of a folder: the newest one
MAX_EPOCHS = 10**6  # also the largest number of rows of a history
LEAST_FLOAT, MOST_FLOAT = 1e-12, 1e12  # float32 holds their squares
MOST_LAYERS = 256
MOST_MILESTONES = 100
MOST_CLASSES = 2**20
MOST_POINTS = 10_000  # of a sweep: all are composed and checked before the first trains

# Measures that a validation computes if checkpoint.monitor names one of them; see
# src/training/tallies.py. The first four are means over the classes.
MEASURES = ("f1", "precision", "recall", "auroc", "top5", "brier", "ece")
Monitor = Literal[
    "val/acc", "val/loss", "val/f1", "val/precision", "val/recall", "val/auroc", "val/top5",
    "val/brier", "val/ece", "train/acc", "train/loss",
]  # fmt: skip


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
Folds = Annotated[int, Field(ge=2, le=1000)]  # of a cross-validation


def _as_list(value: Any) -> Any:
    return [value] if type(value) is int else value


def _as_text(value: Any) -> Any:
    return str(value) if type(value) is int else value


def _as_texts(value: Any) -> Any:
    return [_as_text(item) for item in (value if isinstance(value, list) else [value])]


def _required(placeholder: str) -> BeforeValidator:
    """For a key without a default; the placeholder stands for its value in the message."""

    def check(value: Any) -> Any:
        if value is None or value == "":
            raise ValueError(f"{NO_DEFAULT}; type {placeholder}")
        return _as_text(value)

    return BeforeValidator(check)


def _check_duration(value: str) -> str:
    if not set(value) - set("0:"):
        raise ValueError("must be a second or more")
    return value


def _matching(pattern: str, allowed: str) -> AfterValidator:
    """Refuses a text that does not match. `allowed` is for the message: must be ..."""

    def check(value: str) -> str:
        if len(value) > 1000 or not re.fullmatch(pattern, value):
            raise ValueError(f"must be {allowed}")
        return value

    return AfterValidator(check)


Duration = Annotated[
    str,
    _matching("[0-9]{2}(:[0-9]{2}){3}", "DD:HH:MM:SS"),
    AfterValidator(_check_duration),
    Field(examples=["DD:HH:MM:SS"]),
]


GroupName = Annotated[str, _matching("(?s).+", "a name"), BeforeValidator(_as_text)]


def _check_level(value: Any) -> Any:
    if type(value) is not int or value < 1:
        raise ValueError(
            "must be the level of the folders that name the groups, counted from the folder of a "
            "class; type data.group=1"
        )
    return value


def _check_odd(value: int) -> int:
    if value % 2 == 0:
        raise ValueError("must be odd, so that pictures keep their size")
    return value


def _check_label(value: str) -> str:
    if value in (LATEST, "auto"):
        raise ValueError(f"must not be {value}, which has a meaning in place of a folder")
    return value


def _check_project(value: str) -> str:
    if not 1 <= len(value) <= 128 or set(value) & set("/\\#?%:"):  # W&B's own rule
        raise ValueError("must have 1 to 128 characters, none of / \\ # ? % :")
    return value


def _check_run(value: str) -> str:
    if value == LATEST:
        raise ValueError(f"must be a folder or a name; {LATEST} would soon be another run")
    return value


Layers = Annotated[
    list[Annotated[str, _matching(r"(?a)\w[\w.]*", "the name of a layer")]],
    Field(max_length=MOST_LAYERS),
    BeforeValidator(_as_texts),
]
# A name stands in place of a folder, so it has no slash and does not begin as an option.
Label = Annotated[
    str,
    _matching(r"(?a)\w[\w.+-]{0,63}", "1 to 64 letters, digits and _ . + -, no . + - at the start"),
    AfterValidator(_check_label),
    BeforeValidator(_as_text),
]
Tags = Annotated[list[Label], Field(max_length=32), BeforeValidator(_as_texts)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _Data(Section):
    root: str | None  # None: $DATA_ROOT if it is set, else the folder "data"
    batch_size: PositiveInt | Literal["auto"]  # per device
    val_fraction: Fraction | None  # None: validation uses the whole training set
    split_seed: Seed
    # Runs that were written before there was cross-validation have none.
    folds: Folds | None = None
    fold: Annotated[int, Field(ge=0, lt=1000)] | None = None
    drop_last: bool
    order: Literal["seeded", "stream"]  # see src/data/loader.py
    # Runs that were written before there was this key had none.
    sampler: Literal["balanced"] | None = None
    loader: Literal["resident", "workers"]
    num_workers: Annotated[int, Field(ge=0, le=256)]  # processes
    pin_memory: bool
    persistent_workers: bool

    @property
    def holds_out_validation(self) -> bool:
        """Whether no sample for validation is trained on."""
        return self.folds is not None or self.val_fraction is not None

    @property
    def batch(self) -> int:
        """The batch size, after `auto` was replaced by a number."""
        assert self.batch_size != "auto"
        return self.batch_size


class Mnist(_Data):
    name: Literal["mnist"]
    fallback: Literal["digits"] | None  # the data set to use where MNIST is not available


class Torchvision(_Data):
    name: Literal["mnist_and_none", "fashion_mnist", "kmnist", "cifar10", "cifar100"]


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
    classes: Annotated[int, Field(ge=2, le=MOST_CLASSES)]


class _Files(_Data):
    path: Annotated[str, _required("PATH")]
    test_fraction: Fraction  # of each class, if the files have no test set


class ImageFolder(_Files):
    name: Literal["image_folder"]
    # The level of the folders that name the groups; 1: those in the folders of the classes. Runs
    # that were written before there were groups had none; the same holds for the next two.
    group: Annotated[int, Field(ge=1, le=16), BeforeValidator(_check_level)] | None = None
    size: Annotated[int, Field(gt=0, le=2**12)]  # pixels, width and height
    channels: Literal[1, 3]
    skip_broken: bool


class Npz(_Files):
    name: Literal["npz"]
    group: GroupName | None = None  # an array


class Csv(_Files):
    name: Literal["csv"]
    target: Annotated[str, _required("COLUMN")]
    group: GroupName | None = None  # a column
    drop: Annotated[list[str], BeforeValidator(_as_texts)]
    encode: Literal["onehot"] | None  # for columns of text; see src/data/tables.py
    fill: Literal["mean", "median", "most_frequent"] | None  # for empty cells


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
    )  # one for all hidden layers, or one for each
    input_dropout: Probability
    # Standard deviation. Runs that were written before there was this key had no noise.
    noise: NonNegativeFloat = 0.0
    norm: Literal["batch", "layer"] | None
    max_norm: PositiveFloat | None
    gradient_checkpointing: bool


class Cnn(Section):
    name: Literal["cnn"]
    channels: Annotated[  # of each convolution
        list[PositiveInt],
        Field(min_length=1, max_length=MOST_LAYERS),
        BeforeValidator(_as_list),
    ]
    kernel_size: Annotated[int, Field(ge=1, le=31), AfterValidator(_check_odd)]  # pixels
    norm: Literal["batch", "layer"] | None
    dropout: Probability


class Sgd(Section):
    name: Literal["sgd"]
    lr: PositiveFloat
    weight_decay: NonNegativeFloat
    momentum: Probability
    nesterov: bool


class Adam(Section):
    name: Literal["adam", "adamw"]
    lr: PositiveFloat
    weight_decay: NonNegativeFloat


class _Scheduler(Section):
    depends_on_max_epochs: ClassVar[bool] = False  # whether trainer.max_epochs changes the rates
    warmup_epochs: NonNegativeFloat


class NoScheduler(_Scheduler):
    name: Literal["none"]


class MultiStep(_Scheduler):
    name: Literal["multistep"]
    milestones: Annotated[list[PositiveInt], Field(max_length=MOST_MILESTONES)]
    # At most 10, so that gamma ** number_of_milestones stays finite.
    gamma: Annotated[PositiveFloat, Field(le=10)]


class Cosine(_Scheduler):
    depends_on_max_epochs = True
    name: Literal["cosine"]
    eta_min: NonNegativeFloat


class Plateau(_Scheduler):
    name: Literal["plateau"]
    factor: Fraction
    patience: NonNegativeInt  # epochs
    min_lr: NonNegativeFloat


class OneCycle(Section):
    depends_on_max_epochs: ClassVar[bool] = True
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
    max_time: Duration | None
    accumulate_grad_batches: PositiveInt
    gradient_clip_val: PositiveFloat | None
    label_smoothing: Probability
    # Weights of the classes in the loss of training. Runs that were written before there was this
    # key had none.
    class_weights: (
        Literal["balanced"]
        | Annotated[list[PositiveFloat], Field(min_length=2, max_length=MOST_CLASSES)]
        | None
    ) = None
    ema_decay: Fraction | None
    early_stopping_patience: PositiveInt | None
    deterministic: bool
    step: Literal["auto", "native", "closed_form", "vmap", "autograd"]
    steps_per_call: PositiveInt | Literal["auto"]
    compile: bool
    cuda_graph: bool
    log_every_step: bool
    progress_bar: bool | Literal["auto"]
    profiler: Literal["simple", "pytorch"] | None


class Checkpoint(Section):
    every_n_epochs: PositiveInt | None
    every_n_steps: PositiveInt | None
    every_seconds: PositiveFloat | None
    monitor: Monitor
    mode: Literal["min", "max"]
    # The files that stay after the end: all; the best weights; in a sweep, all files of the best N
    # trials. Runs that were written before there was this key kept all.
    keep: Literal["all", "best"] | PositiveInt = "all"


class Logger(Section):
    tensorboard: bool
    mlflow: bool
    wandb: bool
    project: Annotated[str, AfterValidator(_check_project)]
    mlflow_file: str | None  # None: mlflow.db in the run folder

    @property
    def chosen(self) -> list[str]:
        return [name for name in ("tensorboard", "mlflow", "wandb") if getattr(self, name)]


class Augmentation(Section):
    """The largest change of each kind: a sample draws uniformly from -value to value. 0 is off."""

    shift: NonNegativeFloat  # pixels, along each axis
    rotate: Annotated[float, Field(ge=0, le=180)]  # degrees
    scale: Probability  # a fraction; width and height draw separate numbers
    shear: Annotated[float, Field(ge=0, lt=90)]  # degrees, along the rows
    flip: bool  # left to right, with probability 1/2
    elastic: NonNegativeFloat  # pixels, the standard deviation of a smooth random displacement
    elastic_sigma: PositiveFloat  # pixels, the smoothness; see src/data/augmentation.py
    # The last share of the epochs, in which the changes become weaker. Runs that were written
    # before there was this key had changes of one strength.
    anneal: Annotated[float, Field(ge=0, le=1)] = 0.0

    @property
    def chosen(self) -> list[str]:
        return [name for name in AUGMENTATIONS if getattr(self, name)]


AUGMENTATIONS = ("shift", "rotate", "scale", "shear", "flip", "elastic")
Data = Mnist | Torchvision | Digits | Toy | Synthetic | ImageFolder | Npz | Csv
Model = LogisticRegression | Mlp | Cnn
Optimizer = Sgd | Adam
Scheduler = NoScheduler | MultiStep | Cosine | Plateau | OneCycle


# A line of a batch script holds these, so they must not begin an option or another line.
Word = Annotated[str, _matching("[A-Za-z0-9][A-Za-z0-9_.,:=+@/-]*", "a name")]
Line = Annotated[str, _matching(r"[^\n\r]+", "a line of a shell script")]
Address = Annotated[str, _matching(r"(ray://)?[A-Za-z0-9_.:\[\]-]+", "HOST:PORT")]


class Execution(Section):
    """Where the stacks of a sweep train: keys of `hydra.launcher` and `search`. Their defaults
    are in hydra_plugins/fused_launcher.py and in conf/search.yaml."""

    executor: Literal["local", "slurm", "ray"] | None  # None: in the process of the sweep
    slots: Annotated[int, Field(gt=0, le=10_000)] | None  # stacks that train at the same time
    # What each stack gets.
    gpus: Annotated[int, Field(ge=0, le=64)] | None
    cpus: Annotated[int, Field(gt=0, le=1024)] | None
    memory: Annotated[int, Field(gt=0, le=100_000)] | None  # GB
    minutes: Annotated[int, Field(gt=0, le=100_000)] | None
    partition: Word | None
    account: Word | None
    setup: list[Line] | None
    address: Address | None

    @property
    def ray_address(self) -> str | None:
        """The cluster of executor=ray. None: a Ray that starts and ends with the command."""
        address = self.address or os.environ.get("RAY_ADDRESS")
        return None if address == "local" else address or None


class FusedLauncher(Execution):
    """The keys of hydra/launcher=fused, which hydra_plugins/fused_launcher.py describes."""

    max_trials: Annotated[int, Field(gt=0, le=10_000)] | None
    halving: Annotated[int, Field(ge=2, le=10_000)] | None
    wait: bool


class Search(Execution):
    """The keys `search.KEY` of `python -m src.search`; their defaults are in conf/search.yaml."""

    trials: PositiveInt  # proposals of the sampler; with folds, each is so many runs
    batch: Annotated[int, Field(gt=0, le=10_000)]
    sampler: Literal["tpe", "random"]
    seed: Seed
    folds: Folds | None
    halving: Annotated[int, Field(ge=2)] | None
    folder: str | None  # None: a folder in searches/, named after the space


# Keys that are younger than the hashes of some runs, and the value that stands for their absence.
YOUNGER: tuple[tuple[str, str, float | None], ...] = (
    ("trainer", "class_weights", None), ("data", "sampler", None), ("data", "folds", None),
    ("data", "fold", None), ("data", "group", None), ("model", "noise", 0.0),
    ("augmentation", "anneal", 0.0),
)  # fmt: skip


# Keys that do not change the training, with the values of a run that has none of them.
UNTRAINED: dict[str, Any] = {"resume": None, "name": None, "tags": []}


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
    # Runs that were written before there were these keys had neither.
    start_from: Annotated[str, AfterValidator(_check_run)] | None = None
    freeze: Layers = []
    # Runs that were written before there were these keys had none.
    name: Label | None = None
    tags: Tags = []

    def to_primitives(self) -> dict[str, Any]:
        """Nested dicts, lists and scalars, for a checkpoint, a YAML or a JSON file."""
        return self.model_dump(mode="json")

    def unlabelled(self) -> "Config":
        """Without what does not change the training: two runs that train the same are equal."""
        return self.model_copy(update=UNTRAINED)

    def identity_values(self) -> dict[str, Any]:
        """All values except data.root, checkpoint.keep and those of UNTRAINED. They identify a run.
        Keys of YOUNGER are left out where they have the value of old runs."""
        values = self.to_primitives()
        del values["data"]["root"], values["checkpoint"]["keep"]
        for key in UNTRAINED:
            del values[key]
        for key in ("start_from", "freeze"):  # old runs had neither
            if not values[key]:
                del values[key]
        for section, key, absent in YOUNGER:
            if values[section].get(key, absent) == absent:
                values[section].pop(key, None)
        return values

    def hash(self) -> str:
        """12 hex digits over the identity values."""
        text = json.dumps(self.identity_values(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def joint_hash(configs: Sequence[Config]) -> str:
    """12 hex digits over several configurations in their order."""
    text = "".join(config.hash() for config in configs)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def measure_of(monitor: str) -> str | None:
    """The name in MEASURES of a monitored metric; None for loss and accuracy."""
    name = monitor.rpartition("/")[2]
    return name if name in MEASURES else None


def is_fraction(metric: str) -> bool:
    """Whether a metric, such as `val/acc` or `acc`, lies between 0 and 1."""
    return metric.rpartition("/")[2] in ("acc", *MEASURES) and not metric.endswith("brier")


def higher_is_better(metric: str) -> bool:
    """Of all other monitors, lower is better."""
    return is_fraction(metric) and not metric.endswith("ece")


def sort_key(monitor: str, value: float | None) -> float:
    """A number to sort by; smaller is better. NaN, infinities and None sort last."""
    if value is None or not math.isfinite(value):
        return math.inf
    return -value if higher_is_better(monitor) else value


def with_batch_size(config: Config, size: int) -> Config:
    data = config.data.model_copy(update={"batch_size": size})
    return config.model_copy(update={"data": data})
