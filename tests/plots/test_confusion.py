"""The picture of a confusion matrix."""

import numpy as np
import pytest

from src.plots.confusion import confusion


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
