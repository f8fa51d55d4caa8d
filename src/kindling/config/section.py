"""Sections of a configuration and their numbers: what a new section is made of.

An extension writes its sections with these, before config/schema.py joins all sections. A key with
a default is younger than some runs, as in config/schema.py.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr

from kindling.config.measures import CLASSIFICATION
from kindling.system.errors import InputError

# Every number has a lower and an upper limit. A value beyond them is a typing mistake or comes from
# a stranger's file, and would cost hours or all memory before it failed.
MOST = 2**31 - 1
LEAST_FLOAT, MOST_FLOAT = 1e-12, 1e12  # float32 holds their squares


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


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    def __hash__(self) -> int:  # pydantic's fails for lists
        return hash(self.model_dump_json())


class InMemory(Section):
    """A section of what a program of the user holds. That goes with the configuration wherever
    something trains, also to other processes, and never into a file: a folder cannot name it."""

    argument: ClassVar[str]  # of fit and sweep
    _held: Any = PrivateAttr(default=None)

    @property
    def held(self) -> Any:
        """Raises InputError if there is nothing, as in a configuration that comes from a file."""
        if self._held is None:
            raise InputError(self.only_from_python)
        return self._held

    @property
    def only_from_python(self) -> str:
        call = f"kindling.fit(config, {self.argument}) or kindling.sweep(…, {self.argument})"
        chosen = f"{self.argument.partition('=')[0]}={self.name}"  # type: ignore[attr-defined]
        return f"{chosen}: is in the memory of a Python program; there, call {call}"

    def holding(self, held: object, **values: Any) -> Self:
        """The section with these values, and what it is about."""
        section = self.model_copy(update=values)
        section._held = held
        return section


def names_of(section: type[Section]) -> tuple[str, ...]:
    """What the key `name` of a section may be."""
    return get_args(section.model_fields["name"].annotation)


# How a picture becomes features of a model, by the data that it was trained on: the picture is
# resized; or the drawing in it is found, scaled and centred, by an extension.
WHOLE, DRAWING = "whole", "drawing"


class DataSection(Section):
    tasks: ClassVar[Sequence[str]] = (CLASSIFICATION,)  # that the labels are of
    pictures: ClassVar[str | None] = WHOLE  # None: the samples are not pictures
    known_shape: ClassVar[list[int] | None] = None  # of a sample, before the data are read
    root: str | None  # None: $DATA_ROOT if it is set, else the folder "data"
    batch_size: PositiveInt | Literal["auto"]  # per device
    val_fraction: Fraction | None  # None: validation uses the whole training set
    split_seed: Seed
    folds: Folds | None = None
    fold: Annotated[int, Field(ge=0, lt=1000)] | None = None
    drop_last: bool
    order: Literal["seeded", "stream"]  # see data/loader.py
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


class LightningDataSection(Section):
    """Of a LightningDataModule: a section has the keys that its builder reads, and no others."""

    pictures: ClassVar[str | None] = None
    known_shape: ClassVar[list[int] | None] = None

    def __getattr__(self, name: str) -> Any:
        """For Kindling itself, a key of other data sections is None here."""
        if name == "holds_out_validation" or name in DataSection.model_fields:
            return None
        return super().__getattr__(name)  # type: ignore[misc]  # pydantic's


class ModelSection(Section):
    words: ClassVar[str | None] = None  # as people write it; None: as `name`
    # The key of the sizes of the hidden layers, whether models of a stack may differ in them, and
    # the keys that have one value, or one for each hidden layer.
    sizes_key: ClassVar[str | None] = None
    widths_differ_in_stacks: ClassVar[bool] = False
    keys_per_layer: ClassVar[tuple[str, ...]] = ()
    layer: ClassVar[str] = "layer"
    learns: ClassVar[Sequence[str] | None] = None  # tasks; None: all
    always_batch_norm: ClassVar[bool] = False  # whatever the keys say

    @property
    def sizes(self) -> list[int]:
        """The sizes of the hidden layers; none for a family that has no such list."""
        found = getattr(self, self.sizes_key) if self.sizes_key else []
        return found if isinstance(found, list) else []

    @property
    def typed_batch_norm(self) -> str | None:
        """What was typed for a batch norm, or None."""
        if self.always_batch_norm:
            return f"model={self.name}"  # type: ignore[attr-defined]
        return "model.norm=batch" if getattr(self, "norm", None) == "batch" else None

    @property
    def in_stacks(self) -> dict[str, Any]:
        """The settings that the trials of a stack share: all, or all but the widths."""
        count = {str(self.sizes_key): len(self.sizes)} if self.widths_differ_in_stacks else {}
        return self.model_dump(mode="json") | count

    @classmethod
    def weights_between(cls, before: int, after: int, read: Callable[[str], Any]) -> int:
        """The weights of a hidden layer. `read` returns the unchecked value of a key."""
        del read
        return before * after


class OptimizerSection(Section):
    name: str
    lr: PositiveFloat


class SchedulerSection(Section):
    name: str
    depends_on_max_epochs: ClassVar[bool] = True  # whether trainer.max_epochs changes the rates
    warmup_epochs: NonNegativeFloat
