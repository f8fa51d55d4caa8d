"""The effects of keys, and means over two of them."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kindling.records.folder import Result, Run
from kindling.records.outcome import short
from kindling.reports import analysis
from kindling.reports.collect import Part, Reported


def entry(value: float | None, **settings: str) -> Reported:
    """A trial with this validation accuracy."""
    result: Result = {}
    if value is not None:
        result = {"status": "finished", "best": {"val/acc": value}}
    return Reported(Run(Path("none")), result, settings, settings, [], str(settings), "")


def test_effects_and_the_grid_of_the_strongest() -> None:
    trials = [
        entry(0.5, lr="0.1", width="8", seed="0"),
        entry(0.7, lr="0.1", width="16", seed="0"),
        entry(0.8, lr="0.03", width="8", seed="0"),
        entry(0.9, lr="0.03", width="16", seed="0"),
        entry(None, lr="1", width="16", seed="0"),
    ]
    swept = Part(Path("s"), "s", trials, ["lr", "width", "seed"])
    lr, width = analysis.effects(swept)  # the seed is the same in all
    assert (lr.key, lr.labels) == ("lr", ["0.03", "0.1"])
    np.testing.assert_allclose(lr.levels, [[0.9, 0.875, 0.85], [0.7, 0.65, 0.6]])
    assert list(width.labels) == ["8", "16"]
    np.testing.assert_allclose(width.levels, [[0.8, 0.725, 0.65], [0.9, 0.85, 0.8]])
    assert [lr.span, width.span] == pytest.approx([0.2, 0.1])
    grid = analysis.grid(swept)
    assert grid is not None
    assert (grid.rows, grid.columns) == (["0.03", "0.1"], ["8", "16"])
    np.testing.assert_allclose(grid.best, [[0.8, 0.9], [0.5, 0.7]])
    assert analysis.grid(Part(Path("s"), "s", trials, ["lr"])) is None


def test_an_effect_is_that_of_the_best_settings_of_the_other_keys() -> None:
    """A mean over bad choices of others would hide that a width helps, and a mean with a deviation
    would promise more than 100%. A setting is judged by the mean of its seeds: the luckiest seed
    is no setting."""
    values = {  # two seeds
        ("0.1", "8"): (0.6, 0.64), ("0.1", "16"): (0.9, 1.0), ("9", "8"): (0.3, 0.3),
        ("9", "16"): (0.1, 0.1), ("5", "8"): (0.2, 0.98),
    }  # fmt: skip
    trials = [
        entry(value, lr=lr, width=width, seed=str(seed))
        for (lr, width), pair in values.items()
        for seed, value in enumerate(pair)
    ]
    found = {
        e.key: e for e in analysis.effects(Part(Path("s"), "s", trials, ["lr", "width", "seed"]))
    }
    width = found["width"]
    assert [level.best for level in width.levels] == pytest.approx([0.62, 0.95])
    assert [level.median for level in width.levels] == pytest.approx([0.59, 0.525])
    assert [level.best for level in found["lr"].levels] == pytest.approx([0.95, 0.59, 0.3])
    assert all(0 <= value <= 1 for e in found.values() for level in e.levels for value in level)
    losses = [
        replace(each, result={"status": "finished", "monitor": "val/loss", "best": {"val/loss": n}})
        for n, each in enumerate(trials, 1)
    ]
    swept = Part(Path("s"), "s", losses, ["lr", "width", "seed"])
    width = next(e for e in analysis.effects(swept) if e.key == "width")
    assert [level.best for level in width.levels] == pytest.approx([1.5, 3.5])
    grid = analysis.grid(swept)
    assert grid is not None
    np.testing.assert_allclose(grid.best, [[1.5, 3.5], [9.5, np.nan], [5.5, 7.5]])
    assert [level.quarter for level in width.levels] == pytest.approx([3.5, 4.5])


def test_a_cell_has_the_best_setting_of_the_other_keys() -> None:
    trials = [
        entry(value, lr=lr, width=width, decay=decay)
        for (lr, width, decay), value in zip(
            itertools.product("12", "89", "01"), (0.5, 0.9, 0.1, 0.2, 0.3, 0.2, 0.4, 0.35),
            strict=True,
        )
    ]  # fmt: skip
    losses = [
        replace(each, result={"monitor": "val/loss", "best": {"val/loss": each.value}})
        for each in trials
    ]
    for some, expected in (
        (trials, [[0.9, 0.2], [0.3, 0.4]]), (losses, [[0.5, 0.1], [0.2, 0.35]]),
    ):  # fmt: skip
        grid = analysis.grid(Part(Path("s"), "s", some, ["lr", "width", "decay"]))
        assert grid is not None
        assert (grid.row_key, grid.column_key) == ("lr", "width")
        np.testing.assert_allclose(grid.best, expected)


def test_a_confirmation_has_no_effects(tmp_path: Path) -> None:
    """Its settings are the best of a sweep, so their differences say nothing about a key."""
    trials = [entry(0.1 * n, lr=str(n % 2), width=str(n // 2)) for n in range(4)]
    swept = Part(tmp_path, "s", trials, ["lr", "width"])
    assert len(analysis.effects(swept)) == 2
    (tmp_path / "confirm.yaml").write_text("")
    assert (analysis.effects(swept), analysis.grid(swept)) == ([], None)
    assert analysis.by_strength(swept) == ["lr", "width"]


def test_seeds_and_folds_have_no_effect() -> None:
    """Nobody chooses them."""
    trials = [
        entry(0.1 * number, lr=str(number % 2), **dict.fromkeys(("seed", "data.fold"), str(number)))
        for number in range(4)
    ]
    swept = Part(Path("s"), "s", trials, ["seed", "lr", "data.fold"])
    assert [effect.key for effect in analysis.effects(swept)] == ["lr"]
    assert analysis.grid(swept) is None
    assert analysis.by_strength(swept) == ["lr", "seed", "data.fold"]


def test_numbers_that_a_sampler_drew_are_shown_as_ranges() -> None:
    rates = [0.0123456789 * (1 + number) for number in range(12)]
    trials = [
        entry(number / 12, lr=repr(rate), width=str(8 * (1 + number % 2)))
        for number, rate in enumerate(rates)
    ]
    swept = Part(Path("s"), "s", trials, ["lr", "width"])
    (lr,) = [effect for effect in analysis.effects(swept) if effect.key == "lr"]
    assert lr.labels == [
        "0.0123–0.0247", "0.037–0.0494", "0.0617–0.0741", "0.0864–0.0988", "0.111–0.123",
        "0.136–0.148",
    ]  # fmt: skip
    assert lr.values == [[n / 12, (n + 1) / 12] for n in range(0, 12, 2)]
    grid = analysis.grid(swept)
    assert grid is not None
    assert (grid.rows, grid.columns) == (lr.labels, ["8", "16"])
    few = Part(Path("s"), "s", trials[:3], ["lr"])
    assert analysis.effects(few)[0].labels == ["0.01235", "0.02469", "0.03704"]
    assert [short(text) for text in ("0.123456789", "[64,64,64,64]", "123456")] == [
        "0.1235",
        "[64,64,64,64]",
        "123456",
    ]


def test_ranges_of_seeds_have_all_digits() -> None:
    labels = analysis.labels(map(str, range(10_000)))
    assert labels["0"] == "0–1666"
    assert labels["9999"] == "8334–9999"
    assert set(analysis.labels(f"{number / 7:.9f}" for number in range(20)).values()) == {
        "0–0.429", "0.571–1", "1.14–1.43", "1.57–1.86", "2–2.29", "2.43–2.71"
    }  # fmt: skip


def zipped(values: Sequence[tuple[str, str]], decays: int) -> list[Reported]:
    """A trial with each pair of values and each decay. The value grows with the place."""
    points = itertools.product(enumerate(values), range(decays))
    return [
        entry(0.1 * place + 0.01 * decay, lr=lr, width=width, decay=str(decay))
        for (place, (lr, width)), decay in points
    ]


def test_keys_that_change_together_have_one_effect() -> None:
    trials = zipped([("0.3", "[8]"), ("0.1", "[32]"), ("0.2", "[16]")], 2)
    swept = Part(Path("s"), "s", trials, ["lr", "width", "decay"])
    together, decay = analysis.effects(swept)
    assert (together.key, decay.key) == ("lr, width", "decay")
    assert together.labels == ["0.1, [32]", "0.2, [16]", "0.3, [8]"]
    assert [level.best for level in together.levels] == pytest.approx([0.11, 0.21, 0.01])
    grid = analysis.grid(swept)
    assert grid is not None
    assert (grid.row_key, grid.column_key) == ("lr, width", "decay")
    assert (grid.rows, grid.columns) == (together.labels, ["0", "1"])
    np.testing.assert_allclose(grid.best, [[0.1, 0.11], [0.2, 0.21], [0, 0.01]])
    assert analysis.grid(Part(Path("s"), "s", trials, ["lr", "width"])) is None
    # If one value of a key belongs to two values of the other, both have their own effect.
    apart = [*trials, entry(0.5, lr="0.3", width="[32]", decay="0")]
    keys = [each.key for each in analysis.effects(Part(Path("s"), "s", apart, swept.keys))]
    assert sorted(keys) == ["decay", "lr", "width"]


def test_many_values_that_change_together_are_shown_as_ranges_of_the_first() -> None:
    trials = zipped([(str(place), f"{place / 10:g}") for place in range(20)], 2)
    (effect,) = analysis.effects(Part(Path("s"), "s", trials, ["lr", "width"]))
    assert effect.key == "lr, width"
    assert effect.labels == ["0–3", "4–7", "8–10", "11–13", "14–16", "17–19"]


def test_numbers_that_a_search_drew_are_not_together(tmp_path: Path) -> None:
    (tmp_path / "search.yaml").write_text("[]")
    for decays, keys in ((1, ["width", "lr"]), (2, ["lr, width"])):
        trials = zipped([("3", "8"), ("1", "32"), ("2", "16")], decays)
        swept = Part(tmp_path, "s", trials, ["lr", "width"])
        assert sorted(each.key for each in analysis.effects(swept)) == sorted(keys)


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ("0.001 0.01 0.1 1", "log"),
        ("0.03 0.1 0.3 1", "log"),
        ("[16] [32] [64] [128]", "log"),
        ("0 0.5 0.9", "linear"),
        ("-1 0 1", "linear"),
        ("10 20 30 40", "linear"),
        ("0.5 0.9", "linear"),
        ("0.01 1", "log"),
        ("0 0.00001 0.0001 0.001", "category"),  # 0 has no place on a logarithmic axis
        ("true false", "category"),
        ("0.1 –", "category"),
        ("1 nan 2", "category"),
        ("1 inf 2", "category"),
        ("1e308 -1e308 1", "category"),
        ("1 1.0 2", "category"),  # would share a place
        ("[64] [32,32] [16]", "category"),
    ],
)
def test_an_axis_has_the_scale_on_which_its_numbers_are_even(values: str, scale: str) -> None:
    assert analysis.scale_of(values.split()) == scale
    assert analysis.scale_of(reversed(values.split())) == scale


def test_numbers_that_were_drawn_have_the_scale_of_the_search() -> None:
    small = [f"{0.001 * 1.5**number:.12f}" for number in range(18)]
    assert analysis.scale_of(small) == "log"
    assert analysis.scale_of(small, drawn=False) == "linear"
    even = [f"{0.1 + number / 70:.12f}" for number in range(18)]
    assert (analysis.scale_of(even), analysis.scale_of(even, drawn=True)) == ("linear", "log")
    assert analysis.scale_of(["0", "0.123456789"], drawn=True) == "linear"
    swept = [entry(0.5, lr=small[0]), entry(0.6, lr=small[1]), entry(0.7, lr=small[17])]
    (effect,) = analysis.effects(Part(Path("s"), "s", swept, ["lr"], scales={"lr": True}))
    assert (effect.scale, effect.numbers) == ("log", [[float(small[n])] for n in (0, 1, 17)])


@pytest.mark.parametrize(
    ("values", "higher", "ends"),
    [
        ([0.1, 0.9, 0.92, 0.95, 0.96], True, (0.9, 0.96)),  # the limit: 0.92 - 4 × 0.04
        ([0.1, 0.11, 0.12, 0.5], False, (0.1, 0.12)),
        ([0.1, 0.9, 0.9, 0.9], True, (0.1, 0.9)),  # half of the values are the best
        ([0.4], True, (0.4, 0.4)),
    ],
)
def test_ends_leave_out_what_is_far_worse_than_most(
    values: list[float], higher: bool, ends: tuple[float, float]
) -> None:
    assert analysis.ends_without_outliers(values, higher=higher) == ends
