"""What pictures show, without Matplotlib: samples with their means and intervals, and what a class
is called."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kindling.config.measures import is_fraction

MEAN = "mean and 95% interval"


def noun(labels: Sequence[str]) -> str:
    """What a class is called."""
    return "digit" if "".join(labels) == "0123456789" else "class"


@dataclass(frozen=True)
class Sample:
    """A row of the picture. Without values it has neither a mean nor an interval."""

    label: str
    values: Sequence[float]
    mean: float | None
    interval: tuple[float, float] | None
    promised: float | None = None  # drawn as a mark


def interval_data(
    samples: Sequence[Sample], quantity: str, value: str, mean: str = MEAN,
    ends: tuple[float, float] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """What charts.js draws in place of the picture of the same arguments, as primitives."""
    names = {"name": quantity, "fraction": is_fraction(quantity), "value": value, "mean": mean}
    return {**names, "ends": ends, "samples": [asdict(sample) for sample in samples]}
