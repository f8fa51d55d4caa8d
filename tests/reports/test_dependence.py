"""What a key of a search changes where all others are as in the best trial."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kindling.records.folder import SEARCH
from kindling.reports import dependence
from kindling.reports.collect import Part
from kindling.reports.dependence import Fitted, dependences
from kindling.reports.pictures import in_words_of
from tests.reports.test_figures import trial

SCALES: Any = {
    "optimizer.lr": "log",
    "optimizer.momentum": "linear",
    "model.activation": "category",
}


def truth(log: Any, momentum: Any, activation: str) -> Any:
    found = 0.9 - 0.1 * (log + 1.5) ** 2 - 0.05 * (momentum - 0.5) ** 2
    return found + 0.02 * (activation == "gelu")


def search(folder: Path, seed: int, count: int, noise: float = 0.01) -> Part:
    draw, entries = np.random.default_rng(seed), []
    for number in range(count):
        log, momentum = draw.uniform(-4, 0), draw.uniform(0, 0.99)
        activation = str(draw.choice(["relu", "tanh", "gelu"]))
        value = truth(log, momentum, activation) + noise * draw.normal()
        settings = dict(zip(SCALES, (repr(10**log), repr(momentum), activation), strict=True))
        entries.append(replace(trial(number, "val/acc", float(value)), settings=settings))
    (folder / SEARCH).touch()
    return Part(folder, "s", entries, [*SCALES])


def true_line(part: Part, key: str, at: list[float]) -> Any:
    assert part.best is not None
    known: Mapping[str, str] = part.best.settings
    log, momentum = np.log10(float(known["optimizer.lr"])), float(known["optimizer.momentum"])
    if key == "optimizer.lr":
        return truth(np.log10(at), momentum, known["model.activation"])
    return truth(log, np.array(at), known["model.activation"])


def test_the_interval_covers_what_is_true(tmp_path: Path) -> None:
    """Of two keys and places all over their axes, over ten searches."""
    covered, widths = [], []
    for seed in range(10):
        part = search(tmp_path, seed, 50)
        found = dependences(part, SCALES)
        assert [*found] == ["optimizer.lr", "optimizer.momentum"]
        for key, fitted in found.items():
            line = true_line(part, key, fitted.at)
            covered.append(np.mean((fitted.low <= line) & (line <= fitted.high)))
            widths.append(np.mean(np.subtract(fitted.high, fitted.low)))
            ends = np.array([fitted.low, fitted.values, fitted.high])
            assert (np.diff(ends, axis=0) >= 0).all()
            assert 0 <= ends.min() <= ends.max() <= 1  # as accuracies are
    assert np.mean(covered) > 0.85
    assert np.mean(widths) < 0.1  # of values from 0.2 to 0.9


@pytest.mark.parametrize("monitor", ["val/acc", "val/loss"])
@pytest.mark.parametrize("count", [60, 300])
def test_the_best_place_is_found(count: int, monitor: str, tmp_path: Path) -> None:
    """Of losses the lowest."""
    part = search(tmp_path, 0, count)
    if monitor == "val/loss":
        losses = [trial(n, monitor, 1 - value) for n, (_, value) in enumerate(part.valued)]
        pairs = zip(losses, part.entries, strict=True)
        part = replace(part, entries=[replace(new, settings=old.settings) for new, old in pairs])
    fitted = dependences(part, SCALES)["optimizer.lr"]
    best = np.argmax(fitted.values) if monitor == "val/acc" else np.argmin(fitted.values)
    assert abs(np.log10(fitted.at[int(best)]) + 1.5) < 0.4
    assert all(low <= high for low, high in zip(fitted.low, fitted.high, strict=True))


def test_trials_that_failed_to_learn_bend_nothing_elsewhere(tmp_path: Path) -> None:
    part = search(tmp_path, 4, 60)
    rates = [float(entry.setting("optimizer.lr")) for entry in part.entries]
    failed = [
        replace(trial(n, "val/acc", 0.01), settings=entry.settings) if rate > 10**-0.5 else entry
        for n, (entry, rate) in enumerate(zip(part.entries, rates, strict=True))
    ]
    before, after = (
        dependences(replace(part, entries=entries), SCALES)["optimizer.lr"]
        for entries in (part.entries, failed)
    )
    near = [place for place, at in enumerate(before.at) if 10**-2.5 < at < 10**-1]
    assert np.abs(np.subtract(before.values, after.values))[near].max() < 0.03
    assert after.values[-1] < 0.2


def test_without_noise_the_fit_goes_through_the_trials(tmp_path: Path) -> None:
    part = search(tmp_path, 1, 120, noise=0.0)
    fitted = dependences(part, SCALES)["optimizer.lr"]
    line = true_line(part, "optimizer.lr", fitted.at)
    middle = slice(5, -5)
    np.testing.assert_allclose(fitted.values[middle], line[middle], atol=0.02)


def test_the_axis_is_that_of_the_trials(tmp_path: Path) -> None:
    part = search(tmp_path, 2, 20)
    rates = sorted(float(entry.setting("optimizer.lr")) for entry in part.entries)
    fitted = dependences(part, SCALES)["optimizer.lr"]
    assert (fitted.at[0], fitted.at[-1]) == pytest.approx((rates[0], rates[-1]))
    steps = np.diff(np.log(fitted.at))
    np.testing.assert_allclose(steps, steps[0])


def without_search(part: Part) -> Part:
    assert part.folder is not None
    (part.folder / SEARCH).unlink()
    return part


def of_equal_values(part: Part) -> Part:
    equal = [trial(number, "val/acc", 0.5) for number in range(len(part.entries))]
    pairs = zip(equal, part.entries, strict=True)
    return replace(part, entries=[replace(new, settings=old.settings) for new, old in pairs])


@pytest.mark.parametrize(
    ("count", "changed"), [(14, lambda p: p), (20, without_search), (20, of_equal_values)]
)
def test_where_nothing_is_fitted(
    count: int, changed: Callable[[Part], Part], tmp_path: Path
) -> None:
    assert dependences(changed(search(tmp_path, 0, count)), SCALES) == {}


def test_categories_alone_have_no_axis(tmp_path: Path) -> None:
    assert dependences(search(tmp_path, 0, 20), {"model.activation": "category"}) == {}


def test_of_many_trials_some_are_fitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evenly by rank, with the best first."""
    monkeypatch.setattr(dependence, "MOST", 20)
    part = search(tmp_path, 0, 100)
    chosen = [value for _, value in dependence._chosen(part)]
    ranked = sorted((value for _, value in part.valued), reverse=True)
    assert chosen == [ranked[round(99 * place / 19)] for place in range(20)]
    assert isinstance(dependences(part, SCALES)["optimizer.lr"], Fitted)


