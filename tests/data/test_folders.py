"""Layouts of folders of pictures: the parts, the classes, and what is refused or left out."""

import re
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kindling.config.compose import compose
from kindling.data.folders import labelled_pictures, list_pictures, part_of
from kindling.data.module import DataModule
from kindling.data.paths import path_faults
from kindling.data.sources.catalogue import require_divisible
from kindling.inference.evaluation import evaluate_path
from kindling.inference.samples import source_of, validation_of
from kindling.records.folder import Run
from kindling.records.loading import open_trained
from kindling.system.errors import InputError
from kindling.training.fit import fit
from tests.helpers.data_files import write_pictures

NAMES = {  # names that people use for the parts
    "train": ("Train", "training", "TRAIN", "training_set", "train-images"),
    "val": ("val", "valid", "VALIDATION", "validation_set", "dev"),
    "test": ("test1", "Testing", "TEST", "test_set", "eval"),
}
CLASSES = ("cat", "dog", "Owl")


def settings(root: Path, *more: str) -> list[str]:
    return ["data=image_folder", f"data.path={root}", "data.size=4", *more]


def pixels(split: object) -> list[tuple[int, ...]]:
    return sorted(tuple(x.flatten().tolist()) for x in split.features)  # type: ignore[attr-defined]


def samples(folder: Path) -> list[tuple[int, ...]]:
    """The pictures of one folder, by Pillow alone."""
    found = []
    for path in folder.rglob("*.png"):
        with Image.open(path) as image:
            small = image.convert("RGB").resize((4, 4), Image.Resampling.BILINEAR)
        found.append(tuple(np.asarray(small).transpose(2, 0, 1).flatten().tolist()))
    return sorted(found)


LAYOUTS = [
    parts
    for names in zip(*NAMES.values(), strict=False)
    for parts in (names, names[:2], names[::2])
]


@pytest.mark.parametrize("loader", ["resident", "workers"])
@pytest.mark.parametrize("parts", LAYOUTS, ids="+".join)
def test_each_part_has_its_own_pictures(
    parts: tuple[str, ...], loader: str, tmp_path: Path
) -> None:
    """Labels, counts and pixels of each part, for all names and cases, against the folders."""
    kinds = [kind for kind in NAMES if set(NAMES[kind]) & set(parts)]
    counts = dict(zip(kinds, [(4, 5, 6), (2, 1, 3), (1, 2, 2)], strict=False))
    for part, kind in zip(parts, kinds, strict=True):
        write_pictures(tmp_path / part, dict(zip(CLASSES, counts[kind], strict=True)))
    (tmp_path / "README.md").write_text("x")
    config = compose(*settings(tmp_path, f"data.loader={loader}")).data
    module = DataModule(config)
    module.setup()
    source = module.source
    assert source.labels == tuple(sorted(CLASSES))
    order = [sorted(CLASSES).index(name) for name in CLASSES]
    found = {"train": module.train, "val": module.validations[0], "test": source.test}
    for part, kind in zip(parts, kinds, strict=True):
        if kind == "train" and len(kinds) == 2:
            continue  # the part that lacks is drawn from it
        by_class = Counter(found[kind].labels.tolist())
        assert [by_class[number] for number in order] == list(counts[kind])
        assert pixels(found[kind]) == samples(tmp_path / part)
    drawn = [found["train"], *(found[kind] for kind in ("val", "test") if kind not in kinds)]
    together = sorted(pixel for split in drawn for pixel in pixels(split))
    assert together == samples(tmp_path / parts[0])
    assert (source.validation is None) == ("val" not in kinds)
    assert module.origin()["samples"] == [
        len(split) for split in (source.train, source.validation, source.test) if split is not None
    ]


