"""The measures of a model on some data, without torch. A measure is one entry here, or one that an
extension registers."""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

CLASSIFICATION, REGRESSION, MULTILABEL = "classification", "regression", "multilabel"
# The score of each task: the measure that is always computed beside the loss.
SCORES = {CLASSIFICATION: "acc", REGRESSION: "r2", MULTILABEL: "acc"}
# The quantiles of each number that the loss `quantile` learns, in this order: the ends of an
# interval with LEVEL percent of the numbers, and between them the median, which is the prediction.
LEVEL = 90
QUANTILES = ((100 - LEVEL) / 200, 0.5, (100 + LEVEL) / 200)
LABELLED = (CLASSIFICATION, MULTILABEL)
# The losses of each task whose gradients are written out. Extensions register others.
LOSSES = {
    CLASSIFICATION: ("cross_entropy",),
    REGRESSION: ("squared_error", "huber", "quantile"),
    MULTILABEL: ("binary_cross_entropy",),
}


class Outputs(NamedTuple):
    """What the outputs are under a loss of a regression, of a name in OUTPUTS."""

    each: int = 1  # of each number
    numbers: str | None = None  # where the function lies that makes numbers of them
    standardised: bool = True  # whether the labels are


OUTPUTS = {"quantile": Outputs(len(QUANTILES))}


def outputs_of(loss: str) -> Outputs:
    return OUTPUTS.get(loss, Outputs())


class Measure(NamedTuple):
    words: str  # as people write it
    tally: str | None = None  # where its `Tally` lies; of loss and scores, which have none, None
    highest: float = 1.0
    higher_is_better: bool = True
    least_classes: int = 2
    with_fewer_classes: str = ""  # why there is nothing to measure
    lowest: float = 0.0
    tasks: Sequence[str] = (CLASSIFICATION,)


# Loss and score are always computed; of the others, the one that checkpoint.monitor names. F1,
# precision, recall and AUROC are means over the classes or labels.
MEASURES = {
    "acc": Measure("accuracy", tasks=LABELLED),
    "r2": Measure("R²", lowest=-math.inf, tasks=[REGRESSION]),
    "loss": Measure("loss", highest=math.inf, higher_is_better=False, tasks=[*SCORES]),
    "f1": Measure("F1", "kindling.tasks.measures:F1", tasks=LABELLED),
    "precision": Measure("precision", "kindling.tasks.measures:PRECISION", tasks=LABELLED),
    "recall": Measure("recall", "kindling.tasks.measures:RECALL", tasks=LABELLED),
    "auroc": Measure("AUROC", "kindling.tasks.measures:AUROC", tasks=LABELLED),
    "top5": Measure(
        "top-5 accuracy",
        "kindling.tasks.measures:TOP5",
        least_classes=6,
        with_fewer_classes="every label is among the five best",
    ),
    "brier": Measure(
        "Brier score", "kindling.tasks.measures:BRIER", highest=2.0, higher_is_better=False
    ),
    "ece": Measure("calibration error", "kindling.tasks.measures:ECE", higher_is_better=False),
    "rmse": Measure(
        "root mean squared error", "kindling.tasks.measures:RMSE", highest=math.inf,
        higher_is_better=False, tasks=[REGRESSION],
    ),
    "mae": Measure(
        "mean absolute error", "kindling.tasks.measures:MAE", highest=math.inf,
        higher_is_better=False, tasks=[REGRESSION],
    ),
}  # fmt: skip


# What LightningModules of extensions log, by its whole name: those whose names do not tell whether
# more is better.
LOGGED: dict[str, Measure] = {}
SYNONYMS = {"accuracy": "acc", "error": "loss", "mse": "rmse", "perplexity": "loss"}
LOGGED_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_ ./@+:%-]{0,59}")  # no spreadsheet's formula


def tallied() -> list[str]:
    return [name for name, entry in MEASURES.items() if entry.tally]


def monitors(task: str | None = None) -> tuple[str, ...]:
    """What checkpoint.monitor may be, for a task or for any."""
    names = [name for name, entry in MEASURES.items() if task is None or task in entry.tasks]
    trained = [name for name in names if name in SCORES.values()]
    own = (*(f"val/{name}" for name in names), *(f"train/{n}" for n in trained), "train/loss")
    return (*own, *LOGGED)


def is_logged(monitor: str) -> bool:
    """Whether no task of ours has this monitor: a LightningModule logs it."""
    return monitor in LOGGED or monitor not in monitors()


def known_entry(metric: str) -> Measure | None:
    """The entry of a metric such as `val/acc` or `acc`. A LightningModule may log `val_loss` or
    `val/acc_best`: the first word of the name that is a measure tells its direction."""
    name = metric.rpartition("/")[2]
    if found := LOGGED.get(metric) or MEASURES.get(name):
        return found
    split = (word.lower() for word in re.split(r"[^A-Za-z0-9]", metric))
    words = [SYNONYMS.get(word, word) for word in split]
    found = next((MEASURES[word] for word in words if word in MEASURES), None)
    return found and found._replace(words=name, tally=None)


def _entry(metric: str) -> Measure:
    name = metric.rpartition("/")[2]
    return known_entry(metric) or Measure(name, highest=math.inf, higher_is_better=False)


def measure_of(monitor: str) -> str | None:
    """The name of a monitored measure that is tallied; None for the loss and scores."""
    name = monitor.rpartition("/")[2]
    return name if name in tallied() else None


def bounds(metric: str) -> tuple[float, float]:
    """The lowest and the highest value that a metric can have."""
    entry = _entry(metric)
    return entry.lowest, entry.highest


def score_of(task: str | None) -> str:
    """The score of a task; runs from before there were tasks classify."""
    return SCORES.get(task or CLASSIFICATION, SCORES[CLASSIFICATION])


def is_fraction(metric: str) -> bool:
    """Whether a metric lies between 0 and 1."""
    return bounds(metric) == (0, 1)


def higher_is_better(metric: str) -> bool:
    return _entry(metric).higher_is_better


def in_words(metric: str) -> str:
    """The quantity of a metric as people write it, without the data: `accuracy` for `test/acc`."""
    return _entry(metric).words


def sort_key(monitor: str, value: float | None) -> float:
    """A number to sort by; smaller is better. NaN, infinities and None sort last."""
    if value is None or not math.isfinite(value):
        return math.inf
    return -value if higher_is_better(monitor) else value
