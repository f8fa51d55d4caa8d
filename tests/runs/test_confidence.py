"""Intervals around means."""

import math

import numpy as np
import pytest
from scipy import stats
from sklearn.model_selection import KFold

from src.runs.confidence import t_interval


@pytest.mark.parametrize("count", [2, 5, 40])
def test_the_interval_is_students(count: int) -> None:
    values = np.random.default_rng(count).normal(0.9, 0.02, count)
    expected = stats.t.interval(0.95, count - 1, values.mean(), stats.sem(values))
    assert t_interval(values.tolist()) == pytest.approx(expected, rel=1e-12)


def test_huge_values_have_an_interval() -> None:
    low, high = t_interval([-1e99, 0.0, 1e99])
    assert (low, high) == pytest.approx((-2.484e99, 2.484e99), rel=1e-3)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    drawn = random.normal(0.7, 1, (4000, 6)).tolist()
    covered = [_holds(t_interval(values), 0.7) for values in drawn]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.01)


def test_the_interval_of_a_cross_validation_is_wider() -> None:
    values = [0.9, 0.92, 0.94, 0.91, 0.93]
    plain, folded = t_interval(values), t_interval(values, folds=5)
    ratio = (folded[1] - folded[0]) / (plain[1] - plain[0])
    assert ratio == pytest.approx(math.sqrt((1 / 5 + 1 / 4) / (1 / 5)))
    assert sum(folded) / 2 == pytest.approx(0.92)


def test_a_cross_validation_covers_the_truth_only_with_the_wider_interval() -> None:
    """The mean of the training samples is the model, and its squared error is estimated. The truth
    is the error of a model of so many samples on a new sample."""
    random, samples, folds = np.random.default_rng(1), 40, 5
    truth = 1 + 1 / (samples * (folds - 1) / folds)
    plain, folded = [], []
    for _ in range(800):
        data = random.normal(size=samples)
        errors = [
            float(((data[held] - data[kept].mean()) ** 2).mean())
            for kept, held in KFold(folds).split(data)
        ]
        plain.append(_holds(t_interval(errors), truth))
        folded.append(_holds(t_interval(errors, folds), truth))
    assert np.mean(plain) < 0.95
    assert 0.92 < np.mean(folded) < 1


def _holds(interval: tuple[float, float], truth: float) -> bool:
    return interval[0] <= truth <= interval[1]
