"""Arrays in .npz files: their values, and the message for each fault."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.model_selection import StratifiedGroupKFold

from src.config.compose import compose
from src.data.sources.catalogue import open_source
from src.data.sources.folds import training_and_validation
from src.data.sources.source import Source, Split
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


def test_groups_of_arrays(tmp_path: Path) -> None:
    """Whole numbers are sorted as numbers, so the folds are those of scikit-learn with them."""
    stream = np.random.default_rng(0)
    who, y = stream.integers(5, 15, 40), np.arange(40) % 2
    x = np.arange(40.0)[:, None]  # the row of each sample
    for given in (who, who.astype(str)):
        np.savez(tmp_path / "a.npz", x=x, y=y, who=given)
        chosen = ("data=npz", f"data.path={tmp_path}/a.npz", "data.group=who", "data.folds=3")
        configs = [compose(*chosen, f"data.fold={fold}").data for fold in range(3)]
        train, test = (part.features[:, 0].int().numpy() for part in splits(configs[0]))
        assert not set(who[train]) & set(who[test])
        divider = StratifiedGroupKFold(3, shuffle=True, random_state=0)
        expected = [held for _, held in divider.split(train, y[train], who[train])]
        for config, held in zip(configs, expected, strict=True):
            validation = training_and_validation(open_source(config).train, config)[1]
            assert validation.features[:, 0].tolist() == train[held].tolist()


def splits(config: Any) -> tuple[Split, Split]:
    source = open_source(config)
    return source.train, source.test


WHO, TESTED = np.array(["a", "b", "c", "d"]), {"x_test": X, "y_test": Y}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({}, r"data\.group=who: there is no array who; add the group of each row of x"),
        (
            {"who": WHO, **TESTED},
            r"there is no array who_test; add the group of each row of x_test",
        ),
        ({"who": WHO[:3]}, r"who is \(3,\) of <U1, must be \(4,\) of whole numbers or texts"),
        ({"who": np.arange(4.0)}, r"who is \(4,\) of float64, must be \(4,\) of whole numbers"),
        (
            {"who": WHO, "who_test": WHO[::-1], **TESTED},
            "the group 'a' is in who and in who_test; move its samples into one of the two sets",
        ),
    ],
)
def test_faults_of_groups(content: dict[str, Any], told: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X, y=Y, **content)
    with pytest.raises(InputError, match=told):
        open_source(compose("data=npz", f"data.path={tmp_path}/a.npz", "data.group=who").data)


def test_groups_of_a_test_set(tmp_path: Path) -> None:
    others = np.array(["e", "f", "e", "f"])
    np.savez(tmp_path / "a.npz", x=X, y=Y, x_test=X, y_test=Y, who=WHO, who_test=others)
    train, test = splits(compose("data=npz", f"data.path={tmp_path}/a.npz", "data.group=who").data)
    assert (len(train), len(test)) == (4, 4)
    assert train.groups is not None
    assert [train.groups.names[n] for n in train.groups.numbers.tolist()] == WHO.tolist()
