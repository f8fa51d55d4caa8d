"""Estimates against SciPy, against complete enumeration, and in simulated confirmations."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from kindling.records.confidence import standard_error
from kindling.reports.estimates import (
    RESAMPLES,
    Difference,
    Estimate,
    chances_to_be_best,
    differences_to_first,
    estimate,
    holm,
    paired_difference,
)

NAN = math.nan


def test_an_estimate_by_hand_and_by_scipy() -> None:
    found = estimate([1, 2, 3, 4, 5])
    assert (found.count, found.mean) == (5, 3)
    assert found.deviation == pytest.approx(math.sqrt(2.5))
    # 2.776 is the 97.5% quantile of Student's t with 4 degrees of freedom in printed tables.
    assert found.interval == pytest.approx((3 - 2.776 * 0.70711, 3 + 2.776 * 0.70711), abs=1e-3)
    values = np.random.default_rng(1).normal(0.9, 0.01, 20)
    low, high = stats.t.interval(0.95, 19, values.mean(), stats.sem(values))
    assert estimate([*values]).interval == pytest.approx((low, high), rel=1e-12)
    assert estimate([*values, NAN]) == estimate([*values])


def test_few_or_equal_values_are_not_guessed_at() -> None:
    assert estimate([]) == estimate([NAN]) == Estimate(0, None, None, None)
    assert estimate([0.5]) == Estimate(1, 0.5, None, None)
    assert estimate([0.1] * 3) == Estimate(3, 0.1, 0.0, (0.1, 0.1))
    perfect = estimate([1.0, 1.0, 0.98], 0.0, 1.0)
    assert perfect.interval is not None
    assert perfect.interval[1] == 1.0
    assert perfect.interval[0] < perfect.mean < 1  # type: ignore[operator]
    impossible = estimate([7.0, 7.0], 0.0, 1.0)
    assert impossible.interval == (7.0, 7.0)


def test_a_paired_difference_by_scipy() -> None:
    first, second = np.random.default_rng(2).normal(size=(2, 12))
    found, theirs = paired_difference([*first], [*second]), stats.ttest_rel(first, second)
    assert found.estimate.interval == pytest.approx(theirs.confidence_interval(0.95), rel=1e-12)
    assert found.p_value == pytest.approx(theirs.pvalue, rel=1e-12)
    # Pairs, not values, are left out.
    assert paired_difference([NAN, *first], [0, *second]) == found
    assert paired_difference([0, *first], [NAN, *second]) == found
    assert paired_difference([0.5, 0.75], [0.25, 0.5]).p_value == 0
    assert paired_difference([0.5, 0.75], [0.5, 0.75]).p_value == 1
    assert paired_difference([0.5, NAN], [0.25, 0.5]) == Difference(estimate([0.25]), None)
    assert paired_difference([NAN], [0.25]) == Difference(estimate([]), None)


def test_with_folds_the_mean_of_a_fold_is_a_value() -> None:
    values = np.random.default_rng(7).normal(0.5, 0.1, (2, 8))
    first, second = values.tolist()
    fold_of = [0, 1, 2, 0, 1, 2, 0, 1]
    means = np.array([[row[place::3].mean() for place in range(3)] for row in values])
    for row, of_folds in zip(values, means, strict=True):
        found = estimate(row.tolist(), fold_of=fold_of)
        half = stats.t.ppf(0.975, 2) * of_folds.std(ddof=1) * math.sqrt(1 / 3 + 1 / 2)
        assert found.count == 3
        assert found.mean is not None
        assert found.mean == pytest.approx(of_folds.mean())
        assert found.deviation == pytest.approx(of_folds.std(ddof=1))
        assert found.interval == pytest.approx((found.mean - half, found.mean + half))
    difference = means[0] - means[1]
    error = difference.std(ddof=1) * math.sqrt(1 / 3 + 1 / 2)
    paired = paired_difference(first, second, fold_of)
    assert paired.estimate.mean == pytest.approx(difference.mean())
    assert paired.p_value == pytest.approx(2 * stats.t.sf(abs(difference.mean() / error), 2))
    # A seed without a value in one sample is left out of both means of its fold.
    without = paired_difference(first[1:], second[1:], fold_of[1:])
    assert paired_difference([NAN, *first[1:]], second, fold_of) == without
    empty = estimate([NAN, 0.5, 0.7, NAN, 0.5, 0.7], fold_of=[0, 1, 2] * 2)
    assert empty.count == 2
    assert empty.mean == pytest.approx(0.6)
    half = stats.t.ppf(0.975, 1) * math.sqrt(0.02) * math.sqrt(1 / 2 + 1 / 2)
    assert empty.interval == pytest.approx((0.6 - half, 0.6 + half))


def test_holm_is_the_closed_test_of_bonferroni() -> None:
    """The corrected p-value of a hypothesis is the largest of Bonferroni's p-values of all sets of
    hypotheses that contain it (Marcus, Peritz and Gabriel, 1976)."""
    generator = np.random.default_rng(3)
    for size in (1, 2, 3, 4, 5):
        values = [float(value) for value in generator.uniform(0, 0.4, size).round(2)]
        places = range(size)
        sets = [s for n in places for s in itertools.combinations(places, n + 1)]
        expected = [
            max(min(1, len(s) * min(values[i] for i in s)) for s in sets if place in s)
            for place in places
        ]
        assert holm(values) == pytest.approx(expected)
    assert holm([0.04, None, 0.01, 0.03]) == [0.06, None, 0.03, 0.06]
    assert holm([]) == []


def test_differences_to_the_first() -> None:
    samples = [*np.random.default_rng(4).normal(size=(3, 8))]
    found = differences_to_first([[*sample] for sample in samples])
    raw = [stats.ttest_rel(a, b).pvalue for a, b in itertools.combinations(samples, 2)]
    assert [each.p_value for each in found] == pytest.approx(raw[:2])
    assert [each.corrected for each in found] == pytest.approx(holm(raw)[:2])
    assert [each.estimate.mean for each in found] == pytest.approx(
        [(samples[0] - other).mean() for other in samples[1:]]
    )
    assert differences_to_first([[0.5, 0.6]]) == []


def enumerated(values: np.ndarray) -> list[float]:
    """The exact chances: over all samples of the seeds, drawn with replacement."""
    seeds, wins, samples = len(values), np.zeros(values.shape[1]), 0
    for drawn in itertools.product(range(seeds), repeat=seeds):
        columns = [[v for v in column if not math.isnan(v)] for column in values[[*drawn]].T]
        means = [math.fsum(column) / len(column) if column else -math.inf for column in columns]
        if max(means) > -math.inf:
            best = [mean > max(means) - 1e-9 for mean in means]
            wins += np.array(best) / sum(best)
            samples += 1
    return [float(share) for share in wins / samples]


@pytest.mark.parametrize(
    "values",
    [
        [[0.5, 0.4, 0.1], [0.6, 0.7, 0.1], [0.7, 0.6, 0.1], [0.4, 0.5, 0.8]],
        [[0.5, 0.5], [0.6, 0.6], [0.1, 0.1]],
        [[0.5, NAN], [0.4, 0.6], [NAN, 0.3], [0.2, NAN]],
        [[0.5, NAN], [0.4, NAN]],
        [[NAN, NAN], [0.4, 0.1]],
    ],
    ids=["three settings", "equal", "gaps", "a setting without a value", "a seed without a value"],
)
def test_chances_are_near_those_of_all_samples(values: list[list[float]]) -> None:
    expected = enumerated(np.array(values))
    found = chances_to_be_best(np.array(values))
    # Four standard errors of a share that is counted in RESAMPLES samples.
    assert found == pytest.approx(expected, abs=4 * math.sqrt(0.25 / RESAMPLES))
    assert found == chances_to_be_best(np.array(values))
    assert sum(share or 0 for share in found) == pytest.approx(1)


def test_chances_over_folds_are_as_uncertain_as_their_difference() -> None:
    """The first is better by 1.5 standard errors, corrected for folds."""
    differences = np.array([-1.0, 0.5, 1.5, 2.0, 3.0])
    error = standard_error([*differences], folds=5)
    values = np.stack([differences - differences.mean() + 1.5 * error, np.zeros(5)], axis=1)
    expected = stats.norm.cdf([1.5, -1.5])
    assert chances_to_be_best(values, folds=True) == pytest.approx(expected, abs=0.02)
    assert (chances_to_be_best(values)[0] or 0) > 0.98


def test_no_value_gives_no_chances() -> None:
    assert chances_to_be_best(np.full((3, 2), NAN)) == [None, None]
    assert chances_to_be_best(np.array([[0.5], [0.6]])) == [1.0]


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 20])
def test_intervals_cover_the_truth(seeds: int) -> None:
    """Of simulated confirmations with known means, 95% of the intervals hold the truth, of the
    means and of the paired differences. The seeds have an effect that the settings share."""
    generator, simulations = np.random.default_rng(5), 1500
    truth = (0.97, 0.96, 0.96)
    held = np.zeros(5)
    for _ in range(simulations):
        shared = generator.normal(0, 0.01, seeds)
        samples = [[*(mean + shared + generator.normal(0, 0.005, seeds))] for mean in truth]
        found = [
            *((estimate(sample), mean) for sample, mean in zip(samples, truth, strict=True)),
            *(
                (difference.estimate, truth[0] - mean)
                for difference, mean in zip(differences_to_first(samples), truth[1:], strict=True)
            ),
        ]
        intervals = [(each.interval or (NAN, NAN), mean) for each, mean in found]
        held += [low <= mean <= high for (low, high), mean in intervals]
    assert held / simulations == pytest.approx(0.95, abs=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.05, 1.0], ids=["folds matter", "seeds matter"])
def test_with_folds_intervals_cover_the_truth(noise: float) -> None:
    """As above, for cross-validations of 8 seeds on 4 folds. A setting shrinks the mean of its
    training samples, to which its seeds add noise; the values are squared errors."""
    generator, simulations, folds, seeds, per_fold = np.random.default_rng(8), 1000, 4, 8, 10
    shrinkage, trained_on = np.array([1.0, 0.6]), (folds - 1) * per_fold
    mean = 0.3
    fold_of = [seed % folds for seed in range(seeds)]
    bias = (1 - shrinkage) * mean
    truth = 1 + shrinkage**2 / trained_on + bias**2 + noise**2
    held = np.zeros(3)
    for _ in range(simulations):
        data = generator.normal(mean, 1, (folds, per_fold))
        models = (data.sum() - data.sum(1)) / trained_on
        models = shrinkage[:, None] * models[fold_of]
        models = models + noise * generator.normal(size=models.shape)  # (settings, seeds)
        samples = ((data[fold_of] - models[:, :, None]) ** 2).mean(2).tolist()
        (difference,) = differences_to_first(samples, fold_of)
        found = [*(estimate(sample, fold_of=fold_of) for sample in samples), difference.estimate]
        expected = [*truth, truth[0] - truth[1]]
        intervals = [each.interval or (NAN, NAN) for each in found]
        pairs = zip(intervals, expected, strict=True)
        held += [low <= value <= high for (low, high), value in pairs]
    assert (held / simulations > 0.93).all()
    assert (held < simulations).all()


@pytest.mark.slow
def test_the_first_of_equal_settings_is_seldom_called_better() -> None:
    """In at most 5% of simulated confirmations of four equal settings, although the values decide
    which setting is the first. Without the correction it would be more than 15%."""
    generator, simulations = np.random.default_rng(6), 1000
    wrong, uncorrected = 0, 0
    for _ in range(simulations):
        samples = sorted(generator.normal(0.9, 0.01, (4, 10)).tolist(), key=sum, reverse=True)
        found = differences_to_first(samples)
        wrong += any((each.corrected or 0) < 0.05 for each in found)
        uncorrected += any((each.p_value or 0) < 0.05 for each in found)
    assert wrong / simulations <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / simulations)
    assert wrong > 0
    assert uncorrected / simulations > 0.15
