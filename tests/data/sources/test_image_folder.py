"""Folders of pictures: values of the pixels, and the message for each fault."""

import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from kindling.config.compose import compose
from kindling.data.folders import labelled_pictures
from kindling.data.loader import Block, SeededOrder
from kindling.data.module import DataModule
from kindling.data.sources.catalogue import open_source, require_divisible
from kindling.data.sources.image_folder import PictureSplit
from kindling.data.sources.source import Source, split_off_validation
from kindling.system.errors import InputError
from kindling.training.fit import fit
from tests.helpers.data_files import write_pictures


def pictures(root: Path, *overrides: str) -> Source:
    return open_source(compose("data=image_folder", f"data.path={root}", *overrides).data)


def test_a_folder_for_each_class(tmp_path: Path) -> None:
    write_pictures(tmp_path, {"owl": 4, "cat": 10, "dog": 5})
    source = pictures(tmp_path, "data.size=4", "data.test_fraction=0.2")
    assert (source.labels, source.classes) == (("cat", "dog", "owl"), 3)
    assert (source.shape, source.train.features.dtype) == ((3, 4, 4), torch.uint8)
    assert torch.bincount(source.train.labels).tolist() == [8, 4, 3]
    assert torch.bincount(source.test.labels).tolist() == [2, 1, 1]
    everything = {tuple(x.flatten().tolist()) for x in source.train.features}
    with Image.open(tmp_path / "cat" / "0.png") as image:
        plain = np.asarray(image.resize((4, 4), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    tested = {tuple(x.flatten().tolist()) for x in source.test.features}
    assert tuple(plain.flatten().tolist()) in everything | tested
    grey = pictures(tmp_path, "data.size=4", "data.channels=1")
    assert grey.shape == (1, 4, 4)


def test_folders_train_and_test(tmp_path: Path) -> None:
    write_pictures(tmp_path / "train", {"a": 3, "b": 2})
    write_pictures(tmp_path / "test", {"b": 2})
    source = pictures(tmp_path)
    assert (source.train.labels.tolist(), source.test.labels.tolist()) == ([0, 0, 0, 1, 1], [1, 1])
    write_pictures(tmp_path / "test", {"c": 1})
    with pytest.raises(InputError, match=r"test/c: .*/train has no such class"):
        pictures(tmp_path)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_pictures_decoded_by_workers_are_the_resident_ones(
    tmp_path: Path, num_workers: int
) -> None:
    write_pictures(tmp_path, {"a": 12, "b": 9})
    (tmp_path / "a" / "3.png").write_bytes(b"no picture")
    common = ["data=image_folder", f"data.path={tmp_path}", "data.skip_broken=true"]
    common += ["data.batch_size=3", "data.size=5"]
    workers = ["data.loader=workers", f"data.num_workers={num_workers}"]
    modules = []
    for extra in ([], workers):
        config = compose(*common, *extra).data
        module = DataModule(config, steps_per_call=2)
        module.setup()
        module.set_orders([SeededOrder(1)], trial_count=1)
        modules.append(module)
    resident, lazy = modules
    assert isinstance(lazy.train, PictureSplit)
    assert resident.origin() == lazy.origin()
    for loader in ("train_dataloader", "val_dataloader", "test_dataloader"):
        pairs = zip(getattr(resident, loader)(), getattr(lazy, loader)(), strict=True)
        count = 0
        for expected, found in pairs:
            assert type(expected) is type(found)
            assert all(torch.equal(a, b) for a, b in zip(expected[:2], found[:2], strict=True))
            count += isinstance(expected, Block) and len(expected.labels)
        assert count == (5 if loader == "train_dataloader" else 0)  # batches of 13 samples


def write_patients(root: Path, hospitals: int = 2, patients: int = 6) -> None:
    """Pictures CLASS/HOSPITAL/PATIENT/0.png and 1.png. Both classes have the same patients, and
    both hospitals the same numbers of patients."""
    for hospital, patient in itertools.product(range(hospitals), range(patients)):
        write_pictures(root, {f"{name}/h{hospital}/{patient}": 2 for name in ("cat", "dog")})


@pytest.mark.parametrize("loader", ["resident", "workers"])
def test_groups_are_folders_below_the_classes(loader: str, tmp_path: Path) -> None:
    write_patients(tmp_path)
    loaded = ("data.size=4", f"data.loader={loader}")
    source = pictures(tmp_path, "data.group=2", *loaded)
    parts = [*split_off_validation(source.train, 0.2, 0), source.test]
    names = []
    for part in parts:
        assert part.groups is not None
        inside = {part.groups.names[number] for number in part.groups.numbers.tolist()}
        assert len(part) == 4 * len(inside)  # all pictures of a patient, of both classes
        names += sorted(inside)
    assert sorted(names) == [f"h{hospital}/{n}" for hospital in (0, 1) for n in range(6)]
    folds = ("data=image_folder", f"data.path={tmp_path}", "data.folds=3", "data.fold=0", *loaded)
    require_divisible([compose(*folds, "data.group=2")])
    with pytest.raises(
        InputError, match=r"data\.test_fraction=0\.2: data\.group=1 has no group that can"
    ):
        require_divisible([compose(*folds, "data.group=1")])


def test_faults_of_groups_of_pictures(tmp_path: Path) -> None:
    write_patients(tmp_path / "train")
    with pytest.raises(InputError) as caught:
        pictures(tmp_path / "train", "data.group=3")
    first = tmp_path / "train" / "cat" / "h0" / "0" / "0.png"
    assert (
        f"{first}: lies in no folder of level 3 below {tmp_path}/train/cat, which data.group=3 "
        "takes for its group (in all 24 of 24 pictures there); move them, or type data.group=null"
    ) in str(caught.value)
    write_patients(tmp_path / "test", hospitals=1, patients=1)
    with pytest.raises(InputError) as caught:
        pictures(tmp_path, "data.group=2")
    assert str(caught.value) == (
        f"data.group=2: the group 'h0/0' is in {tmp_path}/train and in {tmp_path}/test; move its "
        "pictures into one of them"
    )
    (tmp_path / "test" / "cat" / "h0").rename(tmp_path / "test" / "cat" / "h7")
    shutil.rmtree(tmp_path / "test" / "dog")
    assert len(pictures(tmp_path, "data.group=2").test) == 2


def test_too_little_memory_is_reported_before_decoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pictures(tmp_path, {"a": 3, "b": 3})
    monkeypatch.setattr("kindling.system.resources.free_memory", lambda: 6 * 3 * 100 * 100)
    monkeypatch.setattr("kindling.data.sources.image_folder.decode_all", None)
    with pytest.raises(
        InputError, match=r"6 pictures of 3 × 100 × 100 need .* data\.loader=workers"
    ):
        pictures(tmp_path, "data.size=100")


def test_mixed_sizes_and_modes_are_reported_and_unified(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_pictures(tmp_path, {"a": 2, "b": 2})
    ink = Image.new("RGBA", (3, 9), (0, 0, 0, 0))
    ink.save(tmp_path / "a" / "clear.png")
    Image.new("I;16", (7, 7), 257 * 100).save(tmp_path / "a" / "deep.png")
    Image.new("P", (7, 7)).save(tmp_path / "b" / "palette.png")
    Image.new("CMYK", (8, 8)).save(tmp_path / "b" / "print.jpg")
    (tmp_path / "b" / "notes.txt").write_text("x")
    with caplog.at_level("INFO", "kindling"):
        config = compose("data=image_folder", f"data.path={tmp_path}", "data.val_fraction=null")
        source = open_source(config.data)
    told = caplog.text
    assert "pictures from 3 × 5 to 8 × 9 pixels, of modes CMYK, I;16, P, RGB, RGBA" in told
    assert "not PNG or JPEG, left out: 1" in source.notes[0][1]
    values = torch.cat([source.train.features, source.test.features])
    flat = [x for x in values if x.min() == x.max()]
    assert {int(x.min()) for x in flat} >= {255, 100}  # clear is white, 16 bits are scaled


def test_a_broken_picture_is_named_and_skipped_only_on_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_pictures(tmp_path / "data", {"a": 6, "b": 6}, (60, 50))
    cut = tmp_path / "data" / "a" / "2.png"
    cut.write_bytes(cut.read_bytes()[:-2000])
    with pytest.raises(
        InputError, match=r"1 of 12 pictures cannot be read.*skip_broken=true"
    ) as caught:
        pictures(tmp_path / "data")
    assert str(cut) in str(caught.value)
    overrides = ["data=image_folder", f"data.path={tmp_path}/data", "data.skip_broken=true"]
    run = fit(
        compose(*overrides, "data.size=4", "trainer=cpu", "trainer.max_epochs=1"), tmp_path / "run"
    )
    data = run.result["data"]
    assert (data["skipped"], data["train"] + data["val"] + data["test"]) == (1, 11)
    assert str(cut) in caplog.text
    for path in (tmp_path / "data" / "b").iterdir():
        path.write_bytes(b"")
    with pytest.raises(InputError, match="nothing is left of b"):
        pictures(tmp_path / "data", "data.skip_broken=true")


def test_folders_without_classes_or_pictures(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no folder; it needs one for each of two or more"):
        pictures(tmp_path)
    write_pictures(tmp_path, {"a": 1})
    with pytest.raises(InputError, match="has only the folder a"):
        pictures(tmp_path)
    (tmp_path / "b").mkdir()
    (tmp_path / "c").mkdir()
    with pytest.raises(InputError) as caught:
        pictures(tmp_path)
    assert f"{tmp_path / 'b'}: has no picture" in str(caught.value)
    assert f"{tmp_path / 'c'}: has no picture" in str(caught.value)


def test_pictures_train_well_by_default(tmp_path: Path) -> None:
    write_pictures(tmp_path / "data", {"a": 40, "b": 40, "c": 40})
    config = compose("data=image_folder", f"data.path={tmp_path}/data", "trainer=cpu")
    assert (fit(config, tmp_path / "run").result["test/acc"] or 0) > 0.95


def test_names_of_classes_are_those_of_their_folders(tmp_path: Path) -> None:
    """Two names that print alike are two classes. Models of before have printable names."""
    names = ["a\u00a0b", "a\u200cb", "a\u200db", "c"]
    write_pictures(tmp_path, dict.fromkeys(names, 5))
    labels = pictures(tmp_path, "data.size=4").labels
    assert labels == tuple(names)
    paths, classes = labelled_pictures(tmp_path, labels)
    assert [path.parent.name for path in paths] == [labels[number] for number in classes]
    shutil.rmtree(tmp_path / names[1])
    shutil.rmtree(tmp_path / names[2])
    paths, classes = labelled_pictures(tmp_path, ("a\ufffdb", "c"))
    assert classes == [0] * 5 + [1] * 5
    with pytest.raises(InputError, match="b: is no class of the model"):
        labelled_pictures(tmp_path, ("ab", "c"))


def test_a_name_of_a_folder_that_is_not_utf_8_can_be_stored(tmp_path: Path) -> None:
    try:
        write_pictures(tmp_path, {"a\udcff": 3, "b": 3})
    except OSError:
        pytest.skip("this file system takes UTF-8 alone")
    assert pictures(tmp_path, "data.size=4").labels == ("a\ufffd", "b")
