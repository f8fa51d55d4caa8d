"""Seconds and bytes."""

import pytest

from kindling.system.units import duration, seconds, size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"), (45.4, "45 s"), (89, "89 s"), (90, "2 min"), (89 * 60, "89 min"),
        (90 * 60, "1.5 h"), (35 * 3600, "35.0 h"), (36 * 3600, "1.5 days"),
    ],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0.0 KB"), (340_000, "340 KB"), (1_240, "1.2 KB"), (999_400, "999 KB"),
     (999_600, "1.0 MB"), (9_960, "10 KB"), (12_300_000, "12 MB"), (5_000_000_000_000, "5000 GB")],
)  # fmt: skip
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0.00"), (0.004, "0.00"), (1.286, "1.29"), (99.99, "99.99"), (99.996, "100"),
        (1234.5, "1,234"), (1e6, "1,000,000"),
    ],
)  # fmt: skip
def test_measured_seconds(value: float, text: str) -> None:
    assert seconds(value) == text
