"""The settings of the networks of a pack."""

import math
from collections import Counter

import pytest

from kindling.config.compose import compose
from kindling.config.drawn import DECAYS, FAMILIES, RATES, WIDTHS, batch_size, draw_settings


def test_a_longer_pack_begins_with_the_shorter_one() -> None:
    few, many = draw_settings(5, 7), draw_settings(64, 7)
    assert {key: values[:5] for key, values in many.items()} == few
    assert draw_settings(5, 8) != few


def test_each_family_comes_in_turn() -> None:
    """Of any twelve networks in a row each is of another depth, activation or dropout."""
    drawn = draw_settings(36, 0)
    families = [
        (sizes.count(",") + 1, activation, dropout)
        for sizes, activation, dropout in zip(
            drawn["model.hidden_sizes"], drawn["model.activation"], drawn["model.dropout"],
            strict=True,
        )
    ]  # fmt: skip
    for first in range(24):
        assert set(families[first : first + 12]) == set(FAMILIES)


def test_numbers_fill_their_ranges() -> None:
    """By the logarithm: half of them are below the geometric middle, within four deviations."""
    drawn = draw_settings(400, 1)
    for key, (low, high) in (("optimizer.lr", RATES), ("optimizer.weight_decay", DECAYS)):
        values = [float(text) for text in drawn[key]]
        assert low * 0.95 <= min(values) < low * 1.5
        assert high / 1.5 < max(values) <= high * 1.05
        below = sum(value < math.sqrt(low * high) for value in values)
        assert abs(below - 200) < 4 * 10, key
    widths = Counter(w for text in drawn["model.hidden_sizes"] for w in text.strip("[]").split(","))
    assert widths.keys() == {str(width) for width in WIDTHS}
    assert len(set(drawn["seed"])) == 400


def test_each_network_is_a_valid_configuration() -> None:
    drawn = draw_settings(12, 3)
    for number in range(12):
        texts = [f"{key}={values[number]}" for key, values in drawn.items()]
        config = compose("data=digits", "experiment=pack", *texts)
        assert config.trainer.early_stopping_patience == 16
        assert config.optimizer.name == "adamw"


@pytest.mark.parametrize(
    ("rows", "size"),
    [(1, 16), (1999, 16), (2000, 32), (5000, 64), (10_000, 128), (19_999, 128), (10**7, 256)],
)
def test_large_tables_have_larger_batches(rows: int, size: int) -> None:
    assert batch_size(rows) == size
