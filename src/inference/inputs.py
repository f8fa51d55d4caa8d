"""The inputs of a prediction: pictures, folders of pictures, arrays and tables.

All faults of the files themselves are found here, before torch is imported.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from numpy.typing import NDArray

from src.config.written import printable
from src.data.arrays import as_float32, feature_faults, label_faults, read_arrays
from src.data.pictures import SUFFIXES, read_picture
from src.data.tables import Table, read_table
from src.inference.copies import read_copies
from src.inference.drawings import Drawing, find_drawing
from src.inference.ink import Invert
from src.runs.folder import checkpoint_of
from src.system.errors import InputError, all_at_once, reading
from src.system.files import MIB, why_not_writable
from src.system.terminal import progress

ARRAYS_LIMIT = 1024 * MIB  # of an unpacked .npz file; MNIST has 55 MiB
NAMES_SHOWN = 5


@dataclass(frozen=True)
class Picture:
    path: Path
    drawing: Drawing


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


def read_request(
    run: Path,
    paths: Sequence[Path],
    invert: Invert,
    csv_file: str | None,
    *,
    force: bool,
    augmented: int | None = None,
) -> Request:
    """Checks the arguments of `python -m src.predict` and reads its inputs. Raises InputError as
    `read_inputs` and `read_copies`, for a path that is not a run, and for a CSV file that cannot be
    written."""
    if run.suffix.lower() in (*SUFFIXES, ".npz", ".csv"):
        raise InputError(
            f"{run}: is not a run; name one before the pictures: python -m src.predict RUN {run}"
        )
    checkpoint_of(run)
    copies = read_copies(run, augmented)
    if csv_file in (None, "-"):
        return Request(run, read_inputs(paths, invert), left_out(paths), csv_file, copies)
    target = Path(str(csv_file))
    for fault in why_not_writable("--csv", target, "predictions.csv", force=force):
        raise InputError(fault)
    inputs = read_inputs(paths, invert)
    if target.exists() and any(i.path.exists() and i.path.samefile(target) for i in inputs):
        raise InputError(f"--csv {target}: is one of the inputs; name another file")
    return Request(run, inputs, left_out(paths), csv_file, copies)


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
            if not file.exists():
                raise InputError(f"{file}: there is no such file or folder")
            if not file.is_file():
                raise InputError(f"{file}: is neither a file nor a folder; name a PNG or JPEG file")
            if file.suffix.lower() == ".npz":
                return read_samples(file)
            if file.suffix.lower() == ".csv":
                return read_table(file)
            return Picture(file, find_drawing(read_picture(file), invert))
    except InputError as error:
        return Unread(file, str(error))


def read_samples(path: Path) -> Samples:
    """The arrays x and perhaps y, floats as float32. Raises InputError with all their faults."""
    content = read_arrays(path, ("x", "y"), ARRAYS_LIMIT)
    x, y = as_float32(content["x"]), content.get("y")
    faults = [*feature_faults("x", x), *label_faults("y", y, len(x) if x.ndim else 0)]
    if faults:
        raise InputError(f"{path}: {'; '.join(faults)}")
    return Samples(path, x, y)
