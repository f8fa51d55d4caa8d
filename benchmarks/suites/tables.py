"""Accuracy on small tables, cross-validated, beside scikit-learn's classifiers in the same folds.

All settings were chosen before the first measurement, and none was changed after it:

- Kindling has plain standardised numbers, and the recipe of data=csv without its early stopping,
  which would look at the fold that measures, and with a learning rate that falls over all epochs.
  The accuracy is that after the last epoch. The MLP has the 100 hidden units of scikit-learn's
  MLPClassifier.
- scikit-learn's classifiers have their defaults, with standardised features where the scale
  matters, and with 1,000 iterations at most, so that they converge.

Each round divides a table anew and trains with another seed. A run on a table needs a test set, so
2% of each class are held out and not used. The folds divide the rest.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import (
    load_breast_cancer,
    load_digits,
    load_iris,
    load_wine,
    make_classification,
)
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from tabulate import tabulate
from tqdm import tqdm

from benchmarks.environment import describe_environment, environment
from benchmarks.measure import quiet
from benchmarks.settings import Settings
from kindling.config import schema
from kindling.data.sources.folds import training_and_validation
from kindling.data.sources.source import Split, split_off_test
from kindling.records.confidence import t_interval
from kindling.records.config_files import new_files
from kindling.records.folder import Run
from kindling.records.sweep_folder import Sweep
from kindling.sweeps.command_line import check_command_line
from kindling.sweeps.trials import train_trials
from kindling.system.files import write_into_folder, write_together

Features = NDArray[np.float64]  # (N, columns)
Labels = NDArray[np.int64]  # (N,), 0, 1, …

FOLDS = 5
RECIPE = (
    "data=csv", "data.target=class", "data.encode=onehot", "data.fill=median",
    "data.test_fraction=0.02", f"data.folds={FOLDS}", f"data.fold=range({FOLDS})", "trainer=cpu",
    "trainer.max_epochs=50", "trainer.early_stopping_patience=null", "scheduler=cosine",
)  # fmt: skip
MLP = "Kindling, MLP of 100 units"
OURS = {
    MLP: ("model=mlp", "model.hidden_sizes=100"),
    "Kindling, logistic regression": ("model=logistic_regression",),
}
OTHERS: Mapping[str, Callable[[int], Any]] = {  # from a seed to a classifier
    "LogisticRegression": lambda _: make_pipeline(
        StandardScaler(), LogisticRegression(max_iter=1000)
    ),
    "SVC, RBF kernel": lambda _: make_pipeline(StandardScaler(), SVC()),
    "MLPClassifier, 100 units": lambda seed: make_pipeline(
        StandardScaler(), MLPClassifier(max_iter=1000, random_state=seed)
    ),
    "RandomForestClassifier": lambda seed: RandomForestClassifier(random_state=seed),
    "HistGradientBoostingClassifier": lambda seed: HistGradientBoostingClassifier(
        random_state=seed
    ),
}


def different_scales() -> tuple[Features, Labels]:
    """2,000 random samples of three classes. Each of the eight columns has another scale, from
    thousandths to ten thousands. A twentieth of the samples has a random class."""
    features, labels = make_classification(
        2000, 8, n_informative=5, n_redundant=1, n_classes=3, flip_y=0.05, random_state=0
    )
    return features * np.logspace(-3, 4, 8), labels


TABLES: Mapping[str, Callable[[], tuple[Features, Labels]]] = {
    "iris": partial(load_iris, return_X_y=True),
    "wine": partial(load_wine, return_X_y=True),
    "breast cancer": partial(load_breast_cancer, return_X_y=True),
    "digits": partial(load_digits, return_X_y=True),
    "synthetic": different_scales,
}


class Scores(NamedTuple):
    """Of one classifier on one table, for each fold of each round."""

    accuracies: Sequence[float]
    seconds: Sequence[float]  # of training


class Cell(NamedTuple):
    """What the suite reports of one classifier on one table."""

    mean: float
    half: float  # of the interval around the mean
    difference: tuple[float, float]  # the interval of accuracy minus that of MLP, in the same folds
    seconds: float  # of a training, the median

    @property
    def mark(self) -> str:
        low, high = self.difference
        return "+" if low > 0 else "-" if high < 0 else ""

    def __str__(self) -> str:
        return f"{100 * self.mean:.1f} ± {100 * self.half:.1f}{self.mark:1}"


def run(settings: Settings) -> tuple[str, str]:
    cells: dict[str, dict[str, Cell]] = {name: {} for name in (*OURS, *OTHERS)}
    jobs = tqdm(TABLES.items(), unit="table", leave=False, disable=None)
    for table, load in jobs:
        jobs.set_description(table)
        for name, cell in compare(*load(), settings.rounds).items():
            cells[name][table] = cell
    around = environment()
    shown = tabulate(
        [[name, *row.values()] for name, row in cells.items()], ["accuracy in %", *TABLES]
    )
    times = tabulate(
        [[name, *(cell.seconds for cell in row.values())] for name, row in cells.items()],
        ["seconds of a training", *TABLES], floatfmt=".3f",
    )  # fmt: skip
    note = (
        f"{FOLDS} folds, {settings.rounds} rounds; 95% intervals, corrected for folds\n"
        f"+ or -: higher or lower than '{MLP}' in the same folds; the interval of the difference "
        "excludes 0"
    )
    rows = {
        name: {table: cell._asdict() for table, cell in row.items()} for name, row in cells.items()
    }
    line = json.dumps({"suite": settings.suite, "rounds": settings.rounds, "rows": rows, **around})
    return f"{note}\n\n{shown}\n\n{times}\n\n{describe_environment(around)}", line


def compare(features: Features, labels: Labels, rounds: int) -> dict[str, Cell]:
    """All classifiers on one table."""
    with tempfile.TemporaryDirectory() as name, quiet():
        folder = Path(name)
        write_table(folder / "table.csv", features, labels)
        configs = {ours: sweep(folder, *chosen, rounds=rounds) for ours, chosen in OURS.items()}
        scores = {
            ours: trained(points, folder / str(number))
            for number, (ours, points) in enumerate(configs.items())
        }
        scores |= {
            other: fitted(build, features, labels, configs[MLP]) for other, build in OTHERS.items()
        }
    first = scores[MLP].accuracies
    return {name: _cell(found, first) for name, found in scores.items()}


def write_table(path: Path, features: Features, labels: Labels) -> None:
    """Writes every digit, so that a reader gets the same numbers."""
    names = [f"x{number}" for number in range(features.shape[1])]
    rows = zip(features.tolist(), labels.tolist(), strict=True)
    lines = (",".join(map(repr, [*row, label])) for row, label in rows)
    path.write_text("\n".join([",".join([*names, "class"]), *lines]) + "\n")


def sweep(folder: Path, *overrides: str, rounds: int) -> Sequence[schema.Config]:
    """The trials of a cross-validated sweep over the table in a folder. A round has its own seed
    and its own folds."""
    each = f"zip(range({rounds}))"
    command = check_command_line(
        [
            "-m", "hydra/launcher=fused", *RECIPE, *overrides, f"seed={each}",
            f"data.split_seed={each}", f"data.path={folder / 'table.csv'}",
            f"hydra.sweep.dir={folder / 'sweep'}",
        ]
    )  # fmt: skip
    return command.points


def trained(configs: Sequence[schema.Config], folder: Path) -> Scores:
    """Trains the trials as the launcher does. Of each, the accuracy after the last epoch."""
    runs = [Run(folder / str(number)) for number in range(len(configs))]
    files = (
        new_files(run, config.to_primitives()) for run, config in zip(runs, configs, strict=True)
    )
    write_together(write_into_folder, files)
    train_trials(configs, [run.folder for run in runs], Sweep(folder), None)
    results = [run.result for run in runs]
    return Scores(
        [result["last"]["val/acc"] or 0.0 for result in results],
        [result["seconds"]["fit"] for result in results],
    )


def fitted(
    build: Callable[[int], Any],
    features: Features,
    labels: Labels,
    configs: Sequence[schema.Config],
) -> Scores:
    """Fits a classifier of scikit-learn on the rows that each trial trains on, with its seed."""
    accuracies, seconds = [], []
    for config in configs:
        training, validation = rows_of(config.data, labels)
        classifier = build(config.seed)
        began = time.perf_counter()
        classifier.fit(features[training], labels[training])
        seconds.append(time.perf_counter() - began)
        accuracies.append(float(classifier.score(features[validation], labels[validation])))
    return Scores(accuracies, seconds)


def rows_of(config: schema.Data, labels: Labels) -> tuple[Labels, Labels]:
    """The rows of a table, (n,) and (m,), that a trial trains on and is validated on."""
    assert isinstance(config, schema.Csv)
    rows = Split(torch.arange(len(labels)), torch.from_numpy(labels))
    train, _ = split_off_test(rows, config.test_fraction, config.split_seed)
    training, validation = training_and_validation(train, config)
    return training.features.numpy(), validation.features.numpy()


def _cell(scores: Scores, first: Sequence[float]) -> Cell:
    """The report of scores; `first` are the accuracies to compare with."""
    mean = statistics.mean(scores.accuracies)
    high = t_interval(scores.accuracies, FOLDS)[1]
    differences = [own - other for own, other in zip(scores.accuracies, first, strict=True)]
    difference = t_interval(differences, FOLDS)
    return Cell(mean, high - mean, difference, statistics.median(scores.seconds))
