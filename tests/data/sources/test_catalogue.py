"""Data sets are found by name, and described as they are."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from kindling.config import registry
from kindling.config.compose import compose
from kindling.config.schema import OLD_TASK, Task
from kindling.data.sources import catalogue
from kindling.data.sources.catalogue import FAMILIES, describe, open_source
from kindling.data.sources.source import Description, Source, Split, split_off_test
from kindling.system.errors import InputError
from tests.helpers.data_files import ROWS, mnist_files, write_pictures


@pytest.mark.parametrize(
    "overrides",
    [
        ["data=mnist", "data.root=ROOT"],
        ["data=digits"],
        ["data=toy", "data.factor=3"],
        ["data=synthetic", "data.samples=20", "data.shape=[3,8,8]", "data.classes=4"],
        ["data=image_folder", "data.path=ROOT/pictures", "data.size=9", "data.channels=1"],
        ["data=npz", "data.path=ROOT/a.npz"],
        ["data=csv", "data.path=ROOT/t.csv", "data.target=kind"],
    ],
    ids=lambda overrides: overrides[0],
)
def test_a_description_is_that_of_the_opened_data(
    overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mnist_files(tmp_path, monkeypatch)
    write_pictures(tmp_path / "pictures", {"a": 5, "b": 5, "c": 5})
    np.savez(tmp_path / "a.npz", x=np.ones((9, 5, 4)), y=np.arange(9) % 3)
    (tmp_path / "t.csv").write_text(f"a,b,kind\n{ROWS}\n")
    config = compose(*(text.replace("ROOT", str(tmp_path)) for text in overrides)).data
    source = open_source(config)
    assert describe(config) == Description(source.shape, source.classes)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("fashion_mnist", Description((1, 28, 28), 10)),
        ("kmnist", Description((1, 28, 28), 10)),
        ("cifar10", Description((3, 32, 32), 10)),
        ("cifar100", Description((3, 32, 32), 100)),
    ],
)
def test_a_published_data_set_is_described_without_its_files(
    data: str, expected: Description, tmp_path: Path
) -> None:
    assert describe(compose(f"data={data}", f"data.root={tmp_path}").data) == expected
    assert not list(tmp_path.iterdir())


def test_a_new_module_needs_no_other_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A data set without `describe` is opened to describe it."""
    split = Split(torch.zeros(4, 7), torch.zeros(4, dtype=torch.long))
    module = ModuleType("new")
    module.open_source = lambda config: Source(config.name, split, split, ("a", "b"))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "kindling.data.sources.new", module)
    config = compose("data=digits").data.model_copy(update={"name": "new"})
    assert config.name not in FAMILIES
    assert open_source(config).labels == ("a", "b")
    assert describe(config) == Description((7,), 2)


def test_a_table_that_is_held_is_not_read_again(tmp_path: Path) -> None:
    """The stacks of a pack share it. Another file, setting or content is another source."""
    path = tmp_path / "t.csv"
    path.write_text(f"a,b,kind\n{ROWS}\n")
    base = ("data=csv", f"data.path={path}", "data.target=kind")
    config = compose(*base)
    source = open_source(config.data)
    assert open_source(compose(*base).data) is source
    assert open_source(compose(*base, "data.split_seed=1").data) is not source
    assert open_source(compose(*base, "data.drop=[a]").data).shape < source.shape
    digest = source.digest
    path.write_text(f"a,b,kind\n{ROWS}\n{ROWS}\n")
    again = open_source(config.data)
    assert again.digest != digest
    assert len(again.train) + len(again.test) == 2 * (len(source.train) + len(source.test))
    del source, again
    assert not [held for held in catalogue._open.values() if held.digest == digest]


Brought = Callable[..., Source]
X = torch.linspace(-3, 3, 48).view(12, 4)
Y = torch.arange(12) % 2
REGRESSION, MULTILABEL = (
    compose(f"task={name}", "data=csv", "data.path=t.csv", "data.target=[a,b]").task
    for name in ("regression", "multilabel")
)


@pytest.fixture
def brought(monkeypatch: pytest.MonkeyPatch) -> Brought:
    """Opens what an extension returns."""

    def opened(returned: Any, task: Task = OLD_TASK) -> Source:
        module = ModuleType("own.new")
        module.open_source = lambda *_: returned  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "own.new", module)
        monkeypatch.setitem(registry.PLACES, ("data", "new"), "own.new")
        return open_source(compose("data=digits").data.model_copy(update={"name": "new"}), task)

    return opened


def of(x: Any, y: Any, names: Any = ("a", "b"), **parts: Any) -> Source:
    """A data set of which each part has these samples."""
    split = Split(x, y)
    return Source("new", **{"train": split, "test": split, "labels": names, **parts})


