"""The inputs of a prediction: pictures, folders of pictures, arrays and tables.

All faults of the files themselves are found here, before torch is imported.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from numpy.typing import NDArray

from src.config import schema
from src.config.faults import did_you_mean, options
from src.config.written import printable
from src.data.arrays import as_float32, feature_faults, label_faults, read_arrays
from src.data.pictures import SUFFIXES, read_picture
from src.data.tables import Table, read_table
from src.inference.copies import read_copies
from src.inference.drawings import Box, Drawing, find_drawing
from src.inference.ink import Invert
from src.runs.folder import Run
from src.runs.weights import checkpoint_of
from src.system.errors import InputError, all_at_once, reading
from src.system.files import MIB, why_not_writable
from src.system.terminal import progress

ARRAYS_LIMIT = 1024 * MIB  # of an unpacked .npz file; MNIST has 55 MiB
NAMES_SHOWN = 5
OWN = ("csv", "image_folder", "npz")  # data sets of the user's own files
# For models of these data sets, the program resizes the whole picture. For other models, it finds
# the drawing in the picture, crops it and centres it.
WHOLE_PICTURES = ("fashion_mnist", "kmnist", "cifar10", "cifar100", "image_folder")


@dataclass(frozen=True)
class Picture:
    """A picture of one drawing; with a `box`, one of the drawings that were found in a picture."""

    path: Path
    drawing: Drawing
    box: Box | None = None


@dataclass(frozen=True)
class Samples:
    """Features (N, ...), uint8 or float32, and labels (N,) if the file has them."""

    path: Path
    features: NDArray[Any]
    labels: NDArray[Any] | None


@dataclass(frozen=True)
class Unread:
    """A file or folder that cannot be read; `fault` begins with its path."""

    path: Path
    fault: str


Input: TypeAlias = Picture | Samples | Table | Unread


@dataclass(frozen=True)
class Request:
    """The checked arguments of `python -m src.predict`, and the inputs."""

    run: Path
    inputs: Sequence[Input]
    left_out: Sequence[str]  # lines about files of other kinds in the folders
    csv_file: str | None  # "-": the standard output, in place of the table
    copies: int = 0  # augmented, of each input
    boxes_file: Path | None = None  # for a picture with the boxes of all drawings


def read_request(
    run: Path,
    paths: Sequence[Path],
    invert: Invert,
    csv_file: str | None,
    *,
    force: bool,
    augmented: int | None = None,
    boxes: Path | None = None,
) -> Request:
    """Checks the arguments of `python -m src.predict` and reads its inputs. With `boxes`, the
    inputs are all drawings of one picture. Raises InputError as `read_inputs`, `read_copies` and
    `require_drawings`, for a path that is not a run, for several pictures with `boxes`, and for
    files that cannot be written."""
    if run.suffix.lower() in (*SUFFIXES, ".npz", ".csv"):
        raise InputError(
            f"{run}: is not a run; name one before the pictures: python -m src.predict RUN {run}"
        )
    checkpoint_of(run)
    copies = read_copies(run, augmented)
    table = None if csv_file in (None, "-") else Path(str(csv_file))
    targets = [("--csv", table, "predictions.csv"), ("--boxes", boxes, "boxes.png")]
    for option, target, name in targets:
        for fault in why_not_writable(option, target, name, force=force) if target else ():
            raise InputError(fault)
    if boxes:
        _require_boxes(run, paths, boxes, table)
    inputs = _drawings_in(paths[0], invert) if boxes else read_inputs(paths, invert)
    for option, target, _ in targets:
        read = (item.path for item in inputs if item.path.exists())
        if target and target.exists() and any(path.samefile(target) for path in read):
            raise InputError(f"{option} {target}: is one of the inputs; name another file")
    return Request(run, inputs, left_out(paths), csv_file, copies, boxes)


def _require_boxes(run: Path, paths: Sequence[Path], boxes: Path, table: Path | None) -> None:
    """Raises InputError unless the drawings of one picture can be found for this run."""
    if boxes.suffix.lower() != ".png":
        raise InputError(f"--boxes {boxes}: must end in .png; type --boxes {boxes.stem}.png")
    if boxes == table:
        raise InputError(f"--boxes {boxes}: is the file of --csv, too; name another file")
    if len(paths) > 1 or paths[0].suffix.lower() not in SUFFIXES or paths[0].is_dir():
        named = printable(", ".join(map(str, paths[:NAMES_SHOWN])))
        raise InputError(
            f"--boxes {boxes}: takes one PNG or JPEG file, not {named}; type a command for each "
            "picture"
        )
    if run.is_dir() and Run(run).config_file.exists():
        data = Run(run).config.data
        require_drawings(
            str(run), data.name, pictures=not isinstance(data, schema.Toy | schema.Csv)
        )


def require_drawings(name: str, data: str, *, pictures: bool = True) -> None:
    """Raises InputError if the model `name`, trained on `data`, does not take single drawings."""
    if data in WHOLE_PICTURES or not pictures:
        takes = "whole pictures" if pictures else "no pictures"
        raise InputError(
            f"--boxes: {name} was trained on data={data} and takes {takes}; name a run on drawings "
            "in one channel, such as data=mnist, or leave --boxes out"
        )


def _drawings_in(path: Path, invert: Invert) -> list[Input]:
    """All drawings of a picture. Raises InputError when none is found, and as `find_drawings`."""
    from src.inference.finding import find_drawings  # SciPy

    with reading(path):
        _require_file(path)
        found = find_drawings(read_picture(path), invert, str(path))
    if not found:
        raise InputError(
            f"{path}: no drawing was found; photograph the paper from nearer with more light, or "
            "type --invert yes for dark ink on light paper, --invert no for light ink"
        )
    return [Picture(path, item.drawing, item.box) for item in found]


def require_labelled(data: str) -> Path | None:
    """The path that `--data` of `python -m src.evaluate` names; None for the name of a data set.
    Raises InputError for an unknown name, and for a path of which no labelled samples are read."""
    names = [name for name in options("data") if name not in OWN]
    path = Path(data)
    if data in names:
        return None
    if not (path.exists() or path.suffix.lower() in (".csv", ".npz") or "/" in data):
        raise InputError(
            f"--data {data}: must be one of {', '.join(names)}, a .csv file, an .npz file, or a "
            f"folder of pictures for each class{did_you_mean(data, names)}"
        )
    with reading(path):
        if not path.is_dir():
            _require_file(path)
            if path.suffix.lower() not in (".csv", ".npz"):
                raise InputError(
                    f"--data {path}: must be a .csv file, an .npz file, or a folder with a folder "
                    "of pictures for each class"
                )
    return path


def read_inputs(paths: Sequence[Path], invert: Invert = "auto") -> list[Input]:
    """The inputs in the paths. Of a folder: its PNG and JPEG files except hidden files, by name.
    Raises InputError with all faults when no file can be read."""
    inputs: list[Input] = []
    for path in paths:
        try:
            with reading(path):
                files = _pictures_of(path) if path.is_dir() else [path]
        except InputError as error:
            inputs.append(Unread(path, str(error)))
        else:
            inputs += [_read(file, invert) for file in progress(files, "files read")]
    faults = [item.fault for item in inputs if isinstance(item, Unread)]
    if len(faults) == len(inputs):
        raise all_at_once(faults, "nothing was predicted")
    return inputs


def left_out(paths: Sequence[Path]) -> list[str]:
    """A line for each folder with other visible files than pictures, with the first names."""
    lines = []
    for path in paths:
        if not path.is_dir():
            continue
        others = [
            f"{file.name}/" if file.is_dir() else file.name
            for file in sorted(path.iterdir())
            if not file.name.startswith(".") and not _is_picture(file)
        ]
        if others:
            more = f" and {len(others) - NAMES_SHOWN:,} more" if others[NAMES_SHOWN:] else ""
            named = printable(", ".join(others[:NAMES_SHOWN]))
            lines.append(f"{path}: {len(others):,} skipped, not PNG or JPEG: {named}{more}")
    return lines


def _pictures_of(folder: Path) -> list[Path]:
    pictures = sorted(
        file for file in folder.iterdir() if _is_picture(file) and not file.name.startswith(".")
    )
    if not pictures:
        raise InputError(
            f"{folder}: has no {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]} file; name a folder "
            "that has, or the files themselves"
        )
    return pictures


def _is_picture(file: Path) -> bool:
    return file.suffix.lower() in SUFFIXES and file.is_file()


def _read(file: Path, invert: Invert) -> Input:
    """The input in a file, or an Unread if the file is absent, damaged, or of another kind."""
    try:
        with reading(file):
            _require_file(file)
            if file.suffix.lower() == ".npz":
                return read_samples(file)
            if file.suffix.lower() == ".csv":
                return read_table(file)
            return Picture(file, find_drawing(read_picture(file), invert))
    except InputError as error:
        return Unread(file, str(error))


def _require_file(file: Path) -> None:
    if not file.exists():
        raise InputError(f"{file}: there is no such file or folder")
    if not file.is_file():
        raise InputError(f"{file}: is neither a file nor a folder; name a PNG or JPEG file")


def read_samples(path: Path) -> Samples:
    """The arrays x and perhaps y, floats as float32. Raises InputError with all their faults."""
    content = read_arrays(path, ("x", "y"), ARRAYS_LIMIT)
    x, y = as_float32(content["x"]), content.get("y")
    faults = [*feature_faults("x", x), *label_faults("y", y, len(x) if x.ndim else 0)]
    if faults:
        raise InputError(f"{path}: {'; '.join(faults)}")
    return Samples(path, x, y)
