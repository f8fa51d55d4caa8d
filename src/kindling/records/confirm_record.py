"""The record of a confirmation: the settings that train again, and their seeds. Nothing here
imports torch.

The record is the first file in the folder of a confirmation, and has everything that the
confirmation needs. The sweep may therefore be moved, or grow, before the confirmation ends.
"""

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, Field

from kindling.config.faults import find_faults
from kindling.config.schema import Config
from kindling.config.section import Folds, PositiveInt, Section, Seed
from kindling.config.written import flat
from kindling.records.config_files import yaml_text
from kindling.records.folder import CONFIRMATION, Run
from kindling.records.lookup import date_last
from kindling.records.outcome import LARGEST, REPLICATED, UNKNOWN, Outcome
from kindling.system.errors import parsing
from kindling.system.files import read_yaml, write_durably

MOST_SETTINGS = 50
MOST_SEEDS = 1000


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


class Trial(NamedTuple):
    """One setting with one seed, and with folds, on one fold."""

    run: Run
    config: Config
    overrides: Sequence[str]  # as typed


def trials(folder: Path, record: Record) -> list[list[Trial]]:
    """The trials of each setting, in the order of the seeds. Their folders are numbered."""
    folds: Sequence[int | None] = record.fold_of or [None] * len(record.seeds)
    numbers = count()
    return [
        [
            _trial(Run(folder / str(next(numbers))), chosen, seed, fold)
            for seed, fold in zip(record.seeds, folds, strict=True)
        ]
        for chosen in record.settings
    ]


def _trial(run: Run, chosen: Chosen, seed: int, fold: int | None) -> Trial:
    changed: dict[str, Any] = {"seed": seed}
    typed = [f"{key}={text}" for key, text in chosen.overrides.items()]
    if fold is not None:
        changed["data"] = chosen.config.data.model_copy(update={"fold": fold})
        typed.append(f"data.fold={fold}")
    return Trial(run, chosen.config.model_copy(update=changed), [*typed, f"seed={seed}"])


def value_of(trial: Outcome, metric: str | None = None) -> float | None:
    """A metric of a finished trial, by default its best monitored value; None for another trial."""
    return trial.metric(metric or trial.monitor) if trial.finished else None


def write_record(folder: Path, record: Record) -> None:
    write_durably(folder / CONFIRMATION, yaml_text(record.model_dump(mode="json")))
    date_last(folder / CONFIRMATION)


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
