"""Pictures of digits, from the file to the class that a trained model gives them."""

import csv
import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from src.data.pictures import decode
from src.data.sources.catalogue import open_source
from src.data.sources.mnist import read_idx_set
from src.inference import inputs
from src.inference.drawings import Invert, Prepared, find, prepare
from src.inference.evaluation import evaluate_path
from src.inference.inputs import Picture, left_out, read_inputs
from src.inference.likeness import likeness_of
from src.inference.prediction import answer, classify, describe, predict_inputs, to_csv
from src.runs.folder import Run
from src.runs.loading import open_trained
from src.system import errors
from src.system.errors import InputError, exit_on_error
from tests.helpers.commands import ROOT, Command, Train
from tests.helpers.drawings import Ink, draw

FIELD = (28, 28)

# What a person may save: canvas, box of the digit, pen in pixels, ink, paper, mode, file.
DRAWINGS: list[tuple[tuple[int, int], tuple[int, int, int, int], int, Ink, Ink, str, str]] = [
    ((640, 480), (210, 90, 400, 390), 14, "black", "white", "RGB", "0.png"),
    ((300, 300), (110, 40, 190, 260), 34, "white", "black", "RGB", "1.png"),
    ((1000, 700), (30, 520, 150, 680), 11, "#1e3cc8", "white", "RGB", "2.jpg"),
    ((120, 160), (30, 25, 90, 130), 9, 90, 200, "L", "3.png"),
    ((500, 400), (250, 60, 430, 330), 26, "yellow", "navy", "RGB", "4.jpeg"),
    ((400, 600), (120, 100, 300, 420), 3, "red", "white", "RGB", "5.png"),
    ((280, 280), (80, 50, 200, 230), 20, (0, 0, 0, 255), (0, 0, 0, 0), "RGBA", "6.png"),
    ((64, 64), (18, 10, 48, 54), 4, "white", "darkgreen", "RGB", "7.png"),
    ((2400, 1800), (900, 250, 1700, 1550), 120, "#201810", "#f0e6d0", "RGB", "8.png"),
    ((200, 300), (60, 60, 140, 220), 12, 0, 1, "1", "9.PNG"),
]
LIGHT_ON_DARK = {1, 4, 7}


def save_drawings(folder: Path) -> Path:
    folder.mkdir()
    for digit, (size, box, pen, ink, paper, mode, name) in enumerate(DRAWINGS):
        image = draw(
            digit,
            size,
            box,
            pen,
            ink=ink,
            paper=paper,
            mode=mode,
            slant=0.1,
            tremble=0.02,
            seed=digit,
        )
        image.save(folder / name)
    return folder


def right(drawings: Path, run: Path) -> int:
    """How many of the ten are taken for what they are; all must be read the right way round."""
    predictions = predict_inputs(open_trained(run), read_inputs([drawings]))
    assert [prediction.path.stem for prediction in predictions] == list("0123456789")
    for digit, prediction in enumerate(predictions):
        light = digit in LIGHT_ON_DARK
        assert prediction.drawn == ("light on dark" if light else "dark on light")
    guesses = [prediction.guess for prediction in predictions]
    return sum(guess is not None and guess.best == digit for digit, guess in enumerate(guesses))


def test_ten_drawings_by_the_default_run(
    default_run: Run, mnist_root: Path, tmp_path: Path
) -> None:
    """And pictures of MNIST's own digits, inverted and enlarged, are read as well as themselves."""
    assert right(save_drawings(tmp_path / "drawings"), default_run.folder) >= 9

    test = read_idx_set("mnist", mnist_root).test
    digits, labels = test.features[:500, 0].numpy(), test.labels[:500].tolist()
    trained = open_trained(default_run.folder)

    def accuracy(prepared: list[Any]) -> float:
        guesses = classify(trained, np.stack(prepared))
        hits = [guess.best == label for guess, label in zip(guesses, labels, strict=True)]
        return float(np.mean(hits))

    plain = accuracy(list(digits))
    inverted = [prepare(Image.fromarray(255 - digit), FIELD).pixels for digit in digits]
    enlarged = [
        prepare(Image.fromarray(digit).resize((200, 200)), FIELD).pixels for digit in digits
    ]
    assert accuracy(inverted) > plain - 0.01
    assert accuracy(enlarged) > plain - 0.01


