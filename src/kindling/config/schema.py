"""Every section and key of a configuration, with its type and range.

The default values are in conf/. A key with a default here is younger than some runs: the default
is what these runs have. Rules that look at several keys are in config/rules.py. To add
a model, an optimizer or a data set, write its section here and add it to the union of its kind.
Nothing in config/ imports torch, so that a wrong key is reported within a second.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from kindling.config import registry
from kindling.config.closed_form import has_closed_form
from kindling.config.executors import EXECUTORS
from kindling.config.measures import (
    CLASSIFICATION,
    LOGGED_NAME,
    LOSSES,
    MULTILABEL,
    REGRESSION,
    monitors,
    outputs_of,
)
from kindling.config.section import (
    DRAWING,
    DataSection,
    Factor,
    Folds,
    Fraction,
    InMemory,
    ModelSection,
    NonNegativeFloat,
    NonNegativeInt,
    OptimizerSection,
    PositiveFloat,
    PositiveInt,
    Probability,
    SchedulerSection,
    Section,
    Seed,
    names_of,
)  # fmt: skip
from kindling.config.written import column_name
from kindling.system.extras import LOGGERS

GROUPS = (
    "task", "data", "augmentation", "model", "optimizer", "scheduler", "trainer", "logger",
    "experiment",
)  # fmt: skip
NO_DEFAULT = "has no default"
TARGET = "data.target"  # one text, or a list of texts
LATEST = "latest"  # in place of a folder: the newest one
MAX_EPOCHS = 10**6  # also the largest number of rows of a history
MOST_LAYERS = 256
MOST_MILESTONES = 100
LIMITS = ("limit_train_batches", "limit_val_batches", "limit_test_batches")
MOST_CLASSES = 2**20
MOST_TARGETS = 1000  # columns
MOST_POINTS = 10_000  # of a sweep: all are composed and checked before the first trains


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


def _must(be: str, holds: Callable[[Any], object], when: Any = AfterValidator) -> Any:
    """Refuses a value for which `holds` does not hold: it must BE. {} in BE is the value."""

    def check(value: Any) -> Any:
        if not holds(value):
            raise ValueError(f"must {be.format(value)}")
        return value

    return when(check)


def _matching(pattern: str, allowed: str) -> Any:
    return _must(f"be {allowed}", lambda text: len(text) <= 1000 and re.fullmatch(pattern, text))


def _brought(kind: str) -> Any:
    """The names that extensions bring."""
    if found := registry.names(kind):
        return Literal[*found]
    why = "not be {}: no installed extension brings a name of this kind"
    return Annotated[str, _must(why, lambda _: False)]


if TYPE_CHECKING:  # mypy knows no values that are computed
    Monitor = str
    ExecutorName = str
    ClassificationLoss = str
    RegressionLoss = str
    MultilabelLoss = str
    CallbackName = str
    LoggerName = str
    AugmentationName = str
else:
    registry.load_extensions()
    ExecutorName = Literal[*EXECUTORS]
    Monitor = Literal[monitors()]
    if registry.LIGHTNING:  # such a module may log under any name; config/rules.py checks it
        _logged = Field(pattern=f"^{LOGGED_NAME.pattern}$", examples=["val_loss"])
        Monitor = Monitor | Annotated[str, _logged]
    ClassificationLoss, RegressionLoss, MultilabelLoss = (
        Literal[*LOSSES[task], *registry.names(f"{task}.loss")]
        for task in (CLASSIFICATION, REGRESSION, MULTILABEL)
    )
    CallbackName, LoggerName, AugmentationName = map(
        _brought, ("callback", "logger", "augmentation")
    )


Duration = Annotated[
    str,
    _matching("[0-9]{2}(:[0-9]{2}){3}", "DD:HH:MM:SS"),
    _must("be a second or more", lambda text: set(text) - set("0:")),
    Field(examples=["DD:HH:MM:SS"]),
]
Texts = Annotated[list[str], BeforeValidator(_as_texts)]
Named = Annotated[str, _matching("(?s).+", "a name"), BeforeValidator(_as_text)]
GroupLevel = Annotated[
    int,
    Field(ge=1, le=16),
    _must(
        "be the level of the folders that name the groups, counted from the folder of a class; "
        "type data.group=1",
        lambda level: type(level) is int and level >= 1,
        BeforeValidator,
    ),
]
Start = Annotated[
    str, _must(f"be a folder or a name; {LATEST} would soon be another run", LATEST.__ne__)
]
Sizes = Annotated[
    list[PositiveInt], Field(min_length=1, max_length=MOST_LAYERS), BeforeValidator(_as_list)
]
Layers = Annotated[
    list[Annotated[str, _matching(r"(?a)\w[\w.]*", "the name of a layer")]],
    Field(max_length=MOST_LAYERS),
    BeforeValidator(_as_texts),
]
# A name stands in place of a folder, so it has no slash and does not begin as an option.
Label = Annotated[
    str,
    _matching(r"(?a)\w[\w.+-]{0,63}", "1 to 64 letters, digits and _ . + -, no . + - at the start"),
    _must(
        "not be {}, which has a meaning in place of a folder", lambda t: t not in (LATEST, "auto")
    ),
    BeforeValidator(_as_text),
]
Targets = Annotated[
    list[Annotated[str, BeforeValidator(_as_text)]], Field(min_length=1, max_length=MOST_TARGETS)
]
Tags = Annotated[list[Label], Field(max_length=32), BeforeValidator(_as_texts)]


class _Task(Section):
    def outputs(self, labels: int) -> int:
        """The number of outputs of a model for so many classes or labels."""
        return labels


class Classification(_Task):
    name: Literal["classification"]
    loss: ClassificationLoss


class Regression(_Task):
    name: Literal["regression"]
    loss: RegressionLoss
    delta: PositiveFloat  # of huber; torch.nn.HuberLoss

    def outputs(self, labels: int) -> int:
        return labels * outputs_of(self.loss).each


class Multilabel(_Task):
    name: Literal["multilabel"]
    loss: MultilabelLoss


Task = Classification | Regression | Multilabel


class Mnist(DataSection):
    pictures: ClassVar = DRAWING
    name: Literal["mnist"]
    fallback: Literal["digits"] | None  # the data set to use where MNIST is not available


class Torchvision(DataSection):
    name: Literal["fashion_mnist", "kmnist", "cifar10", "cifar100"]


class Digits(DataSection):
    pictures: ClassVar = DRAWING
    name: Literal["digits"]


class Diabetes(DataSection):
    pictures: ClassVar = None
    known_shape: ClassVar = [10]
    tasks: ClassVar = (REGRESSION,)
    name: Literal["diabetes"]


class Toy(DataSection):
    pictures: ClassVar = None
    known_shape: ClassVar = [2]
    name: Literal["toy"]
    factor: PositiveInt


class Synthetic(DataSection):
    pictures: ClassVar = DRAWING
    name: Literal["synthetic"]
    samples: PositiveInt
    test_samples: PositiveInt
    shape: Annotated[
        list[PositiveInt], Field(min_length=1, max_length=8), BeforeValidator(_as_list)
    ]
    classes: Annotated[int, Field(ge=2, le=MOST_CLASSES)]


class _Files(DataSection):
    path: Annotated[str, _required("PATH")]
    test_fraction: Fraction  # of each class, if the files have no test set


class ImageFolder(_Files):
    name: Literal["image_folder"]
    # The level of the folders that name the groups; 1: those in the folders of the classes.
    group: GroupLevel | None = None
    size: Annotated[int, Field(gt=0, le=2**12)]  # pixels, width and height
    channels: Literal[1, 3]
    skip_broken: bool


class Npz(_Files):
    pictures: ClassVar = DRAWING
    tasks: ClassVar = (CLASSIFICATION, REGRESSION, MULTILABEL)
    name: Literal["npz"]
    group: Named | None = None  # an array
    # How x is read; see data/arrays.py. None: as before there was this key.
    kind: Literal["auto", "pictures", "numbers"] | None = None


class Arrays(InMemory, DataSection):
    """The arrays of data/sources/arrays.py."""

    argument = "data=(x, y)"
    pictures: ClassVar = DRAWING
    tasks: ClassVar = (CLASSIFICATION, REGRESSION, MULTILABEL)
    name: Literal["arrays"]
    kind: Literal["auto", "pictures", "numbers"] = "auto"
    test_fraction: Fraction = 0.2
    digest: Annotated[str, _matching("[0-9a-f]{12}", "12 hex digits")] | None = None


class Csv(_Files):
    pictures: ClassVar = None
    tasks: ClassVar = (CLASSIFICATION, REGRESSION, MULTILABEL)
    name: Literal["csv"]
    # A column; of several labels, and of a regression of several numbers, a list of columns.
    target: Annotated[str | Targets, _required("COLUMN")]
    val_path: str | None = None  # a table for validation
    group: Named | None = None  # a column
    weights: Named | None = None  # a column
    drop: Texts
    # Columns of categories or of numbers, whatever they look like.
    categories: Texts = Field(default=[])
    numbers: Texts = Field(default=[])
    encode: Literal["auto", "onehot"] | None  # what columns are taken for; see data/tables/
    fill: Literal["auto", "mean", "median", "most_frequent"] | None  # for empty cells
    # The texts that count as empty cells. None: columns are learnt as before there was this key.
    empty: Texts | None = None

    @field_validator("target", "group", "weights", "drop", "categories", "numbers")
    @classmethod
    def _as_in_tables(cls, value: str | list[str] | None) -> str | list[str] | None:
        if isinstance(value, list):
            return [*map(column_name, value)]
        return value and column_name(value)

    @property
    def targets(self) -> list[str]:
        return self.target if isinstance(self.target, list) else [self.target]


@has_closed_form
class LogisticRegression(ModelSection):
    name: Literal["logistic_regression"]


@has_closed_form
class Mlp(ModelSection):
    words, sizes_key, widths_differ_in_stacks = "MLP", "hidden_sizes", True
    keys_per_layer = ("dropout",)
    name: Literal["mlp"]
    hidden_sizes: Sizes
    activation: Literal["relu", "tanh", "gelu"]
    dropout: (
        Probability | Annotated[list[Probability], Field(max_length=MOST_LAYERS)]
    )  # one for all hidden layers, or one for each
    input_dropout: Probability
    noise: NonNegativeFloat = 0.0  # standard deviation
    norm: Literal["batch", "layer"] | None
    max_norm: PositiveFloat | None
    gradient_checkpointing: bool


class Cnn(ModelSection):
    words, sizes_key, layer = "CNN", "channels", "convolution"
    name: Literal["cnn"]
    channels: Sizes  # of each convolution
    kernel_size: Annotated[  # pixels
        int,
        Field(ge=1, le=31),
        _must("be odd, so that pictures keep their size", lambda size: size % 2),
    ]
    norm: Literal["batch", "layer"] | None
    dropout: Probability

    @classmethod
    def weights_between(cls, before: int, after: int, read: Callable[[str], Any]) -> int:
        size = read("model.kernel_size")
        return before * after * size**2 if type(size) is int else 0


class Ladder(ModelSection):
    words, sizes_key, always_batch_norm = "ladder network", "hidden_sizes", True
    learns = (CLASSIFICATION,)
    name: Literal["ladder"]
    hidden_sizes: Sizes
    noise: NonNegativeFloat  # standard deviation
    # Weights of the errors of the inputs and of each layer; the last one is that of all further.
    denoising: Annotated[list[NonNegativeFloat], Field(min_length=1, max_length=MOST_LAYERS + 2)]


class Own(InMemory, ModelSection):
    """The module of models/own.py."""

    argument = "model=module"
    name: Literal["own"]
    class_name: Annotated[str, _matching(r"[\w.<>]{1,300}", "the name of a class")] | None = None


class Sgd(OptimizerSection):
    name: Literal["sgd"]
    weight_decay: NonNegativeFloat
    momentum: Probability
    nesterov: bool


class Adam(OptimizerSection):
    name: Literal["adam", "adamw"]
    weight_decay: NonNegativeFloat


class NoScheduler(SchedulerSection):
    depends_on_max_epochs = False
    name: Literal["none"]


class MultiStep(SchedulerSection):
    depends_on_max_epochs = False
    name: Literal["multistep"]
    milestones: Annotated[list[PositiveInt], Field(max_length=MOST_MILESTONES)]
    # At most 10, so that gamma ** number_of_milestones stays finite.
    gamma: Annotated[PositiveFloat, Field(le=10)]


class Cosine(SchedulerSection):
    name: Literal["cosine"]
    eta_min: NonNegativeFloat


class Plateau(SchedulerSection):
    depends_on_max_epochs = False
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


Batches = PositiveInt | Annotated[float, Field(gt=0, le=1)]  # their number, or a share of all


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
    # Weights of the classes in the loss of training.
    class_weights: (
        Literal["balanced"]
        | Annotated[list[PositiveFloat], Field(min_length=2, max_length=MOST_CLASSES)]
        | None
    ) = None
    ema_decay: Fraction | None
    early_stopping_patience: PositiveInt | None
    deterministic: bool
    step: Literal["auto", "native", "closed_form", "vmap", "autograd", "lightning"]
    steps_per_call: PositiveInt | Literal["auto"]
    compile: bool
    cuda_graph: bool
    log_every_step: bool
    progress_bar: bool | Literal["auto"]
    profiler: Literal["simple", "pytorch"] | None
    fast_dev_run: bool | PositiveInt = False
    limit_train_batches: Batches | None = None
    limit_val_batches: Batches | None = None
    limit_test_batches: Batches | None = None
    val_check_interval: Batches | None = None
    overfit_batches: Batches | None = None
    detect_anomaly: bool = False
    min_epochs: Annotated[int, Field(gt=0, le=MAX_EPOCHS)] | None = None
    gradient_clip_algorithm: Literal["norm", "value"] = "norm"
    log_every_n_steps: PositiveInt | None = None

    @model_validator(mode="before")
    @classmethod
    def _short(cls, values: Any) -> Any:
        """`fast_dev_run=N` stands for an epoch of N batches."""
        count = values.get("fast_dev_run") if isinstance(values, dict) else None
        if type(count) not in (bool, int) or not count:
            return values
        limits = dict.fromkeys(LIMITS, int(count))
        return {**values, **limits, "max_epochs": 1, "min_epochs": None}


class Checkpoint(Section):
    every_n_epochs: PositiveInt | None
    every_n_steps: PositiveInt | None
    every_seconds: PositiveFloat | None
    monitor: Monitor
    mode: Literal["min", "max"]
    # The files that stay after the end: all; the best weights; in a sweep, all files of the best N
    # trials.
    keep: Literal["all", "best"] | PositiveInt = "all"


class Logger(Section):
    tensorboard: bool
    mlflow: bool
    wandb: bool
    project: Annotated[
        str,
        _must(
            "have 1 to 128 characters, none of / \\ # ? % :",  # W&B's own rule
            lambda text: 1 <= len(text) <= 128 and not set(text) & set("/\\#?%:"),
        ),
    ]
    mlflow_file: str | None  # None: mlflow.db in the run folder
    own: Annotated[list[LoggerName], BeforeValidator(_as_texts)] = Field(default=[])

    @property
    def chosen(self) -> list[str]:
        ours = [name for name in LOGGERS if getattr(self, name)]
        return [*ours, *dict.fromkeys(self.own)]


class Augmentation(Section):
    """The largest change of each kind: a sample draws uniformly from -value to value. 0 is off."""

    shift: NonNegativeFloat  # pixels, along each axis
    rotate: Annotated[float, Field(ge=0, le=180)]  # degrees
    scale: Probability  # a fraction; width and height draw separate numbers
    shear: Annotated[float, Field(ge=0, lt=90)]  # degrees, along the rows
    flip: bool  # left to right, with probability 1/2
    elastic: NonNegativeFloat  # pixels, the standard deviation of a smooth random displacement
    elastic_sigma: PositiveFloat  # pixels, the smoothness; see data/augmentation.py
    # The last share of the epochs, in which the changes become weaker.
    anneal: Annotated[float, Field(ge=0, le=1)] = 0.0
    own: Annotated[list[AugmentationName], BeforeValidator(_as_texts)] = Field(default=[])

    @property
    def chosen(self) -> list[str]:
        return [name for name in AUGMENTATIONS if getattr(self, name)]


AUGMENTATIONS = ("shift", "rotate", "scale", "shear", "flip", "elastic", "own")
Data = Mnist | Torchvision | Digits | Diabetes | Toy | Synthetic | ImageFolder | Npz | Arrays | Csv
Model = LogisticRegression | Mlp | Cnn | Ladder | Own
Optimizer = Sgd | Adam
Scheduler = NoScheduler | MultiStep | Cosine | Plateau | OneCycle
if not TYPE_CHECKING:
    Data, Model = registry.joined("data", Data), registry.joined("model", Model)
    Optimizer = registry.joined("optimizer", Optimizer)
    Scheduler = registry.joined("scheduler", Scheduler)
MODEL_SECTIONS: dict[str, type[ModelSection]] = {
    name: section for section in get_args(Model) for name in names_of(section)
}
DATA_SECTIONS: dict[str, type[Section]] = {
    name: section for section in get_args(Data) for name in names_of(section)
}


# A line of a batch script holds these, so they must not begin an option or another line.
Word = Annotated[str, _matching("[A-Za-z0-9][A-Za-z0-9_.,:=+@/-]*", "a name")]
Line = Annotated[str, _matching(r"[^\n\r]+", "a line of a shell script")]
Address = Annotated[str, _matching(r"(ray://)?[A-Za-z0-9_.:\[\]-]+", "HOST:PORT")]


class Execution(Section):
    """Where the stacks of a sweep train: keys of `hydra.launcher` and `search`. Their defaults
    are in hydra_plugins/fused_launcher.py and in conf/search.yaml."""

    executor: ExecutorName | None  # None: in the process of the sweep
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
YOUNGER: tuple[tuple[str, str, Any], ...] = (
    *(("trainer", key, None) for key in LIMITS), ("trainer", "fast_dev_run", False),
    ("trainer", "val_check_interval", None), ("trainer", "overfit_batches", None),
    ("trainer", "detect_anomaly", False), ("trainer", "min_epochs", None),
    ("trainer", "gradient_clip_algorithm", "norm"), ("trainer", "log_every_n_steps", None),
    ("trainer", "class_weights", None), ("data", "sampler", None), ("data", "folds", None),
    ("data", "fold", None), ("data", "group", None), ("data", "kind", None),
    ("data", "val_path", None), ("data", "weights", None), ("data", "categories", []),
    ("data", "numbers", []),
    ("model", "noise", 0.0), ("augmentation", "anneal", 0.0), ("augmentation", "own", []),
    ("logger", "own", []),
)  # fmt: skip


# Keys that do not change the training, with the values of a run that has none of them.
UNTRAINED: dict[str, Any] = {"resume": None, "name": None, "tags": []}


# Runs from before there were tasks.
OLD_TASK = Classification(name="classification", loss="cross_entropy")


class Config(Section):
    seed: Seed
    task: Annotated[Task, Field(discriminator="name")] = OLD_TASK
    data: Annotated[Data, Field(discriminator="name")]
    augmentation: Augmentation
    model: Annotated[Model, Field(discriminator="name")]
    optimizer: Annotated[Optimizer, Field(discriminator="name")]
    scheduler: Annotated[Scheduler, Field(discriminator="name")]
    trainer: Trainer
    checkpoint: Checkpoint
    logger: Logger
    resume: str | None  # "auto", or the folder of a run or sweep
    start_from: Start | None = None
    freeze: Layers = Field(default=[])
    callbacks: Annotated[list[CallbackName], BeforeValidator(_as_texts)] = Field(default=[])
    name: Label | None = None
    tags: Tags = Field(default=[])

    def read(self, key: str) -> Any:
        """The value of a dotted key; None if the choice of its group has no such key."""
        section, _, name = key.partition(".")
        return getattr(getattr(self, section), name, None) if name else getattr(self, section)

    @property
    def only_from_python(self) -> list[str]:
        """A line for each section that only a program can fill (InMemory)."""
        sections = [each for each in (self.data, self.model) if isinstance(each, InMemory)]
        return [section.only_from_python for section in sections]

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
        values["data"].pop("root", None)
        del values["checkpoint"]["keep"]
        for key in UNTRAINED:
            del values[key]
        for key in ("start_from", "freeze", "callbacks"):  # old runs had none
            if not values[key]:
                del values[key]
        if self.task == OLD_TASK:
            del values["task"]
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


def with_batch_size(config: Config, size: int) -> Config:
    data = config.data.model_copy(update={"batch_size": size})
    return config.model_copy(update={"data": data})
