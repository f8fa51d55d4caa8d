"""Arrays in .npz files: their values, and the message for each fault."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from src.config.compose import compose
from src.data.sources.catalogue import open_source
from src.data.sources.source import Source
from src.system.errors import InputError

X, Y = np.zeros((4, 3)), np.array([0, 1, 0, 1])


def arrays(path: Path, **content: Any) -> Source:
    np.savez(path, **content)
    return open_source(compose("data=npz", f"data.path={path}").data)


def test_arrays_with_and_without_a_test_set(tmp_path: Path) -> None:
    x, y = np.arange(40, dtype=np.uint8).reshape(10, 2, 2), np.arange(10) % 2
    source = arrays(tmp_path / "a.npz", x=x, y=y)
    assert (source.shape, source.labels) == ((1, 2, 2), ("0", "1"))
    assert torch.bincount(source.test.labels).tolist() == [1, 1]
    again = arrays(tmp_path / "b.npz", x=x / 255, y=y, x_test=x[:3] / 255, y_test=y[:3])
    assert (again.train.features.dtype, len(again.train)) == (torch.float32, 10)
    assert torch.equal(again.test.features[:, 0], torch.from_numpy(x[:3] / 255).float())
    assert again.digest != source.digest


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"y": Y}, "has no array x, it has y"),
        ({"x": X}, "has no array y"),
        ({"x": X, "y": Y[:3]}, r"y is \(3,\), must be \(4,\)"),
        ({"x": X[:, 0], "y": Y}, r"x is \(4,\), must be \(N, ...\)"),
        ({"x": X + np.nan, "y": Y}, r"x\[0\] has NaN or infinite values"),
        ({"x": np.full((4, 3), 1e300), "y": Y}, r"x\[0\] has NaN or infinite values"),
        ({"x": X.astype(object), "y": Y}, "cannot be read as .npz .*Object arrays"),
        ({"x": X, "y": Y + 1}, "y has 2 classes from 1 to 2, but no class 0; .*return_inverse"),
        ({"x": X, "y": Y * 10**9}, "y has 2 classes from 0 to 1000000000, but no class 1"),
        ({"x": X, "y": Y * 0}, "y has the one class 0"),
        ({"x": X, "y": Y * 1.0}, "y is of float64, must be whole numbers"),
        ({"x": X, "y": Y, "x_test": X}, "has x_test, but no y_test"),
        (
            {"x": X, "y": Y, "x_test": X, "y_test": Y + 1},
            "y_test has the class 2, y has only 0 to 1",
        ),
        ({"x": X, "y": Y, "x_test": X[:, :2], "y_test": Y}, r"x is \(4, 3\), x_test \(4, 2\)"),
    ],
)
def test_faults_of_arrays(content: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=told) as caught:
        arrays(tmp_path / "a.npz", **content)
    assert str(tmp_path / "a.npz") in str(caught.value)
