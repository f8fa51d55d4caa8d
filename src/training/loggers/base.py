"""What every logger of a run has in common."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from lightning.pytorch.loggers import Logger

from src.config import schema
from src.config.schema import Config
from src.config.written import written
from src.runs.folder import Run, columns, is_sweep
from src.runs.labels import read_labels
from src.runs.outcome import all_metrics

Values = dict[str, bool | int | float | str]


def logged_names(values: Values) -> list[str]:
    """The columns of the history of a run with these hyperparameters, and its test metrics."""
    monitor = str(values["checkpoint.monitor"])
    return list(dict.fromkeys([*columns(monitor), *all_metrics(monitor)]))


def hyperparameters(config: Config) -> Values:
    """The keys of the experiment that are not null, by their paths, with lists as typed."""
    values = config.identity_values()
    del values["logger"]
    flat = {key: values.pop(key) for key in ("seed", "start_from", "freeze") if key in values} | {
        f"{name}.{key}": value for name, section in values.items() for key, value in section.items()
    }
    return {
        key: written(value) if isinstance(value, list) else value
        for key, value in flat.items()
        if value is not None
    }


class Tested(NamedTuple):
    """The result of the test. confusion[i, j] counts the samples of class i predicted as j."""

    metrics: dict[str, float]
    step: int
    confusion: np.ndarray
    labels: Sequence[str]


class RunLogger(Logger):
    """A Lightning Logger that holds each row of a run's history once, even after kills."""

    def __init__(self, config: schema.Logger, values: Values, run: Run, seconds: float) -> None:
        """`values`: hyperparameters. `seconds`: time trained before. May raise InputError."""
        above, place = run.folder.absolute().parts[-2:]  # DATE/TIME, or TIME/NUMBER
        self.labels = read_labels(run.folder)
        self.run_name = f"{above}/{place}"
        if name := self.labels.name:
            self.run_name = f"{name}/{place}" if is_sweep(run.folder.parent) else name

    @property
    def name(self) -> str:
        return self.run_name

    @property
    def version(self) -> None:
        return None

    def log_hyperparams(self, params: Any, *_: Any, **__: Any) -> None:
        """Does nothing: the constructor has logged them."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Logs a row of the history, or the metrics of the test."""
        raise NotImplementedError

    def log_test(self, tested: Tested) -> None:
        self.log_metrics(tested.metrics, tested.step)

    def finalize(self, status: str) -> None:
        """`status` is the status in result.json."""
        raise NotImplementedError