REFUSED: dict[str, tuple[dict[str, tuple[str, ...]], str]] = {
    "train alone": ({"train": CLASSES}, "neither val nor test beside; type data.path="),
    "a class beside": ({"train": CLASSES, "cat": ("",)}, "has cat, with pictures, beside train"),
    "one more": (
        {"Train": CLASSES, "test": CLASSES, "unlabeled": ("",)}, "unlabeled, with pictures, beside"
    ),
    "twice": ({"train": CLASSES, "val": CLASSES, "valid": CLASSES}, "val and valid, which are the"),
    "two cases": ({"train": CLASSES, "TRAIN": CLASSES}, "TRAIN and train, which are the same"),
    "no train": ({"val": CLASSES, "test": CLASSES}, "but no folder train beside"),
    "test alone": ({"test": CLASSES, "cat": ("",)}, "has test, but no folder train beside"),
    "flat": ({"train": ("",), "test": ("",)}, "train: has 2 pictures, but no folder for each"),
    "flat val": ({"train": CLASSES, "val": ("",)}, "val: has 2 pictures, but no folder for each"),
    "vehicles": ({"car": ("",), "train": ("",)}, "car, with pictures, beside train"),
    "one class": ({"train": ("cat",), "test": ("cat",)}, "train: has only the folder cat"),
    "unknown": ({"train": CLASSES, "val": (*CLASSES, "elk")}, "val/elk: .*train has no such class"),
    "empty": ({"train": CLASSES, "val": ()}, "val: has no picture; add some"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_other_layouts_are_refused(name: str, tmp_path: Path) -> None:
    folders, told = REFUSED[name]
    for folder, classes in folders.items():
        (tmp_path / folder).mkdir()
        write_pictures(tmp_path / folder, dict.fromkeys(classes, 2))
    with pytest.raises(InputError, match=told):
        list_pictures(tmp_path)
    early = path_faults({"name": "image_folder", "path": str(tmp_path)})
    assert bool(early) == (name not in ("unknown", "empty"))  # before torch is imported


def test_names_of_classes_are_no_parts(tmp_path: Path) -> None:
    for name in ("trainer", "cat", "testament", "evil", "device", "value", "0", "", "set", "1"):
        assert part_of(name) is None
    write_pictures(tmp_path, {"valid": 3, "invalid": 4})
    assert list_pictures(tmp_path).labels == ("invalid", "valid")


def test_all_that_is_left_out_is_told(tmp_path: Path) -> None:
    write_pictures(tmp_path / "train", dict.fromkeys(CLASSES, 5))
    write_pictures(tmp_path / "test", {"": 7})
    write_pictures(tmp_path / "train", {"": 2})
    (tmp_path / "annotations").mkdir()
    others = ("labels.csv", "train/notes.TXT", "train/cat/a.webp", "train/cat/b.webp", ".hidden")
    for name in others:
        (tmp_path / name).write_text("x")
    found = list_pictures(tmp_path)
    assert {part: len(files.paths) for part, files in found.parts.items()} == {"training": 15}
    assert found.told == (
        f"{tmp_path}/test: 7 pictures without classes, not used; python -m src.predict RUN "
        f"{tmp_path}/test predicts them",
        f"{tmp_path}: pictures in no folder of a class, left out: 2, such as "
        f"{tmp_path}/train/0.png",
        f"{tmp_path}: folders without pictures, left out: annotations",
        f"{tmp_path}: files that are not PNG or JPEG, left out: 4 (.webp 2, .csv 1, .txt 1)",
    )


@pytest.mark.parametrize(
    ("inner", "told"),
    [(("train", "test"), True), (("Training", "val", "x"), True), (("train",), False),
     (("test", "val"), False), (("red", "blue"), False)],
)  # fmt: skip
def test_parts_below_the_classes_are_mixed_and_told(
    inner: tuple[str, ...], told: bool, tmp_path: Path
) -> None:
    for name in CLASSES:
        write_pictures(tmp_path / name, dict.fromkeys(inner, 2))
    found = list_pictures(tmp_path)
    assert len(found.parts["training"].paths) == len(CLASSES) * len(inner) * 2
    assert len(found.told) == told
    if told:
        first, second = sorted(inner)[:2]
        assert found.told[0] == (
            f"{tmp_path}/Owl: the pictures in {first} and {second} are mixed; to keep the parts, "
            f"move them to {tmp_path}/{first}/Owl and so on"
        )


def test_all_that_is_left_out_of_a_test_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_pictures(tmp_path, {"cat": 3, "": 2})
    assert labelled_pictures(tmp_path, ("cat", "dog"))[1] == [0, 0, 0]
    assert caplog.messages == [
        f"{tmp_path}: pictures in no folder of a class, left out: 2, such as {tmp_path}/0.png"
    ]
    (tmp_path / "cat" / "a.bmp").write_text("x")
    labelled_pictures(tmp_path, ("cat", "dog"))
    assert caplog.messages[2:] == [
        f"{tmp_path}: files that are not PNG or JPEG, left out: 1 (.bmp 1)"
    ]


def test_a_run_with_a_validation_set_of_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Told at the start; resumed, tested and calibrated with the same pictures."""
    data = tmp_path / "data"
    for part, count in (("train", 12), ("val", 5), ("test", 4)):
        write_pictures(data / part, {"cat": count, "dog": count + 1})
    short = ("trainer=cpu", "trainer.max_epochs=2", "data.batch_size=5")
    run = fit(compose(*settings(data), *short), tmp_path / "run")
    assert (
        "image_folder: 2 classes (cat, dog); training 25 (cat 12, dog 13), validation 11 (cat 5, "
        "dog 6), test 9 (cat 4, dog 5)" in caplog.text + (run.folder / "train.log").read_text()
    )
    counts = run.result["data"]
    assert [counts[name] for name in ("train", "val", "test")] == [25, 11, 9]
    assert evaluate_path(run.folder, None).loss == pytest.approx(run.result["test/loss"], abs=1e-6)
    trained = open_trained(run.folder)
    assert len(validation_of(trained, source_of(trained))) == 11
    weighted = ("trainer.class_weights=balanced", "data.sampler=balanced")
    again = fit(compose(*settings(data), *short, *weighted), tmp_path / "weighted")
    assert again.result["data"]["val"] == 11
    shutil.rmtree(data / "val" / "cat")
    told = re.escape(f"the content of data.path={data} has changed since it was trained")
    with pytest.raises(InputError, match=told):
        source_of(trained)


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (("data.folds=3", "data.fold=0"), "data.folds=3: the data have a validation set of their"),
        (("data.val_fraction=null",), "data.val_fraction=null: the data have a validation set"),
    ],
)
def test_a_validation_set_is_not_drawn_beside_one(
    typed: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    for part in ("train", "val"):
        write_pictures(
            tmp_path / part, {f"{c}/{n}{part}": 1 for c in ("cat", "dog") for n in range(9)}
        )
    config = compose(*settings(tmp_path, *typed, "trainer=cpu"))
    with pytest.raises(InputError, match=told):
        DataModule(config.data).setup()
    with pytest.raises(InputError, match=told):
        fit(config, tmp_path / "run")
    assert Run(tmp_path / "run").result["status"] == "failed"
    with pytest.raises(InputError, match=told):
        require_divisible([compose(*settings(tmp_path, *typed, "data.group=1"))])


def test_groups_stay_in_one_of_three_parts(tmp_path: Path) -> None:
    for part, people in (("train", "ab"), ("val", "cd"), ("test", "ea")):
        write_pictures(tmp_path / part, {f"{c}/{p}": 1 for c in ("x", "y") for p in people})
    with pytest.raises(InputError, match=r"the group 'a' is in .*train and in .*test; move"):
        list_pictures(tmp_path, 1)
    for label in ("x", "y"):
        (tmp_path / "test" / label / "a").rename(tmp_path / "test" / label / "f")
    found = list_pictures(tmp_path, 1)
    assert {name: sorted(set(files.groups or ())) for name, files in found.parts.items()} == {
        "training": ["a", "b"], "validation": ["c", "d"], "test": ["e", "f"]
    }  # fmt: skip
