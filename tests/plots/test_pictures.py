"""Pictures of confusion matrices, reliability, and samples with intervals."""

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.patches import Rectangle

from kindling.plots.pictures import (
    LABEL_LINES,
    LABEL_WIDTH,
    LINE_HEIGHT,
    confusion,
    intervals,
    reliability,
)
from kindling.plots.samples import Sample, interval_data


def test_mistakes_decide_the_colours_of_a_confusion_matrix() -> None:
    counts = np.array([[3, 1, 0], [0, 0, 0], [0, 10, 10]])
    (axis,) = confusion(counts, ["cat", "dog", "owl"]).axes
    assert [text.get_text() for text in axis.get_yticklabels()] == ["cat", "dog", "owl"]
    texts = {text.get_position(): text.get_text() for text in axis.texts}
    assert texts == {(0, 0): "3", (1, 0): "1", (1, 2): "10", (2, 2): "10"}
    cells = {p.get_xy(): p.get_alpha() for p in axis.patches}  # type: ignore[attr-defined]
    assert cells == {
        (-0.5, -0.5): 0.18, (0.5, 0.5): 0.18, (1.5, 1.5): 0.18,
        (0.5, -0.5): pytest.approx(0.1 + 0.8 * 0.25 / 0.5), (0.5, 1.5): pytest.approx(0.9),
    }  # fmt: skip
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("predicted class", "true class")
    (digits,) = confusion(np.eye(10, dtype=int), [*"0123456789"]).axes
    assert (digits.get_xlabel(), digits.get_ylabel()) == ("predicted digit", "true digit")
    many = np.eye(100, dtype=int)
    many[3, 7] = 1
    (axis,) = confusion(many, ["name"] * 100).axes
    assert not axis.texts  # too many to read
    (image,) = axis.images
    assert np.argwhere(np.asarray(image.get_array())).tolist() == [[3, 7]]


def bars(patches: object) -> list[tuple[float, float]]:
    """The middle and the height of each bar."""
    found = []
    for patch in patches:  # type: ignore[attr-defined]
        assert isinstance(patch, Rectangle)
        found.append((patch.get_x() + patch.get_width() / 2, patch.get_height()))
    return found


def test_bins_without_samples_have_no_bar() -> None:
    ends = [(0.0, 0.0), (0.2, 0.8), (0.0, 0.0), (0.3, 1.0)]
    above, below = reliability([0, 6, 0, 2], [0, 0.4, 0, 0.9], [0, 0.5, 0, 1], ends).axes
    assert bars(above.patches) == [pytest.approx((0.375, 0.5)), pytest.approx((0.875, 1))]
    assert bars(below.patches) == [
        pytest.approx(pair) for pair in ((0.125, 0), (0.375, 0.75), (0.625, 0), (0.875, 0.25))
    ]
    (whiskers,) = above.collections
    assert isinstance(whiskers, LineCollection)
    drawn = [each.tolist() for each in whiskers.get_segments()]
    assert drawn == [[[0.4, 0.2], [0.4, 0.8]], [[0.9, 0.3], [0.9, 1.0]]]
    diagonal, dots = above.lines
    for line, places, heights in ((diagonal, [0, 1], [0, 1]), (dots, [0.4, 0.9], [0.5, 1])):
        assert np.asarray(line.get_xdata()).tolist() == places
        assert np.asarray(line.get_ydata()).tolist() == heights


def test_each_row_has_its_points_its_mean_and_the_promise() -> None:
    samples = [
        Sample("one", [0.5, 0.6, 0.7], 0.6, (0.35, 0.85), 0.9),
        Sample("two", [], None, None, 0.8),
        Sample("three", [0.4], 0.4, None, 0.7),
    ]
    figure = intervals(samples, "val/acc", "a fresh seed")
    (axis,) = figure.axes
    assert [text.get_text() for text in axis.get_yticklabels()] == ["one", "two", "three"]
    assert axis.get_ylim() == (2.5, -0.5)  # the first row is on top
    assert axis.get_xlabel() == "val/acc"
    drawn = [np.asarray(line.get_xdata(), float).tolist() for line in axis.lines]
    assert [0.5, 0.6, 0.7] in drawn
    assert [0.9, 0.8, 0.7] in drawn
    assert {0.6, 0.4} <= {values[0] for values in drawn if len(values) == 1}
    bars = [bar.get_segments()[0] for bar in axis.collections]  # type: ignore[attr-defined]
    assert np.array(bars)[:, :, 0] == pytest.approx(np.array([[0.35, 0.85], [0.4, 0.4]]))
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["a fresh seed", "mean and 95% interval", "promised by the sweep"]


def test_long_labels_have_lines_and_rows_have_room() -> None:
    keys = ", ".join(f"a_long_section.and_its_key_{number}=0.125" for number in range(5))
    one, five, long = (
        intervals([Sample(label, [], None, None)] * 2, "val/acc", "a seed")
        for label in ("optimizer.lr=0.1", f"1: {keys}", ", ".join([keys] * 3))
    )
    lines = [
        figure.axes[0].get_yticklabels()[0].get_text().split("\n") for figure in (one, five, long)
    ]
    assert lines[0] == ["optimizer.lr=0.1"]
    assert " ".join(lines[1]) == f"1: {keys}"  # nothing is cut
    assert len(lines[1]) == 5
    assert (len(lines[2]), lines[2][-1][-2:]) == (LABEL_LINES, " …")
    assert max(len(line) for each in lines for line in each) <= LABEL_WIDTH
    heights = [figure.get_size_inches()[1] for figure in (one, five, long)]
    assert heights == pytest.approx([2.4, 1.4 + 2 * (0.15 + 5 * LINE_HEIGHT),
                                     1.4 + 2 * (0.15 + 6 * LINE_HEIGHT)])  # fmt: skip


def test_a_chart_has_the_same_samples() -> None:
    found = interval_data([Sample("one", [0.5], 0.5, None, 0.9)], "val/loss", "a seed")
    assert found == {
        "name": "val/loss", "fraction": False, "value": "a seed", "mean": "mean and 95% interval",
        "ends": None, "samples": [
            {"label": "one", "values": [0.5], "mean": 0.5, "interval": None, "promised": 0.9}
        ],
    }  # fmt: skip


def test_without_promises_there_is_no_mark() -> None:
    figure = intervals([Sample("one", [0.5, 0.6], 0.55, (0.5, 0.6))], "val/loss", "a trial")
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["a trial", "mean and 95% interval"]
