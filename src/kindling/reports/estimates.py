"""Estimates from the values of some seeds: means with intervals, differences, chances to be best.

With a cross-validation, `fold_of` has the fold of each seed. A fold then counts as one value, the
mean over its seeds. The methods and their sources are described in docs/confirm.md.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from scipy import stats

from kindling.records.confidence import fold_means, standard_error, t_interval

RESAMPLES = 10_000  # of the seeds, for the chances


@dataclass(frozen=True)
class Estimate:
    """A mean with its interval. A mean needs a value, deviation and interval need two; else they
    are None."""

    count: int  # of the values, or of the folds with a value
    mean: float | None
    deviation: float | None  # of the sample, with count - 1 in the denominator
    interval: tuple[float, float] | None


def estimate(
    values: Sequence[float],
    low: float = -math.inf,
    high: float = math.inf,
    fold_of: Sequence[int] = (),
) -> Estimate:
    """The mean and Student's interval, which ends at the possible values `low` and `high`. NaN is
    left out. Equal values have an interval without width."""
    values = _units(values, fold_of)
    if len(values) < 2:
        return Estimate(len(values), values[0] if values else None, None, None)
    mean = statistics.mean(values)
    interval = t_interval(values, len(set(fold_of)), low=low, high=high)
    return Estimate(len(values), mean, statistics.stdev(values, mean), interval)


def _units(values: Sequence[float], fold_of: Sequence[int]) -> list[float]:
    """The values, or the means of the folds, without NaN."""
    units = fold_means(values, fold_of) if fold_of else values
    return [value for value in units if not math.isnan(value)]


@dataclass(frozen=True)
class Difference:
    """The mean of paired differences, and the p-value of Student's paired test, two-sided. The
    p-value is None for less than two pairs, 0 for equal differences other than 0."""

    estimate: Estimate
    p_value: float | None
    corrected: float | None = None  # the p-value, corrected for all pairs of samples


def differences_to_first(
    samples: Sequence[Sequence[float]], fold_of: Sequence[int] = ()
) -> list[Difference]:
    """The first sample minus each of the others. The values of different samples at the same place
    are pairs.

    The p-values are corrected for the number of all pairs of samples, because the caller may have
    looked at the values to decide which sample is the first.
    """
    pairs = [paired_difference(a, b, fold_of) for a, b in combinations(samples, 2)]
    corrected = holm([pair.p_value for pair in pairs])
    found = [replace(a, corrected=b) for a, b in zip(pairs, corrected, strict=True)]
    return found[: len(samples) - 1]  # combinations begin with those of the first


def paired_difference(
    first: Sequence[float], second: Sequence[float], fold_of: Sequence[int] = ()
) -> Difference:
    """Of `first` minus `second`, pair by pair. Pairs with a NaN are left out."""
    differences = [a - b for a, b in zip(first, second, strict=True)]
    found = estimate(differences, fold_of=fold_of)
    if found.mean is None or found.deviation is None:
        return Difference(found, None)
    if found.deviation == 0:
        return Difference(found, float(found.mean == 0))
    t = found.mean / standard_error(_units(differences, fold_of), len(set(fold_of)))
    return Difference(found, float(2 * stats.t.sf(abs(t), found.count - 1)))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """The p-values, corrected for their number by Holm's method. Unknown p-values stay unknown and
    are not counted."""
    known = [(value, place) for place, value in enumerate(p_values) if value is not None]
    corrected: list[float | None] = [None] * len(p_values)
    least = 0.0
    for rank, (value, place) in enumerate(sorted(known)):
        least = max(least, min(1.0, value * (len(known) - rank)))
        corrected[place] = least
    return corrected


def chances_to_be_best(values: np.ndarray, folds: bool = False) -> list[float | None]:
    """In how many of RESAMPLES bootstrap samples of the seeds each setting has the largest mean.

    `values` has the shape (seeds, settings); NaN where a seed has no value. All settings get the
    same seeds in a sample. Equal means share a sample. A sample without any value is left out; None
    if all are. The random numbers are the same in every call.

    `folds`: the values are the means of the folds of a cross-validation. The means of the samples
    are then stretched around the mean of all values, to the deviation of `standard_error`.
    """
    seeds = len(values)
    generator = np.random.default_rng(0)
    counts = generator.multinomial(seeds, np.full(seeds, 1 / seeds), RESAMPLES).astype(float)
    known = ~np.isnan(values)
    sizes = counts @ known
    means = np.full(sizes.shape, -np.inf)
    np.divide(counts @ np.where(known, values, 0), sizes, out=means, where=sizes > 0)
    if folds:  # the variance of a bootstrap mean is that of the values, times (n - 1) / n²
        stretch = math.sqrt((1 / seeds + 1 / (seeds - 1)) * seeds**2 / (seeds - 1))
        centre = np.where(known, values, 0).sum(0) / np.maximum(known.sum(0), 1)
        means = centre + stretch * (means - centre)
    means = means[np.isfinite(means).any(1)]
    if not len(means):
        return [None] * values.shape[1]
    best = np.isclose(means, means.max(1, keepdims=True), rtol=1e-12, atol=0)
    shares = best / best.sum(1, keepdims=True)
    return [float(share) for share in shares.mean(0)]