def test_ten_drawings_by_a_run_on_the_digits(train: Train, tmp_path: Path) -> None:
    """Another writing, cut to its box and not centred by mass: chance is one of ten."""
    run = train("trainer.max_epochs=10")
    assert right(save_drawings(tmp_path / "drawings"), run.folder) >= 6


# --- a picture, prepared -----------------------------------------------------------------------


def seven(ink: Ink = "black", paper: Ink = "white", mode: str = "RGB") -> Image.Image:
    """A drawing that looks like itself one way up only."""
    return draw(7, (300, 240), (160, 30, 250, 210), 16, ink=ink, paper=paper, mode=mode)


SEVEN = prepare(seven(), FIELD).pixels.astype(int)


def assert_seven(prepared: Prepared, inverted: bool, tolerance: int = 4) -> None:
    assert (prepared.inverted, prepared.blank) == (inverted, False)
    assert prepared.pixels.dtype == np.uint8
    assert abs(prepared.pixels - SEVEN).max() <= tolerance


@pytest.mark.parametrize("digit", range(10))
@pytest.mark.parametrize("shape", [(28, 28), (14, 20), (64, 48)])
def test_scaled_and_centred_as_mnists_are(digit: int, shape: tuple[int, int]) -> None:
    found = prepare(draw(digit, (500, 300), (20, 30, 140, 270), 20), shape)
    rows, columns = (np.flatnonzero(found.pixels.any(axis)) for axis in (1, 0))
    height, width = np.ptp(rows) + 1, np.ptp(columns) + 1
    assert found.pixels.shape == shape
    assert found.pixels.max() == 255
    # The box of MNIST: 20 of 28, or less along one of both.
    room = [round(side * 20 / 28) for side in shape]
    assert (height == room[0] and width <= room[1]) or (width == room[1] and height <= room[0])
    # The centre of mass on the middle pixel, unless the drawing would leave the field for it.
    mass = found.pixels.astype(float)
    for axis, (side, first, size) in enumerate(
        zip(shape, (rows[0], columns[0]), (height, width), strict=True)
    ):
        centre = mass.sum(1 - axis) @ np.arange(side) / mass.sum()
        assert abs(centre - side // 2) <= 0.51 or first in (0, side - size)


def test_mnists_own_digits_stay_as_they_are(mnist_root: Path) -> None:
    digits = read_idx_set("mnist", mnist_root).test.features[:200, 0].numpy()
    drift = [
        abs(prepare(Image.fromarray(digit), FIELD).pixels.astype(int) - digit).mean()
        for digit in digits
    ]
    assert np.median(drift) < 0.1
    assert np.mean(drift) < 1


def test_proportions_are_kept() -> None:
    image = Image.new("L", (200, 200))
    image.paste(255, (50, 10, 90, 170))  # 40 × 160
    pixels = prepare(image, FIELD).pixels
    expected = np.zeros(FIELD, np.uint8)
    expected[4:24, 12:17] = 255  # 5 × 20, as near to pixel (14, 14) as whole pixels go
    assert np.array_equal(pixels, expected)


@pytest.mark.parametrize(
    ("ink", "paper", "inverted"),
    [
        ("white", "black", False),
        ("navy", "white", True),
        ("yellow", "white", True),  # of the same luminance, nearly
        ("red", "#004dff", False),
        ("#808080", "#999999", True),  # hardly to be seen
        ("#ff0000", "#008200", False),  # of the very same luminance
    ],
)
def test_colours_and_polarity_do_not_matter(ink: str, paper: str, inverted: bool) -> None:
    assert_seven(prepare(seven(ink, paper), FIELD), inverted)


def _transposed(image: Image.Image, orientation: int) -> Image.Image:
    """Lying on its side, with EXIF that says so."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    image.transpose(Image.Transpose.ROTATE_90).save(file, "JPEG", exif=exif, quality=95)
    return decode(file.getvalue(), "side.jpg")


def _saved(image: Image.Image, kind: str, **options: Any) -> Image.Image:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return decode(file.getvalue(), "saved")


def _sixteen_bits() -> Image.Image:
    levels = np.asarray(seven().convert("L")).astype(np.uint16) * 256
    return _saved(Image.fromarray(levels), "PNG")


VARIANTS: dict[str, tuple[Callable[[], Image.Image], bool]] = {
    "grey": (lambda: seven().convert("L"), True),
    "two colours": (lambda: seven().convert("1"), True),
    "palette": (lambda: _saved(seven().convert("P"), "PNG"), True),
    "transparent palette": (lambda: _transparent_palette(seven("red")), True),
    "sixteen bits": (_sixteen_bits, True),
    "CMYK": (lambda: _saved(seven().convert("CMYK"), "JPEG", quality=95), True),
    "JPEG": (lambda: _saved(seven(), "JPEG", quality=50), True),
    "EXIF": (lambda: _transposed(seven(), 6), True),
    "black on nothing": (lambda: _saved(seven((0, 0, 0, 255), (0, 0, 0, 0), "RGBA"), "PNG"), True),
    "white on nothing": (lambda: seven((255, 255, 255, 255), (0, 0, 0, 0), "RGBA"), False),
    "white on nothing white": (lambda: seven((255, 255), (255, 0), "LA"), False),
    "round corners": (lambda: _with_round_corners(seven("black", "white", "RGBA")), True),
    "twenty-fold": (lambda: seven().resize((6000, 4800)), True),
    "framed": (lambda: _framed(seven()), True),
}  # fmt: skip


def _transparent_palette(image: Image.Image) -> Image.Image:
    palette = image.convert("P")
    paper = palette.getpixel((0, 0))
    return _saved(palette, "PNG", transparency=paper)


def _with_round_corners(image: Image.Image) -> Image.Image:
    for x in range(10):
        for y in range(10 - x):
            image.putpixel((x, y), (0, 0, 0, 0))
    return image


def _framed(image: Image.Image) -> Image.Image:
    canvas = Image.new("RGB", (image.width + 6, image.height + 6), "#333")
    canvas.paste(image, (3, 3))
    return canvas


@pytest.mark.parametrize("name", VARIANTS)
def test_any_way_to_save_it(name: str) -> None:
    make, inverted = VARIANTS[name]
    assert_seven(prepare(make(), FIELD), inverted, tolerance=24)


def test_a_picture_on_its_side_without_exif_is_another() -> None:
    side = prepare(seven().transpose(Image.Transpose.ROTATE_90), FIELD).pixels
    assert abs(side.astype(int) - SEVEN).max() > 200


@pytest.mark.parametrize("size", [0.15, 0.5, 3.0])
def test_size_does_not_matter(size: float) -> None:
    image = seven().resize((round(300 * size), round(240 * size)), Image.Resampling.LANCZOS)
    found = prepare(image, FIELD).pixels
    assert abs(found.astype(int) - SEVEN).mean() < 5


def test_noise_of_a_photograph_is_no_ink() -> None:
    noise = np.random.default_rng(0).normal(0, 5, (240, 300, 3))
    shade = np.linspace(0, -60, 300)[None, :, None]
    levels = np.asarray(seven("#303040", "#d8d4c8")) + shade + noise
    found = prepare(Image.fromarray(levels.clip(0, 255).astype(np.uint8)), FIELD)
    assert found.inverted
    assert abs(found.pixels.astype(int) - SEVEN).mean() < 2
    assert not found.pixels[SEVEN == 0].any()


@pytest.mark.parametrize(("invert", "inverted"), [("yes", True), ("no", False)])
def test_polarity_can_be_given(invert: Invert, inverted: bool) -> None:
    """A digit that fills its picture: what is ink cannot be seen."""
    image = Image.new("L", (40, 40), 255)
    image.paste(0, (8, 0, 40, 40))
    assert prepare(image, FIELD).inverted is False
    found = prepare(image, FIELD, invert)
    assert found.inverted is inverted
    sizes = [int(np.ptp(np.flatnonzero(found.pixels.any(axis)))) + 1 for axis in (1, 0)]
    assert sizes == ([20, 16] if inverted else [20, 4])


@pytest.mark.parametrize("paper", ["white", "black", "#777"])
@pytest.mark.parametrize("invert", ["auto", "yes", "no"])
def test_nothing_drawn(paper: str, invert: Invert) -> None:
    found = prepare(Image.new("RGB", (30, 20), paper), FIELD, invert)
    assert found.blank
    assert not found.pixels.any()
    assert prepare(Image.new("RGBA", (30, 20), (0, 0, 0, 0)), FIELD, invert).blank
    assert prepare(Image.new("L", (1, 1)), FIELD, invert).blank


def pasted(digits: list[int], places: list[tuple[int, int]], seed: int) -> Image.Image:
    """Digits with their upper left corners in these places, dark on light."""
    image = Image.new("L", (600, 600), "white")
    for number, (digit, place) in enumerate(zip(digits, places, strict=True)):
        pen = 6 + 5 * number
        image.paste(
            draw(
                digit, (180, 180), (40, 20, 140, 160), pen,
                mode="L", ink=0, paper=255, slant=0.1, tremble=0.01, seed=seed,
            ),
            place,
        )  # fmt: skip
    return image


PLACES: dict[str, list[tuple[int, int]]] = {
    "beside": [(10, 200), (210, 210)],
    "below": [(200, 10), (190, 210)],
    "across": [(20, 20), (300, 380)],
    "three": [(0, 200), (200, 180), (400, 220)],
    "four": [(0, 0), (300, 20), (30, 300), (310, 310)],
}


@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
def test_several_drawings_are_counted(places: list[tuple[int, int]]) -> None:
    for seed in range(10):
        digits = [(seed + 3 * number) % 10 for number in range(len(places))]
        image = pasted(digits, places, seed)
        assert find(image).count == prepare(image, FIELD).count == len(places)


def test_a_digit_in_several_strokes_is_one_drawing(mnist_root: Path) -> None:
    """One of a thousand of MNIST's is taken for two; and a speck beside a digit counts for none."""
    digits = read_idx_set("mnist", mnist_root).test.features[:, 0].numpy()
    counts = [find(Image.fromarray(digit)).count for digit in digits[:4000]]
    assert np.mean([count != 1 for count in counts]) <= 0.002
    image = seven()
    image.paste("black", (40, 60, 52, 72))
    assert find(image).count == 1
    for digit in range(10):
        for pen in (4, 14, 34):
            assert find(draw(digit, (300, 300), (60, 40, 200, 260), pen)).count == 1


# --- wrong files -------------------------------------------------------------------------------


def png_of(side: int) -> bytes:
    """A picture of side × side pixels by its header, with data of none."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    parts = (b"IHDR", header), (b"IDAT", zlib.compress(bytes(9))), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, data) for kind, data in parts)


def saved(kind: str, cut: int | None = None) -> bytes:
    file = io.BytesIO()
    seven().save(file, kind)
    return file.getvalue()[:cut]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a PNG or JPEG file; save the picture as PNG"),
        (b"a text", "is not a PNG or JPEG file"),
        (saved("GIF"), "is not a PNG or JPEG file"),
        (saved("PNG", 400), "is damaged .*; save the picture again"),
        (saved("JPEG", 3000), "is damaged .*; save the picture again"),
        (png_of(100_000), "has more than 64,000,000 pixels; scale the picture down"),
        (png_of(10_000), "has more than 64,000,000 pixels"),
        (png_of(8_001), "has more than 64,000,000 pixels"),
        (png_of(100), "is damaged"),  # as the ones above were, had they been decoded
    ],
)
def test_wrong_pictures(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"^{path}: {message}") as caught:
        read_inputs([path])
    assert "\n" not in str(caught.value)


def test_a_file_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    with path.open("wb") as file:
        file.truncate(65 * 2**20)
    with pytest.raises(InputError, match=r"has more than 64 MiB; scale the picture down"):
        read_inputs([path])


def test_wrong_paths(tmp_path: Path) -> None:
    (tmp_path / ".hidden.png").write_bytes(saved("PNG"))
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(InputError, match=r"has no \.png, \.jpg or \.jpeg file; name a folder"):
        read_inputs([tmp_path])
    with pytest.raises(InputError, match="there is no such file or folder"):
        read_inputs([tmp_path / "absent.png"])
    with pytest.raises(InputError, match="is neither a file nor a folder"):
        read_inputs([Path("/dev/null")])
    with pytest.raises(InputError, match=r"cannot be read \(File name too long\)"):
        read_inputs([tmp_path / ("x" * 300)])


def test_every_fault_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / f"{number}.png" for number in range(5)]
    with pytest.raises(InputError) as caught:
        read_inputs(paths)
    lines = str(caught.value).splitlines()
    assert lines[0] == "5 faults, nothing was predicted"
    assert [line.split(":")[0] for line in lines[1:]] == [f"  {path}" for path in paths]
    monkeypatch.setattr(errors, "FAULTS_SHOWN", 2)
    with pytest.raises(InputError, match=r"1\.png.*\n  and 3 more$"):
        read_inputs(paths)


def test_files_of_other_kinds_are_counted_and_named(tmp_path: Path) -> None:
    seven().save(tmp_path / "seven.png")
    (tmp_path / ".hidden.txt").write_text("")
    (tmp_path / "folder.png").mkdir()
    assert left_out([tmp_path, tmp_path / "seven.png"]) == [
        f"{tmp_path}: 1 left out, no PNG or JPEG: folder.png/"
    ]
    for name in ("a.gif", "b.npz", "c\n.csv", "d.txt", "e", "f"):
        (tmp_path / name).write_text("")
    assert left_out([tmp_path]) == [
        f"{tmp_path}: 7 left out, no PNG or JPEG: a.gif, b.npz, c\ufffd.csv, d.txt, e and 2 more"
    ]


@pytest.mark.parametrize("seed", range(5))
def test_what_can_be_read_is_answered_whatever_else_is_there(
    seed: int, train: Train, tmp_path: Path
) -> None:
    """Good and broken files of every kind in any order: each has its place in the answer."""
    hand = np.random.default_rng(seed)
    whole = saved("PNG")
    np.savez(tmp_path / "good.npz", x=np.zeros((2, 28, 28), np.uint8))
    np.savez(tmp_path / "shape.npz", x=np.zeros((2, 7), np.uint8))
    np.savez(tmp_path / "labels.npz", x=np.zeros((2, 28, 28), np.uint8), y=[0, 99])
    (tmp_path / "good.png").write_bytes(whole)
    (tmp_path / "cut.png").write_bytes(whole[: hand.integers(len(whole) // 2)])
    (tmp_path / "torn.npz").write_bytes(hand.bytes(int(hand.integers(1, 500))))
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    (tmp_path / "empty").mkdir()
    good = {"good.npz": 2, "good.png": 1}
    bad = ["shape.npz", "labels.npz", "cut.png", "torn.npz", "table.csv", "empty", "absent.png"]
    names = [str(name) for name in hand.permutation([*good, *bad, *good])]
    found = predict_inputs(
        open_trained(train("trainer.max_epochs=1").folder),
        read_inputs([tmp_path / name for name in names]),
    )
    expected = [name for name in names for _ in range(good.get(name, 1))]
    assert [item.path.name for item in found] == expected
    for item in found:
        assert (item.guess is None) == bool(item.fault) == (item.path.name in bad)
        assert item.fault.startswith(f"{item.path}: " if item.fault else "")
    rows = csv.DictReader(io.StringIO(to_csv(found, "0123456789")))
    assert [bool(row["fault"]) for row in rows] == [name in bad for name in expected]


ONES = np.ones((3, 28, 28), np.uint8)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": ONES}, "has no array x, it has images"),
        ({}, "has no array x, it has none"),
        ({"x": np.array([None, {}])}, "Object arrays cannot be loaded"),
        ({"x": np.array(["a", "b"])}, "x is of <U1, must be uint8 from 0 to 255 or floats"),
        ({"x": ONES.astype(int)}, "x is of int64"),
        ({"x": ONES[:0]}, r"x is \(0, 28, 28\), must be \(N, \.\.\.\)"),
        ({"x": np.float32(1)}, r"x is \(\), must be"),
        ({"x": np.full((2, 28, 28), [[[0]], [[np.nan]]])}, r"x\[1\] has NaN or infinite"),
        ({"x": np.full((2, 28, 28), 1e300)}, r"x\[0\] has NaN or infinite"),
        ({"x": ONES * 255.0}, "x goes from 255 to 255, floats must be from 0 to 1"),
        ({"x": ONES, "y": [1, 2]}, r"y is \(2,\), must be \(3,\), a label for each row"),
        ({"x": ONES * 2.0, "y": [1.0, 2, 3]}, "x goes .*; y is of float64, must be whole"),
    ],
)
def test_wrong_arrays(arrays: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "samples.npz"
    np.savez(path, **arrays)
    with pytest.raises(InputError, match=rf"^{path}: .*{message}"):
        read_inputs([path])


def test_arrays_are_bounded_before_they_are_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "samples.npz"
    np.savez_compressed(path, x=np.zeros((2000, 28, 28), np.uint8))
    assert path.stat().st_size < 10_000
    monkeypatch.setattr(inputs, "ARRAYS_LIMIT", 2**20)
    monkeypatch.delattr(np, "load")
    with pytest.raises(InputError, match="unpacks to more than 1 MiB; split it"):
        read_inputs([path])
    path.write_bytes(b"no archive")
    with pytest.raises(InputError, match=r"cannot be read as \.npz \(File is not a zip file\)"):
        read_inputs([path])


# --- predictions -------------------------------------------------------------------------------


def test_arrays_get_what_evaluate_gives_them(train: Train, tmp_path: Path) -> None:
    run = train()
    test = open_source(run.config.data).test
    features, labels = test.features.numpy(), test.labels.numpy()
    np.savez(tmp_path / "floats.npz", x=features.astype(float), y=labels)
    np.savez(tmp_path / "bytes.npz", x=np.rint(features[:3, 0] * 255).astype(np.uint8))
    trained = open_trained(run.folder)
    names = ["bytes.npz", "floats.npz"]
    found = predict_inputs(trained, read_inputs([tmp_path / name for name in names]))
    assert [(item.path.name, item.row) for item in found[:4]] == [
        *(("bytes.npz", row) for row in range(3)),
        ("floats.npz", 0),
    ]
    hits = [item.guess is not None and item.guess.best == item.label for item in found[3:]]
    assert np.mean(hits) == evaluate_path(run.folder, None).accuracy
    probabilities = trained.model(test.features).softmax(-1).detach().numpy()
    for item, row in zip(found[3:], probabilities, strict=True):
        assert item.guess is not None
        best, second = np.argsort(row)[::-1][:2]
        assert (item.guess.best, item.guess.second) == (best, second)
        assert item.guess.probability == pytest.approx(row[best], abs=1e-5)
        assert item.guess.second_probability == pytest.approx(row[second], abs=1e-5)
    for exact, rounded in zip(found[3:6], found[:3], strict=True):
        assert exact.guess is not None
        assert rounded.guess is not None
        assert rounded.guess.probability == pytest.approx(exact.guess.probability, abs=0.01)
    text = describe(found, "0123456789")
    assert "and 262 more; --csv FILE writes every row" in text
    assert f"{sum(hits)} of 359 right, accuracy {np.mean(hits):.2%}" in text
    rows = list(csv.DictReader(io.StringIO(to_csv(found, "0123456789"))))
    assert len(rows) == 362
    assert (rows[3]["row"], rows[3]["label"], rows[0]["label"]) == ("0", str(labels[0]), "")
    assert sum(row["class"] == row["label"] for row in rows) == sum(hits)


def test_pictures_and_arrays_keep_their_order(train: Train, tmp_path: Path) -> None:
    trained = open_trained(train().folder)
    seven().save(tmp_path / "a.png")
    Image.new("L", (9, 9)).save(tmp_path / "b\n.png")
    np.savez(tmp_path / "c.npz", x=np.stack([SEVEN, SEVEN]).astype(np.uint8))
    order = ["c.npz", "a.png", "b\n.png", "c.npz"]
    found = predict_inputs(trained, read_inputs([tmp_path / name for name in order]))
    assert [item.path.name for item in found] == ["c.npz", *order[:3], "c.npz", "c.npz"]
    assert [item.drawn for item in found] == ["", "", "dark on light", "nothing", "", ""]
    assert [item.guess is None for item in found] == [False, False, False, True, False, False]
    first, picture = found[0].guess, found[2].guess
    assert first is not None
    assert picture is not None
    assert (first.best, first.second) == (picture.best, picture.second)
    assert first.probability == pytest.approx(picture.probability)
    lines = describe(found, "0123456789").splitlines()
    assert lines[5].split()[-5:] == ["-", "-", "-", "-", "nothing"]
    assert f"{tmp_path}/b\ufffd.png" in lines[5]  # no line of its own


def test_a_model_that_takes_no_pictures(train: Train, tmp_path: Path) -> None:
    seven().save(tmp_path / "a.png")
    pictures = read_inputs([tmp_path / "a.png"])
    toy = open_trained(train("data=toy", "data.factor=4").folder)
    with pytest.raises(InputError, match=r"takes features \(2,\), it was trained on data=toy"):
        predict_inputs(toy, pictures)
    colour = open_trained(train("data=synthetic", "data.shape=[3,8,8]").folder)
    with pytest.raises(InputError, match=r"Name an \.npz file with x of \(N, 3, 8, 8\) in place"):
        predict_inputs(colour, pictures)
    np.savez(tmp_path / "toy.npz", x=[[-1.2, 3.1], [2.7, -1.5]], y=[0, 1])
    found = predict_inputs(toy, read_inputs([tmp_path / "toy.npz"]))
    assert [item.guess and item.guess.best for item in found] == [0, 1]
    np.savez(tmp_path / "toy.npz", x=[[-1.2, 3.1, 0]])
    with pytest.raises(InputError, match=r"x is \(1, 3\), but .*best\.ckpt takes \(N, 2\)"):
        predict_inputs(toy, read_inputs([tmp_path / "toy.npz"]))
    np.savez(tmp_path / "toy.npz", x=[[-1.2, 3.1], [2.7, -1.5]], y=[0, 2])
    with pytest.raises(InputError, match="y goes from 0 to 2, must be from 0 to 1"):
        predict_inputs(toy, read_inputs([tmp_path / "toy.npz"]))


def test_other_fields(train: Train, tmp_path: Path) -> None:
    """Pictures are made for the model's shape, whatever it is."""
    seven().save(tmp_path / "a.png")
    trained = open_trained(train("data=synthetic", "data.shape=[14,20]", "data.classes=3").folder)
    (found,) = predict_inputs(trained, read_inputs([tmp_path / "a.png"]))
    (expected,) = classify(trained, prepare(seven(), (14, 20)).pixels[None])
    assert found.guess == expected


def test_weights_that_are_no_numbers(train: Train) -> None:
    trained = open_trained(train().folder)
    next(trained.model.parameters()).data.fill_(float("nan"))
    with pytest.raises(InputError, match=r"best\.ckpt: its weights make no finite numbers"):
        classify(trained, SEVEN.astype(np.uint8)[None])


# --- the command -------------------------------------------------------------------------------


def test_the_command(command: Command, train: Train, tmp_path: Path) -> None:
    run = train()
    drawings = save_drawings(tmp_path / "drawings")
    shown = command("src.predict", str(run.folder), str(drawings), "--csv", "found.csv")
    assert (shown.returncode, shown.stderr) == (0, "")
    *lines, told = shown.stdout.splitlines()
    assert lines[0] == f"{run.best_checkpoint}, trained on digits"
    assert lines[2].split()[5:] == ["drawn", "note"]
    content = (tmp_path / "found.csv").read_text()
    rows = list(csv.DictReader(io.StringIO(content)))
    trained = open_trained(run.folder)
    expected = predict_inputs(trained, read_inputs([drawings]), likeness_of(trained))
    unlike = [item.unlikeness is not None and item.unlikeness > 1 for item in expected]
    assert told.startswith(f"{sum(unlike)} of 10 are unlike: ")  # the digits are another writing
    for line, row, prediction in zip(lines[4:], rows, expected, strict=True):
        guess = prediction.guess
        assert guess is not None
        assert line.split() == [
            str(prediction.path), str(guess.best), f"{guess.probability:.2%}",
            str(guess.second), f"{guess.second_probability:.2%}", *prediction.drawn.split(),
            *prediction.note.split(),
        ]  # fmt: skip
        assert list(row.values()) == [
            str(prediction.path), "", str(guess.best), f"{guess.probability:.6f}",
            str(guess.second), f"{guess.second_probability:.6f}", prediction.drawn, "",
            "1", f"{prediction.unlikeness:.4f}", "",
        ]  # fmt: skip
    printed = command("src.predict", str(run.best_checkpoint), str(drawings), "--csv", "-")
    assert printed.stdout == content
    assert sorted(path.name for path in tmp_path.iterdir()) == ["drawings", "found.csv", "run1"]


def test_the_commands_status_says_whether_all_was_answered(
    command: Command, train: Train, tmp_path: Path
) -> None:
    run = str(train().folder)
    folder = tmp_path / "pictures"
    folder.mkdir()
    for name in ("a.png", "c.png"):
        seven().save(folder / name)
    for name in ("b.png", "notes.txt"):
        (folder / name).write_text("a text")
    fault = "is not a PNG or JPEG file; save the picture as PNG"
    told = f"{folder}: 1 left out, no PNG or JPEG: notes.txt\nerror: {folder / 'b.png'}: {fault}\n"
    done = command("src.predict", run, str(folder))
    assert (done.returncode, done.stderr) == (1, told)
    assert [line.split()[0] for line in done.stdout.splitlines()[4:6]] == [
        str(folder / "a.png"),
        str(folder / "c.png"),
    ]
    done = command("src.predict", run, str(folder), "--csv", "-")
    assert (done.returncode, done.stderr) == (1, told)
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["fault"] for row in rows] == ["", fault, ""]
    assert [row["class"] == "" for row in rows] == [False, True, False]
    done = command("src.predict", run, str(folder / "b.png"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {folder / 'b.png'}: {fault}\n"


def test_what_is_wrong_is_told_before_torch_is_imported(
    cold_command: Command, train: Train, tmp_path: Path
) -> None:
    run = str(train().folder)
    torch = tmp_path / "without" / "torch.py"
    torch.parent.mkdir()
    torch.write_text("raise SystemExit('torch was imported')")
    (tmp_path / "found.csv").write_text("mine")
    seven().save(tmp_path / "seven.png")

    def message(*arguments: str) -> str:
        done = cold_command("src.predict", *arguments, PYTHONPATH=f"{torch.parent}:{ROOT}")
        assert (done.returncode, done.stdout) == (2, "")
        return done.stderr

    assert message("seven.png", "seven.png").startswith("error: seven.png: is no run; name one")
    assert message("nowhere", "seven.png") == "error: nowhere: there is no such file or folder\n"
    assert message("without", "seven.png").startswith("error: without: is no run folder")
    assert message(run, "no.png") == "error: no.png: there is no such file or folder\n"
    assert message(run, "seven.png", "--csv", "found.csv") == (
        "error: --csv found.csv: exists already; name another file, or type --force to replace it\n"
    )
    assert message(run, "seven.png", "--csv", "without").startswith("error: --csv without: is a f")
    assert "there is no folder no" in message(run, "seven.png", "--csv", "no/x.csv")
    assert "is to be predicted itself" in message(run, ".", "--csv", "seven.png", "--force")
    assert "required: IMAGE" in message(run)
    assert (tmp_path / "found.csv").read_text() == "mine"
    done = cold_command("src.predict", run, "seven.png", PYTHONPATH=f"{torch.parent}:{ROOT}")
    assert (done.returncode, done.stderr) == (1, "torch was imported\n")  # so the check is one


def test_a_file_is_replaced_by_force_alone(train: Train, tmp_path: Path) -> None:
    run = train().folder
    seven().save(tmp_path / "seven.png")
    target = tmp_path / "found.csv"
    target.write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        inputs.read_request(run, [tmp_path / "seven.png"], "auto", str(target), force=False)
    request = inputs.read_request(run, [tmp_path / "seven.png"], "no", str(target), force=True)
    (picture,) = request.inputs
    assert isinstance(picture, Picture)
    assert not picture.drawing.inverted
    answer(request)
    assert target.read_text().startswith("file,row,class,probability,runner_up")
    assert "light on dark" in target.read_text()
    target.unlink()
    target.mkdir()  # after it was checked
    with pytest.raises(InputError, match=r"found\.csv: is a folder, must be a file"):
        answer(request)


def test_ctrl_c_ends_a_command_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, exit_on_error():
        raise KeyboardInterrupt
    assert ended.value.code == 130
    assert capsys.readouterr().err == "SIGINT: ended before it was done\n"
