"""Intervals that cover a true mean as often as they say."""

import math
import statistics
from collections.abc import Sequence

LEVEL = 0.95


def t_interval(values: Sequence[float], folds: int = 0) -> tuple[float, float]:
    """The interval around the mean of two or more values that covers the true mean in LEVEL of all
    cases: Student's t with n - 1 degrees of freedom.

    `folds` > 0: the values are those of a cross-validation, repeated or not. Its training sets
    share samples, so that its values vary less than they should. Their variance is therefore
    multiplied by 1/n + 1/(folds - 1) instead of 1/n: the corrected resampled t (Nadeau & Bengio
    2003, Machine Learning 52; for repeated folds Bouckaert & Frank 2004, PAKDD).
    """
    from scipy.special import stdtrit  # takes a tenth of a second

    count = len(values)
    shared = 1 / (folds - 1) if folds else 0.0
    quantile = float(stdtrit(count - 1, (1 + LEVEL) / 2))
    mean = statistics.mean(values)  # exact, so that equal values have an interval without width
    half = quantile * statistics.stdev(values) * math.sqrt(1 / count + shared)
    return mean - half, mean + half
