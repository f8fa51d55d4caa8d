"""Data sets are found by name, and described as they are."""

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from kindling.config.compose import compose
from kindling.data.sources import catalogue
from kindling.data.sources.catalogue import FAMILIES, describe, open_source
from kindling.data.sources.source import Description, Source, Split
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