@pytest.mark.parametrize("x", [X.double(), X.half(), X.numpy(), X.T.contiguous().T])
@pytest.mark.parametrize("y", [Y.int(), Y.byte(), Y.short(), Y.numpy().astype(np.uint16)])
def test_samples_of_an_extension_get_the_types_of_a_split(x: Any, y: Any, brought: Brought) -> None:
    """The engine reads the memory: of another type it would train on other numbers."""
    train, test = split_off_test(Split(x, y), 0.5, seed=0)
    assert [*map(int, torch.bincount(torch.as_tensor(test.labels).long()))] == [3, 3]  # of each
    source = brought(Source("new", train, test, ["a", "b"]))  # type: ignore[arg-type]
    assert source.labels == ("a", "b")
    own, expected = source.train, split_off_test(Split(X, Y), 0.5, seed=0)[0]
    assert (own.features.dtype, own.labels.dtype) == (torch.float32, torch.int64)
    torch.testing.assert_close(own.features, expected.features, rtol=1e-3, atol=0)
    assert torch.equal(own.labels, expected.labels)
    assert own.features.is_contiguous()
    assert brought(of(X.byte(), y)).train.features.dtype == torch.uint8  # of pictures


def test_numbers_of_an_extension_are_columns(brought: Brought) -> None:
    numbers = brought(of(X, Y.int(), ["y"]), REGRESSION)
    assert numbers.train.labels.shape == (12, 1)
    assert numbers.targets is not None
    assert torch.equal(numbers.targets.restored(numbers.train.labels)[:, 0].round(), Y.double())
    labels = brought(of(X, torch.stack([Y, 1 - Y], 1).bool()), MULTILABEL).train.labels
    assert (labels.dtype, labels[1].tolist()) == (torch.float32, [1, 0])


def with_nan() -> torch.Tensor:
    x = X.clone()
    x[3] = torch.nan
    return x


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (None, "returned NoneType, must return a Source"),
        (of(X, Y, None), "labels is None, must be 2 or more"),
        (of(X, Y, ()), r"labels is \(\), must be 2 or more"),
        (of(X, Y, ("a", "a")), "2 or more different names"),
        (of(X, Y, (0, 1)), "2 or more different names"),
        (of(X, Y, test=(X, Y)), "test is tuple, must be a Split"),
        (of(X.long(), Y), "train.features is of int64, must be floats, or uint8"),
        (of(X > 0, Y), "train.features is of bool"),
        (of(X.bfloat16(), Y), "train.features cannot be read as an array"),
        (of(None, Y), "train.features is None"),
        (of(with_nan(), Y), r"train.features\[3\] has NaN or infinite values"),
        (of(X.double() * 1e300, Y), r"train.features\[0\] has NaN or infinite values"),
        (of(X[:, 0], Y), r"train.features is \(12,\), must be \(N, ...\)"),
        (of(X, Y, test=Split(X[:0], Y[:0])), r"test.features is \(0, 4\), must be"),
        (of(X, Y.float()), "train.labels is of float32, must be whole numbers"),
        (of(X, Y == 1), "train.labels is of bool, must be whole numbers"),
        (of(X, torch.eye(2)[Y]), r"train.labels.argmax\(1\)"),
        (of(X, Y[:, None]), r"train.labels is \(12, 1\), must be \(12,\)"),
        (of(X, Y[:-1]), r"train.labels is \(11,\), must be \(12,\)"),
        (of(X, Y + 1), "train.labels has the class 2, must be 0 to 1"),
        (of(X, Y - 1), "train.labels has the class -1, must be 0 to 1"),
        (of(X, Y, validation=Split(X, Y * 5)), "validation.labels has the class 5"),
        (of(X, Y, test=Split(X[:, 1:], Y)), "samples of both must have the same shape"),
        (of(X, Y, test=Split(X.byte(), Y)), "of float32, test.features of uint8; make"),
        (of(X, Y, test=Split(X, Y, weights=-X[:, 0])), r"test.weights\[6\] is -0"),
    ],
)
def test_faults_of_the_data_of_an_extension(returned: Any, told: str, brought: Brought) -> None:
    with pytest.raises(InputError, match=rf"^data=new: open_source of own.new: .*{told}"):
        brought(returned)


@pytest.mark.parametrize(
    ("task", "y", "told"),
    [
        (REGRESSION, Y * torch.inf, "train.labels.* must be finite"),
        (REGRESSION, torch.eye(3)[Y], "train.labels has 3 columns, labels="),
        (MULTILABEL, torch.eye(2)[Y] * 2, "is 2, must be 0 or 1"),
        (MULTILABEL, Y[:-1], r"train.labels is \(11,\), must be \(12,\) or \(12, labels\)"),
    ],
)
def test_faults_of_numbers_of_an_extension(task: Task, y: Any, told: str, brought: Brought) -> None:
    with pytest.raises(InputError, match=rf"^data=new: open_source of own.new: .*{told}"):
        brought(of(X, y), task)
