"""What is to be predicted: pictures, folders of them, arrays, tables. Everything that can be wrong
with it is told here, before torch is imported.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from src.data.arrays import as_float32, feature_faults, label_faults, read_arrays
from src.data.tables import Table, read_table
from src.errors import InputError
from src.files import MIB
from src.images import SUFFIXES, Drawing, Invert, find, read_picture
from src.run import checkpoint_of

ARRAYS_LIMIT = 1024 * MIB  # that an .npz may unpack to; all of MNIST has 55
FAULTS_SHOWN = 20


@dataclass(frozen=True)
class Picture:
    path: Path
    drawing: Drawing


@dataclass(frozen=True)
class Samples:
    """Features (N, ...), uint8 or float32, and labels (N,) where they are known."""

    path: Path
    features: NDArray[Any]
    labels: NDArray[Any] | None


@dataclass(frozen=True)
class Request:
    """A checked command: by which run, of what, and where every row goes besides; "-" is in place
    of the table."""

    run: Path
    inputs: Sequence[Picture | Samples | Table]
    csv_file: str | None


def read_request(
    run: Path, paths: Sequence[Path], invert: Invert, csv_file: str | None, force: bool
) -> Request:
    """Checks and reads what `python -m src.predict` was given.

    Raises InputError with every fault of the pictures and arrays at once; for a path that is no
    run; and for a CSV file that exists, unless `force` says to replace it.
    """
    if run.suffix.lower() in (*SUFFIXES, ".npz", ".csv"):
        raise InputError(
            f"{run}: is no run; name one before the pictures: python -m src.predict RUN {run}"
        )
    checkpoint_of(run)
    if csv_file in (None, "-"):
        return Request(run, read_inputs(paths, invert), csv_file)
    target = Path(str(csv_file))
    _check_target(target, force)
    inputs = read_inputs(paths, invert)
    if target.exists() and any(item.path.samefile(target) for item in inputs):
        raise InputError(f"--csv {target}: is to be predicted itself; name another file")
    return Request(run, inputs, csv_file)


def _check_target(target: Path, force: bool) -> None:
    if target.is_dir():
        raise InputError(f"--csv {target}: is a folder; type --csv {target / 'predictions.csv'}")
    if not target.parent.is_dir():
        raise InputError(f"--csv {target}: there is no folder {target.parent}; make it first")
    if target.exists() and not force:
        raise InputError(
            f"--csv {target}: exists already; name another file, or type --force to replace it"
        )


def read_inputs(paths: Sequence[Path], invert: Invert = "auto") -> list[Picture | Samples | Table]:
    """What the paths hold; of a folder its PNG and JPEG files by name, hidden ones left out.

    Raises InputError with every fault at once.
    """
    inputs: list[Picture | Samples | Table] = []
    faults: list[str] = []
    for path in paths:
        try:
            files = _files(path)
        except InputError as error:
            faults.append(str(error))
            continue
        for file in files:
            try:
                if file.suffix.lower() == ".npz":
                    inputs.append(read_samples(file))
                elif file.suffix.lower() == ".csv":
                    inputs.append(read_table(file))
                else:
                    inputs.append(Picture(file, find(read_picture(file), invert)))
            except InputError as error:
                faults.append(str(error))
    if len(faults) == 1:
        raise InputError(faults[0])
    if faults:
        shown = faults[:FAULTS_SHOWN]
        if len(faults) > len(shown):
            shown.append(f"and {len(faults) - len(shown):,} more")
        raise InputError("\n  ".join([f"{len(faults)} faults, nothing was predicted", *shown]))
    return inputs


def _files(path: Path) -> list[Path]:
    try:
        if path.is_file():
            return [path]
        if not path.exists():
            raise InputError(f"{path}: there is no such file or folder")
        if not path.is_dir():
            raise InputError(f"{path}: is neither a file nor a folder; name a PNG or JPEG file")
        found = sorted(
            file
            for file in path.iterdir()
            if file.suffix.lower() in SUFFIXES and not file.name.startswith(".") and file.is_file()
        )
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    if not found:
        raise InputError(
            f"{path}: has no {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]} file; name a folder "
            "that has, or the files themselves"
        )
    return found


def read_samples(path: Path) -> Samples:
    """The arrays x and y of an .npz file. Floats become float32; pictures of floats lie in [0, 1].

    Raises InputError for what is no such file, and for each fault of its arrays.
    """
    content = read_arrays(path, ("x", "y"), ARRAYS_LIMIT)
    x, y = as_float32(content["x"]), content.get("y")
    faults = [*feature_faults("x", x), *label_faults("y", y, len(x) if x.ndim else 0)]
    if faults:
        raise InputError(f"{path}: {'; '.join(faults)}")
    return Samples(path, x, y)
