"""A trained regression in use: numbers in their own unit, how well they agree with the true ones,
and an interval around each.

The interval is that of split conformal prediction: its half width is a quantile of the absolute
errors on the held-out validation samples. If new samples are drawn as those were, LEVEL percent of
the intervals or more have the true number (Lei, G'Sell, Rinaldo, Tibshirani and Wasserman,
Distribution-Free Predictive Inference for Regression, 2018). With task.loss=quantile, each sample
has quantiles of its own, and both ends of the interval are moved by one margin (Romano, Patterson
and Candès, Conformalized Quantile Regression, 2019).
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kindling.config.measures import LEVEL
from kindling.config.written import printable
from kindling.data.sources.source import Source, Split
from kindling.data.targets import spread
from kindling.inference.logits import answer
from kindling.inference.samples import as_split, held_out_parts, source_of
from kindling.inference.tables import AnyEvaluation
from kindling.records.loading import Trained
from kindling.records.outcome import UNKNOWN, format_metric
from kindling.system.errors import InputError
from kindling.tasks.regression import r2


@dataclass(frozen=True)
class Interval:
    """How far the interval of each number goes beyond what the model says, in the unit of the
    number, and the number of validation samples that it follows from. Of quantiles, negative
    margins make the interval narrower."""

    margins: tuple[float, ...]
    samples: int

    def around(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """The ends (N, labels); those of an interval that would end before it begins are both in
        its middle."""
        margins, middle = low.new_tensor(self.margins), (low + high) / 2
        return torch.minimum(low - margins, middle), torch.maximum(high + margins, middle)


def interval_of(
    trained: Trained, source: Source | None = None, held_out: Split | None = None
) -> Interval:
    """`source` is the data set of the training, by default opened again. `held_out` are samples in
    place of those that it held out. Raises InputError without any, with too few of them, and if the
    data set cannot be opened."""
    if held_out is None:
        if not trained.config.data.holds_out_validation:
            raise InputError(
                f"{trained.checkpoint}: was trained with data.val_fraction=null, without held-out "
                "samples; train with data.val_fraction=0.2 to have an interval"
            )
        parts = held_out_parts(trained, source or source_of(trained))
    else:
        parts = [(trained, held_out)]
    found = []
    for model, split in parts:
        true, (low, high) = trained.restored(split.labels), answer(model, split).ends
        found.append(torch.maximum(low - true, true - high))
    errors = torch.cat(found)
    return Interval(tuple(quantiles(errors, str(trained.checkpoint))), len(errors))


def quantiles(errors: Tensor, name: str) -> list[float]:
    """Of each column of n errors (n, outputs), the error of rank ceil((n + 1) LEVEL / 100). Raises
    InputError, which names `name`, if there are too few: the rank would be above n."""
    rank = -(-(len(errors) + 1) * LEVEL // 100)
    if rank > len(errors):
        least = -(-LEVEL // (100 - LEVEL))
        raise InputError(
            f"{name}: has {len(errors)} held-out samples; an interval of {LEVEL}% needs {least}"
        )
    found: list[float] = errors.kthvalue(rank, 0).values.tolist()
    return found


# --- evaluation ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Number:
    """How well a number is predicted, and beside it how well the mean of its training samples is.
    `half_width`: of the interval, with quantiles the mean of all test samples. `coverage`: the
    share of test samples within the interval. None: no interval is known."""

    name: str
    r2: float
    rmse: float
    mae: float
    mean_r2: float
    mean_rmse: float
    mean_mae: float
    half_width: float | None
    coverage: float | None


@dataclass(frozen=True, kw_only=True)
class NumbersEvaluation(AnyEvaluation):
    """A regression on a test set. All but `loss` and `score` are in the unit of the number."""

    score: float  # R² of all standardised numbers together, as in training
    numbers: tuple[Number, ...]
    predicted: Tensor = field(repr=False)  # (N, outputs)
    true: Tensor = field(repr=False)
    fitted_on: int | None  # validation samples that the interval follows from
    ends: tuple[Tensor, Tensor] | None = field(repr=False)  # of the intervals, (N, outputs)
    why_no_interval: str
    quantiles: bool  # whether each sample has an interval of its own width
    measured: ClassVar[str] = "R², errors and interval of each number"
    says: ClassVar[str] = "numbers"

    def to_primitives(self) -> dict[str, Any]:
        interval = {"level": LEVEL / 100, "fitted_on": self.fitted_on}
        return super().to_primitives() | {
            "samples": self.samples,
            "loss": self.loss,
            "r2": self.score,
            "numbers": [asdict(number) for number in self.numbers],
            "interval": None if self.fitted_on is None else interval,
            "why_no_interval": self.why_no_interval or None,
        }

    def summary(self) -> str:
        return (
            f"R² {format_metric('r2', self.score)} (always the mean: 0), "
            f"loss {format_metric('loss', self.loss)}"
        )

    def details(self) -> list[str]:
        if self.fitted_on is None:
            return [f"no interval: {self.why_no_interval}"]
        return [
            f"the {LEVEL}% interval is from {self.fitted_on:,} held-out validation samples, by "
            "split conformal prediction; within: the share of test samples in it"
            f"{'; ±: half of its mean width' if self.quantiles else ''}"
        ]

    def table(self) -> list[list[str]]:
        rows = [
            [
                printable(each.name),
                format_metric("r2", each.r2),
                *map(format_number, (each.rmse, each.mae, each.mean_rmse, each.mean_mae)),
                UNKNOWN if each.half_width is None else f"± {format_number(each.half_width)}",
                format_metric("acc", each.coverage),
            ]
            for each in self.numbers
        ]
        header = ["number", "R²", "RMSE", "MAE", "RMSE of the mean", "MAE of the mean"]
        return [[*header, f"{LEVEL}% interval", "within"], *rows]


def format_number(value: float) -> str:
    return f"{value:.5g}"


def evaluate(
    trained: Trained, source: Source, trained_on: Source | None = None
) -> NumbersEvaluation:
    """The evaluation on the test set of a source whose numbers are standardised as the model's.
    `trained_on` is the data set of the training, by default opened again for the interval. Raises
    InputError for outputs that are not finite."""
    found, labels = answer(trained, source.test), source.test.labels
    predicted, true, task = found.values, trained.restored(labels), trained.task
    total = float(task.scores(found.outputs.mT[None], labels[None]).sum())
    interval, why = None, ""
    try:
        interval = interval_of(trained, trained_on)
    except InputError as error:
        why = str(error).splitlines()[0].removeprefix(f"{trained.checkpoint}: ")
    assert trained.targets is not None
    mean = true.new_tensor(trained.targets.means).expand_as(true)
    columns = []
    for numbers in (predicted, mean):
        errors = (numbers - true).abs()
        columns += [r2(numbers, true), errors.square().mean(0).sqrt().tolist()]
        columns.append(errors.mean(0).tolist())
    widths: list[float | None] = [None] * len(source.labels)
    coverages, ends = widths, None
    if interval:
        ends = low, high = interval.around(*found.ends)
        widths = ((high - low) / 2).mean(0).tolist()
        coverages = ((low <= true) & (true <= high)).double().mean(0).tolist()
    rows = zip(source.labels, *columns, widths, coverages, strict=True)
    return NumbersEvaluation(
        checkpoint=trained.checkpoint,
        data=source.name,
        samples=len(labels),
        loss=task.loss(found.outputs, labels).item(),
        score=task.score(total, len(labels), spread(labels)),
        numbers=tuple(Number(*row) for row in rows),
        predicted=predicted,
        true=true,
        fitted_on=interval.samples if interval else None,
        ends=ends,
        why_no_interval=why,
        quantiles=task.quantiles,
        augmented_copies=trained.copies,
    )


# --- predictions ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class NumberGuess:
    """The numbers predicted for a sample, in their unit; where known, the ends of their intervals,
    and the standard deviation of what the members of a committee say."""

    values: Sequence[float]
    ends: Sequence[tuple[float, float]] | None = None
    spreads: Sequence[float] | None = None
    unlikeness: ClassVar = None

    def _told(self, labels: Sequence[str]) -> Iterator[tuple[str, str, float]]:
        """Of each number, the kinds of what is told, its name, and the values."""
        for place, name in enumerate(labels):
            yield "predicted", name, self.values[place]
            if self.ends:
                low, high = self.ends[place]
                yield from (("low", name, low), ("high", name, high))
            if self.spreads:
                yield "spread", name, self.spreads[place]

    def columns(self, labels: Sequence[str]) -> list[tuple[str, str]]:
        """The columns of a table for people: names and texts."""
        return [
            (name if kind == "predicted" else kind, format_number(value))
            for kind, name, value in self._told(labels)
        ]

    def cells(self, labels: Sequence[str]) -> dict[str, object]:
        """The columns of a CSV."""
        return {f"{kind}_{name}": value for kind, name, value in self._told(labels)}

    @staticmethod
    def truth(true: Sequence[float], _labels: Sequence[str]) -> str:
        return ", ".join(map(format_number, true))

    @staticmethod
    def summary(said: Sequence[Any], true: Sequence[Sequence[float]], labels: Sequence[str]) -> str:
        """How well the numbers of a file were predicted."""
        both = ([each.values for each in said], true)
        values, right = (torch.tensor(each, dtype=torch.float64) for each in both)
        scores, errors = r2(values, right), (values - right).square().mean(0)
        return "; ".join(
            f"{f'{name}: ' if labels[1:] else ''}R² {format_metric('r2', score)}, "
            f"RMSE {format_number(error)}"
            for name, score, error in zip(labels, scores, errors.sqrt().tolist(), strict=True)
        )


def guesses(
    trained: Trained, features: NDArray[Any], interval: Interval | None = None
) -> list[NumberGuess]:
    """For features (N, *shape) that fit the model. Raises InputError as `answer`."""
    found, none = answer(trained, as_split(trained, features)), [None] * len(features)
    ends: Sequence[Any] = none
    if interval:
        ends = torch.stack(interval.around(*found.ends), -1).tolist()
    spreads: Sequence[Any] = none if found.spread is None else found.spread.tolist()
    together = zip(found.values.tolist(), ends, spreads, strict=True)
    return [NumberGuess(values, own, spread) for values, own, spread in together]


def decide(answers: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N, outputs); of one number (N,), as in scikit-learn."""
    return answers[:, 0] if answers.shape[1] == 1 else answers
