"""The reliability diagram."""

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from src.plots.reliability import reliability


def bars(patches: object) -> list[tuple[float, float]]:
    """The middle and the height of each bar."""
    found = []
    for patch in patches:  # type: ignore[attr-defined]
        assert isinstance(patch, Rectangle)
        found.append((patch.get_x() + patch.get_width() / 2, patch.get_height()))
    return found


def test_bins_without_samples_have_no_bar() -> None:
    above, below = reliability([0, 6, 0, 2], [0, 0.4, 0, 0.9], [0, 0.5, 0, 1]).axes
    assert bars(above.patches) == [pytest.approx((0.375, 0.5)), pytest.approx((0.875, 1))]
    assert bars(below.patches) == [
        pytest.approx(pair) for pair in ((0.125, 0), (0.375, 0.75), (0.625, 0), (0.875, 0.25))
    ]
    diagonal, dots = above.lines
    for line, places, heights in ((diagonal, [0, 1], [0, 1]), (dots, [0.4, 0.9], [0.5, 1])):
        assert np.asarray(line.get_xdata()).tolist() == places
        assert np.asarray(line.get_ydata()).tolist() == heights
