"""Intervals around means."""

import math

import numpy as np
import pytest
from scipy import stats
from sklearn.model_selection import KFold

from kindling.records.confidence import fold_means, standard_error, t_interval, wilson


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


@pytest.mark.parametrize(
    ("noise", "all_values"), [(0.05, (0.6, 0.9)), (1.0, (0.97, 1.0))], ids=["folds", "seeds"]
)
def test_means_of_folds_cover_the_truth_whatever_matters_more(
    noise: float, all_values: tuple[float, float]
) -> None:
    """As above, with four seeds on each fold, which add `noise` to the model. An interval from all
    values is too narrow or too wide."""
    random, samples, folds, seeds = np.random.default_rng(2), 40, 5, 4
    held_out = samples // folds
    truth = 1 + 1 / (samples - held_out) + noise**2
    of_means, of_all = [], []
    for _ in range(800):
        data = random.normal(size=(folds, held_out))
        models = (data.sum() - data.sum(1)) / (samples - held_out)
        models = models[:, None] + noise * random.normal(size=(folds, seeds))
        errors = ((data[:, None] - models[:, :, None]) ** 2).mean(2).ravel().tolist()
        means = fold_means(errors, np.repeat(range(folds), seeds).tolist())
        of_means.append(_holds(t_interval(means, folds), truth))
        of_all.append(_holds(t_interval(errors, folds), truth))
    assert 0.94 < np.mean(of_means) < 1
    assert all_values[0] < np.mean(of_all) <= all_values[1]


def test_the_mean_of_a_fold_leaves_gaps_out() -> None:
    values = [1.0, 2.0, math.nan, 4.0, 6.0, math.nan]
    found = fold_means(values, ["b", "a", "c", "a", "b", "b"])
    assert found[:2] == [3.5, 3.0]
    assert math.isnan(found[2])
    assert fold_means([0.1] * 3, [0, 0, 0]) == [0.1]
    assert fold_means([], []) == []


def test_the_standard_error() -> None:
    values = [0.9, 0.92, 0.94, 0.91]
    assert standard_error(values) == pytest.approx(stats.sem(values))
    ratio = math.sqrt((1 / 4 + 1 / 3) / (1 / 4))
    assert standard_error(values, 4) == pytest.approx(ratio * stats.sem(values))


def _holds(interval: tuple[float, float], truth: float) -> bool:
    return interval[0] <= truth <= interval[1]


@pytest.mark.parametrize(
    ("right", "count"), [(0, 1), (1, 1), (0, 10), (10, 10), (7, 10), (29, 30), (500, 1000)]
)
def test_wilsons_interval_by_scipy(right: int, count: int) -> None:
    theirs = stats.binomtest(right, count).proportion_ci(0.95, "wilson")
    assert wilson(right / count, count) == pytest.approx((theirs.low, theirs.high), abs=1e-12)