@pytest.mark.parametrize("seed", range(8))
def test_values_of_any_size(seed: int, tmp_path: Path) -> None:
    """Most of them next to the best and the others very far away; or all of them tiny, huge, or
    equal but for rounding. The fit lies within its interval, and all of it can be written."""
    draw, part = np.random.default_rng(seed), search(tmp_path, seed, 30)
    shares = draw.random(30)
    far = np.where(shares < 0.4, 1e99 * shares, 1e-300 * shares)
    values = [far, 1e-310 * shares, 1e99 * shares, 1 + 1e-15 * (shares > 0.5)][seed % 4]
    losses = [trial(n, "val/loss", float(value)) for n, value in enumerate(values)]
    pairs = zip(losses, part.entries, strict=True)
    part = replace(part, entries=[replace(new, settings=old.settings) for new, old in pairs])
    fits = dependences(part, SCALES)
    assert len(fits) == 2
    for fit in fits.values():
        json.dumps(fit, allow_nan=False)
        ends = np.array([fit.low, fit.values, fit.high])
        assert (np.diff(ends, axis=0) >= 0).all()


def test_in_words(tmp_path: Path) -> None:
    """A key is told with its best and its worst place; of a flat one, that nothing is known."""
    fits = dependences(search(tmp_path, 0, 60), SCALES)
    told = in_words_of(fits, "val/acc", higher=True)
    for key, fit in fits.items():
        best, worst = int(np.argmax(fit.values)), int(np.argmin(fit.values))
        text = (
            f"{key} is best near {fit.at[best]:.3g}, with {fit.values[best]:.2%}, and worst near "
        )
        assert f"{text}{fit.at[worst]:.3g}, with {fit.values[worst]:.2%}" in told
    assert told.count("which the intervals do not tell apart") == 1
    assert told.endswith("apart")  # momentum changes a point at most
    flat = {"k": Fitted([1.0, 2.0], [0.3, 0.2], [0.1, 0.1], [0.4, 0.4])}
    assert in_words_of(flat, "val/loss", higher=False) == (
        "k is best near 2, with 0.2000, and worst near 1, with 0.3000, which the intervals do not "
        "tell apart"
    )
