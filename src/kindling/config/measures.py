"""The measures of a model on some data, without torch. A measure is one entry here, or one that an
extension registers."""

import math
import re
from typing import NamedTuple


class Measure(NamedTuple):
    words: str  # as people write it
    tally: str | None = None  # where its `Tally` lies; of loss and accuracy, which have none, None
    highest: float = 1.0  # the lowest value is 0
    higher_is_better: bool = True
    least_classes: int = 2
    with_fewer_classes: str = ""  # why there is nothing to measure


# Accuracy and loss are always computed; of the others, the one that checkpoint.monitor names. F1,
# precision, recall and AUROC are means over the classes.
MEASURES = {
    "acc": Measure("accuracy"),
    "loss": Measure("loss", highest=math.inf, higher_is_better=False),
    "f1": Measure("F1", "kindling.tasks.measures:F1"),
    "precision": Measure("precision", "kindling.tasks.measures:PRECISION"),
    "recall": Measure("recall", "kindling.tasks.measures:RECALL"),
    "auroc": Measure("AUROC", "kindling.tasks.measures:AUROC"),
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
}


# What LightningModules of extensions log, by its whole name: those whose names do not tell whether
# more is better.
LOGGED: dict[str, Measure] = {}
LOGGED_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_ ./@+:%-]{0,59}")  # no spreadsheet's formula


def tallied() -> list[str]:
    return [name for name, entry in MEASURES.items() if entry.tally]


def monitors() -> tuple[str, ...]:
    """What checkpoint.monitor may be."""
    return (*(f"val/{name}" for name in MEASURES), "train/acc", "train/loss", *LOGGED)


def known_entry(metric: str) -> Measure | None:
    """The entry of a metric such as `val/acc` or `acc`. A LightningModule may log `val_loss` or
    `val/acc_best`: the first word of the name that is a measure tells its direction."""
    name = metric.rpartition("/")[2]
    if found := LOGGED.get(metric) or MEASURES.get(name):
        return found
    words = (word.lower().replace("accuracy", "acc") for word in re.split(r"[^A-Za-z0-9]", metric))
    found = next((MEASURES[word] for word in words if word in MEASURES), None)
    return found and found._replace(words=name, tally=None)


def _entry(metric: str) -> Measure:
    name = metric.rpartition("/")[2]
    return known_entry(metric) or Measure(name, highest=math.inf, higher_is_better=False)


def measure_of(monitor: str) -> str | None:
    """The name of a monitored measure that is tallied; None for loss and accuracy."""
    name = monitor.rpartition("/")[2]
    return name if name in tallied() else None


def is_fraction(metric: str) -> bool:
    """Whether a metric lies between 0 and 1."""
    return _entry(metric).highest == 1


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
