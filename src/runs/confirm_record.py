"""The record of a confirmation: the settings that train again, and their seeds. Nothing here
imports torch.

The record is the first file in the folder of a confirmation, and has everything that the
confirmation needs. The sweep may therefore be moved, or grow, before the confirmation ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from src.config.faults import find_faults
from src.config.schema import Config, Folds, PositiveInt, Section, Seed
from src.config.written import flat
from src.runs.config_files import yaml_text
from src.runs.folder import CONFIRMATION, Run
from src.runs.outcome import REPLICATED, UNKNOWN, Outcome
from src.system.errors import parsing
from src.system.files import read_yaml, write_durably

MOST_SETTINGS = 50
MOST_SEEDS = 1000
LARGEST = 1e100  # of a value; the squares of larger ones, of a damaged file, have no float


def _different(seeds: list[int]) -> list[int]:
    if len(set(seeds)) < len(seeds):
        raise ValueError("a seed is there twice")
    return seeds


class Chosen(Section):
    """A setting that was chosen."""

    config: Config  # with any seed, and with folds, with any fold
    overrides: dict[str, str]  # the keys that the sweep set, as typed, without those that repeat
    promised: Annotated[float, Field(ge=-LARGEST, le=LARGEST)]  # mean over the sweep's trials
    trials: Annotated[list[int], Field(min_length=1)]  # the trials of the sweep with this mean


class Record(Section):
    """The settings, from the best one of the sweep on, and the fresh seeds of each."""

    sweep: str  # its folder, as typed
    found: PositiveInt  # the number of settings in the sweep
    keys: list[str]  # those in which the sweep's settings differ
    seeds: Annotated[
        list[Seed], Field(min_length=2, max_length=MOST_SEEDS), AfterValidator(_different)
    ]
    settings: Annotated[list[Chosen], Field(min_length=1, max_length=MOST_SETTINGS)]
    # The seeds take turns on so many folds. None: they have the same validation samples.
    folds: Folds | None = None

    @property
    def fold_of(self) -> list[int]:
        """The fold of each seed; without folds, none."""
        return [] if self.folds is None else [n % self.folds for n in range(len(self.seeds))]

    @property
    def repeated(self) -> Sequence[str]:
        """The keys in which the trials of a setting differ."""
        return ("seed",) if self.folds is None else REPLICATED

    @property
    def monitor(self) -> str:
        return self.settings[0].config.checkpoint.monitor

    @property
    def plan(self) -> dict[str, Any]:
        """What decides how the confirmation trains, and what it compares: all but `sweep`."""
        return self.model_dump(exclude={"sweep"})

    def values(self, chosen: Chosen) -> dict[str, str]:
        """What a setting has in place of `keys`."""
        known = {**dict(flat(chosen.config.identity_values())), **chosen.overrides}
        return {key: known.get(key, UNKNOWN) for key in self.keys}


@dataclass(frozen=True)
class Trial:
    """One setting with one seed, and with folds, on one fold."""

    run: Run
    config: Config
    overrides: Sequence[str]  # as typed


def trials(folder: Path, record: Record) -> list[list[Trial]]:
    """The trials of each setting, in the order of the seeds. Their folders are numbered."""
    return [
        [
            _trial(Run(folder / str(place * len(record.seeds) + number)), record, chosen, number)
            for number in range(len(record.seeds))
        ]
        for place, chosen in enumerate(record.settings)
    ]


def _trial(run: Run, record: Record, chosen: Chosen, number: int) -> Trial:
    seed, config = record.seeds[number], chosen.config
    changed: dict[str, Any] = {"seed": seed}
    own = [f"seed={seed}"]
    if record.folds is not None:
        fold = record.fold_of[number]
        changed["data"] = config.data.model_copy(update={"fold": fold})
        own = [f"data.fold={fold}", *own]
    typed = [f"{key}={text}" for key, text in chosen.overrides.items()]
    return Trial(run, config.model_copy(update=changed), [*typed, *own])


def value_of(trial: Outcome, metric: str | None = None) -> float | None:
    """A metric of a finished trial, by default its best monitored value; None for another trial."""
    value = trial.metric(metric or trial.monitor) if trial.finished else None
    return value if value is not None and abs(value) <= LARGEST else None


def write_record(folder: Path, record: Record) -> None:
    write_durably(folder / CONFIRMATION, yaml_text(record.model_dump(mode="json")))


def read_record(folder: Path) -> Record:
    """Raises InputError for any other file."""
    file = folder / CONFIRMATION
    values = read_yaml(file)
    with parsing(f"{file}: is not the record of a confirmation"):
        record = Record.model_validate(values)
        if {chosen.config.checkpoint.monitor for chosen in record.settings} != {record.monitor}:
            raise ValueError("its settings have different checkpoint.monitor")
        if len(record.seeds) < (record.folds or 0):
            raise ValueError(f"it has {len(record.seeds)} seeds for {record.folds} folds")
        for chosen in record.settings:
            _, faults = find_faults(chosen.config.to_primitives())
            if faults:
                raise ValueError(faults[0])
            if record.folds not in (None, chosen.config.data.folds):
                raise ValueError(f"a setting has data.folds={chosen.config.data.folds}")
            for key in record.repeated:
                if key in chosen.overrides:
                    raise ValueError(f"it has the override {key}")
    return record
