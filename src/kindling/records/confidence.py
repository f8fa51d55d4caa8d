"""Intervals that cover a true mean as often as they say."""

import math
import statistics
from collections.abc import Hashable, Sequence

LEVEL = 0.95
TWO_SIDED = statistics.NormalDist().inv_cdf((1 + LEVEL) / 2)  # deviations of a normal distribution


def t_interval(
    values: Sequence[float],
    folds: int = 0,
    *,
    low: float = -math.inf,
    high: float = math.inf,
) -> tuple[float, float]:
    """The interval around the mean of two or more values that covers the true mean in LEVEL of all
    cases: Student's t with n - 1 degrees of freedom. It ends at the possible values `low`, `high`.

    `folds`: as in `standard_error`; the values are then one of each fold.
    """
    from scipy.special import stdtrit  # takes a tenth of a second

    quantile = float(stdtrit(len(values) - 1, (1 + LEVEL) / 2))
    mean = statistics.mean(values)  # exact, so that equal values have an interval without width
    half = quantile * standard_error(values, folds)
    # Values of a damaged file may lie outside of the bounds: an interval still has its mean in it.
    return min(mean, max(low, mean - half)), max(mean, min(high, mean + half))


def wilson(share: float, count: int) -> tuple[float, float]:
    """The interval around a share of `count` independent cases (Wilson, 1927)."""
    z = TWO_SIDED
    scale = 1 + z**2 / count
    middle = (share + z**2 / (2 * count)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    return max(0.0, middle - half), min(1.0, middle + half)


def standard_error(values: Sequence[float], folds: int = 0) -> float:
    """The standard error of the mean of two or more values.

    `folds` > 0: the values are those of the folds of a cross-validation. Its training sets share
    samples, so that its values vary less than they should. Their variance is therefore multiplied
    by 1/n + 1/(folds - 1) instead of 1/n (Nadeau & Bengio 2003, Machine Learning 52).
    """
    shared = 1 / (folds - 1) if folds else 0.0
    return statistics.stdev(values) * math.sqrt(1 / len(values) + shared)


def fold_means(values: Sequence[float], fold_of: Sequence[Hashable]) -> list[float]:
    """The mean of the values of each fold, in the order in which folds occur in `fold_of`, which
    has the fold of each value. NaN is left out; the mean of a fold without a value is NaN.

    Trials of a fold with different seeds have the same samples, so they are not independent: their
    mean is one value for `t_interval`. An interval from all values would be too narrow where the
    folds matter more than the seeds, and too wide where the seeds matter more.
    """
    known: dict[Hashable, list[float]] = {fold: [] for fold in fold_of}
    for value, fold in zip(values, fold_of, strict=True):
        known[fold] += [] if math.isnan(value) else [value]
    return [statistics.mean(of_fold) if of_fold else math.nan for of_fold in known.values()]
