"""`--boxes`: the picture with boxes, the table and the CSV, and wrong arguments."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kindling.config.compose import compose
from kindling.inference.inputs import read_request
from kindling.inference.pictures import NONE, Named
from kindling.inference.prediction import (
    Prediction,
    describe_predictions,
    predict_inputs,
    predict_request,
    to_csv,
)
from kindling.records.config_files import yaml_text
from kindling.records.folder import Run
from kindling.records.loading import open_trained
from kindling.system.errors import InputError
from kindling_digits.reader import LEAST_SURE, READ, UNREAD, draw_boxes
from tests.helpers.commands import require_told_without_torch
from tests.helpers.drawings import FIELD, draw, seven
from tests.helpers.forms import form

PAGE = form([np.asarray(draw(n, FIELD, (8, 4, 20, 24), 3, mode="L", ink=255, paper=0))
             for n in (7, 1, 4)], 3)  # fmt: skip


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    PAGE.image.save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


def colours(picture: bytes) -> Image.Image:
    return Image.open(io.BytesIO(picture)).convert("RGB")


def test_each_box_is_drawn_in_the_colour_of_its_class() -> None:
    image = Image.new("RGB", (300, 200), "white")
    named: list[Named] = [
        ((40, 60, 30, 50), "7", 0.981),
        ((140, 60, 30, 50), NONE, None),
        ((0, 0, 300, 200), "1", 1.0),  # at the edge
    ]
    drawn = colours(draw_boxes(image, named))
    assert drawn.size == image.size
    assert [drawn.getpixel(place) for place in ((39, 80), (139, 80), (55, 85))] == [
        Image.new("RGB", (1, 1), colour).getpixel((0, 0)) for colour in (READ, UNREAD, "white")
    ]
    pixels = np.asarray(drawn.convert("L"))
    assert (pixels[45:58, 40:90] < 255).any()  # the class and its probability


def test_a_large_picture_is_reduced_and_turned_upright() -> None:
    image = Image.new("L", (5000, 3000), 255)
    image.getexif()[0x0112] = 6
    drawn = colours(draw_boxes(image, [((300, 600, 900, 1200), NONE, None)]))
    assert drawn.size == (1000, 1667)
    outline = Image.new("RGB", (1, 1), UNREAD).getpixel((0, 0))
    assert drawn.getpixel((99, 300)) == drawn.getpixel((401, 300)) == outline


def test_the_output_has_a_row_and_a_box_for_each_drawing(
    finished: Run, photo: Path, tmp_path: Path
) -> None:
    out, table = tmp_path / "out.png", tmp_path / "found.csv"
    request = read_request(finished.folder, [photo], "auto", str(table), force=False, boxes=out)
    text = predict_request(request).text
    rows = list(csv.DictReader(io.StringIO(table.read_text())))
    assert [row["row"] for row in rows] == ["0", "1", "2"]
    boxes = [[int(row[side]) for side in ("x", "y", "width", "height")] for row in rows]
    assert np.abs(np.array(boxes) - PAGE.boxes).max() <= 4
    none = [row["class"] == "none" for row in rows]
    assert [row["probability"] == "" for row in rows] == none
    assert f"drawings found: 3; called none: {sum(none)}" in text
    assert text.splitlines()[2].split()[5:7] == ["box", "note"][: 1 + any(none)]
    assert colours(out.read_bytes()).size == PAGE.image.size


def test_what_is_unlike_or_unsure_is_none(finished: Run, photo: Path) -> None:
    trained = open_trained(finished.folder)
    out = photo.with_name("out.png")
    request = read_request(finished.folder, [photo], "auto", None, force=False, boxes=out)
    for item in predict_inputs(trained, request.inputs):
        assert item.guess is None or item.guess.probability >= LEAST_SURE
        assert item.note == ("" if item.guess else "unsure")

    class Unlike:
        def unlikeness(self, features: object, classes: object) -> list[float]:
            return [1.5, 0.5, 1.5]

    found = predict_inputs(trained, request.inputs, Unlike())
    assert [(item.guess is None, item.note) for item in found][::2] == [(True, "unlike")] * 2


def test_wrong_arguments(finished: Run, photo: Path, tmp_path: Path) -> None:
    blank = tmp_path / "blank.png"
    Image.new("L", (300, 200), 255).save(blank)
    (tmp_path / "folder").mkdir()
    seven().save(tmp_path / "folder" / "a.png")

    def message(paths: list[Path], boxes: Path, table: Path | None = None) -> str:
        with pytest.raises(InputError) as caught:
            read_request(
                finished.folder, paths, "auto", str(table) if table else None, force=True,
                boxes=boxes,
            )  # fmt: skip
        return str(caught.value)

    out = tmp_path / "out.png"
    assert message([photo], tmp_path / "out.gif") == (
        f"--boxes {tmp_path / 'out.gif'}: must end in .png; type --boxes out.png"
    )
    assert message([photo], tmp_path / "folder").endswith(
        f"is a folder; type --boxes {tmp_path / 'folder' / 'boxes.png'}"
    )
    assert message([photo], photo) == f"--boxes {photo}: is one of the inputs; name another file"
    assert "is the file of --csv, too" in message([photo], out, out)
    for paths in ([photo, photo], [tmp_path / "folder"], [tmp_path / "new.npz"]):
        assert "takes one PNG or JPEG file, not " in message(paths, out)
    assert message([tmp_path / "no.png"], out).endswith("no.png: there is no such file or folder")
    assert message([blank], out).startswith(f"{blank}: no drawing was found; photograph the paper")
    assert not out.exists()


def test_models_of_other_data_are_refused_before_torch_is_imported(
    photo: Path, tmp_path: Path
) -> None:
    told: dict[tuple[str, ...], str] = {}
    for data, takes in (("fashion_mnist", "whole pictures"), ("toy", "no pictures")):
        run = Run(tmp_path / data)
        run.config_file.parent.mkdir(parents=True)
        run.config_file.write_text(yaml_text(compose(f"data={data}").model_dump(mode="json")))
        run.checkpoints.mkdir()
        run.best_checkpoint.write_bytes(b"")
        arguments = (str(run.folder), str(photo), "--boxes", str(tmp_path / "o.png"))
        told[arguments] = (
            f"--boxes: {run.folder} was trained on data={data} and takes {takes}; name"
        )
    require_told_without_torch("predict", told)


def test_a_model_with_a_class_none_decides_itself(
    finished: Run, photo: Path, tmp_path: Path
) -> None:
    """Its `none` has a probability. The unlikeness and the bound of the probability do not overrule
    its other classes."""
    trained = open_trained(finished.folder)
    request = read_request(
        finished.folder, [photo], "auto", None, force=True, boxes=tmp_path / "o.png"
    )

    class Unlike:
        def unlikeness(self, features: object, classes: object) -> list[float]:
            return [1.5] * 3

    def predicted(labels: tuple[str, ...]) -> list[Prediction]:
        model = replace(trained, labels=labels)
        return predict_inputs(model, request.inputs, Unlike())

    assert [item.guess for item in predicted(tuple("0123456789"))] == [None] * 3
    best = [item.guess.best for item in predicted((*"012345678", NONE)) if item.guess]
    assert len(best) == 3
    labels = tuple(NONE if number == best[0] else str(number) for number in range(10))
    found = predicted(labels)
    assert [item.guess.best for item in found if item.guess] == best
    assert f"drawings found: 3; called none: {best.count(best[0])}" in describe_predictions(
        found, labels
    )
    rows = list(csv.DictReader(io.StringIO(to_csv(found, labels))))
    assert [row["class"] for row in rows] == [labels[number] for number in best]
    assert all(0 < float(row["probability"]) <= 1 for row in rows)
    named = [(item.box, labels[item.guess.best], 1) for item in found if item.box and item.guess]
    drawn = colours(draw_boxes(PAGE.image, named))
    for item, number in zip(found, best, strict=True):
        assert item.box is not None
        colour = UNREAD if number == best[0] else READ
        edge = drawn.getpixel((item.box[0] - 1, item.box[1] + 20))
        assert edge == Image.new("RGB", (1, 1), colour).getpixel((0, 0))
