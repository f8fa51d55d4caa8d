"""The arguments of the commands `evaluate` and `predict`, and the inputs of a prediction: pictures,
folders of pictures, arrays and tables.

All faults of arguments and files are found here, before torch is imported.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from numpy.typing import NDArray

from kindling.config import schema
from kindling.config.faults import did_you_mean, options
from kindling.config.measures import CLASSIFICATION
from kindling.config.section import DRAWING
from kindling.config.written import printable
from kindling.data.arrays import as_float32, feature_faults, label_faults, read_arrays, unused_line
from kindling.data.pictures import SUFFIXES, read_picture
from kindling.data.tables.reading import is_table, read_table
from kindling.data.tables.table import Table
from kindling.inference.pictures import Invert, Picture, PictureReader, reader_of
from kindling.records.lookup import checkpoint_of, config_of
from kindling.system.errors import InputError, all_at_once, reading
from kindling.system.files import why_not_writable
from kindling.system.installation import as_command
from kindling.system.terminal import progress
from kindling.system.units import MIB

ARRAYS_LIMIT = 1024 * MIB  # of an unpacked .npz file; MNIST has 55 MiB
NAMES_SHOWN = 5
OWN = ("arrays", "csv", "image_folder", "npz")  # data sets of the user's own
MOST_COPIES = 1000
# The end of the help of --augmented.
AND_COPIES = (
    f"and N copies by the augmentation of the training; 1 to {MOST_COPIES:,}, default: no copies"
)


def read_copies(run: Path, copies: int | None) -> int:
    """The number of augmented copies that `--augmented` asks for; 0 without this option. Raises
    InputError as `require_augmentation`; the configuration of a checkpoint file, and samples that
    are pictures by their shape alone, are checked when the model is opened."""
    if copies is None:
        return 0
    config = config_of(run)
    if config and isinstance(config.data, schema.Npz | schema.Arrays | schema.Synthetic):
        config = None
    pictures = bool(config and config.data.pictures)
    require_augmentation(copies, str(run), config, pictures=pictures)
    return copies


def require_augmentation(
    copies: int, name: str, config: schema.Config | None, *, pictures: bool
) -> None:
    """Raises InputError for a number of copies out of range, and unless the model `name` takes
    pictures and was trained with augmentation; None: its configuration is not known yet."""
    if not 1 <= copies <= MOST_COPIES:
        raise InputError(f"--augmented {copies}: type a number from 1 to {MOST_COPIES}")
    if config and not pictures:
        raise InputError(
            f"--augmented {copies}: {name} takes samples of data={config.data.name} that are not "
            "pictures, and only pictures can be augmented; leave --augmented out"
        )
    if config and not config.augmentation.chosen:
        raise InputError(
            f"--augmented {copies}: {name} was trained without augmentation; train with, for "
            "example, augmentation=digits or augmentation.shift=1, or leave --augmented out"
        )


@dataclass(frozen=True)
class Samples:
    """Samples (N, ...), floats as float32, and labels (N, …) if the file has them. `notes` are as
    those of a Table; `lines` are those of its rows."""

    path: Path
    features: NDArray[Any]
    labels: NDArray[Any] | None
    notes: Sequence[tuple[int, str]] = ()
    lines: Sequence[int] | None = None


@dataclass(frozen=True)
class Unread:
    """A file or folder that cannot be read; `fault` begins with its path."""

    path: Path
    fault: str


Input: TypeAlias = Picture | Samples | Table | Unread


@dataclass(frozen=True)
class PredictRequest:
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
) -> PredictRequest:
    """Checks the arguments of `python -m src.predict` and reads its inputs. With `boxes`, the
    inputs are all drawings of one picture. Raises InputError as `read_inputs`, `read_copies` and
    `require_drawings`, for a path that is not a run, for several pictures with `boxes`, and for
    files that cannot be written."""
    if run.suffix.lower() in (*SUFFIXES, ".npz") or is_table(run):
        raise InputError(
            f"{run}: is not a run; name one before the pictures: {as_command('predict')} RUN {run}"
        )
    checkpoint_of(run)
    copies = read_copies(run, augmented)
    table = None if csv_file in (None, "-") else Path(str(csv_file))
    targets = [("--csv", table, "predictions.csv"), ("--boxes", boxes, "boxes.png")]
    written = [(option, target, name) for option, target, name in targets if target]
    for option, target, name in written:
        for fault in why_not_writable(option, target, name, force=force):
            raise InputError(fault)
    config = config_of(run)
    data = config.data if config else None
    pictures = data.pictures if data else DRAWING
    if boxes:
        _require_boxes(paths, boxes, table)
        if config:
            require_drawings(str(run), config)
        inputs = _drawings_in(paths[0], invert, reader_of(pictures))
    else:
        any_arrays = data is None or isinstance(data, schema.Npz)
        task = config.task.name if config else None
        inputs = read_inputs(paths, invert, any_arrays=any_arrays, pictures=pictures, task=task)
    for option, target, _ in written:
        read = (item.path for item in inputs if item.path.exists())
        if target.exists() and any(path.samefile(target) for path in read):
            raise InputError(f"{option} {target}: is one of the inputs; name another file")
    return PredictRequest(run, inputs, left_out(paths), csv_file, copies, boxes)


def _require_boxes(paths: Sequence[Path], boxes: Path, table: Path | None) -> None:
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


def require_drawings(name: str, config: schema.Config) -> None:
    """Raises InputError if the model `name` does not take single drawings of some class."""
    data, task = config.data, config.task.name
    if task != CLASSIFICATION:
        raise InputError(
            f"--boxes: {name} was trained with task={task}, and boxes show classes; leave it out"
        )
    if not hasattr(reader_of(data.pictures), "find_all"):
        takes = "whole pictures" if data.pictures else "no pictures"
        raise InputError(
            f"--boxes: {name} was trained on data={data.name} and takes {takes}; name a run on "
            "drawings in one channel, such as data=mnist, or leave --boxes out"
        )


def _drawings_in(path: Path, invert: Invert, reader: PictureReader) -> Sequence[Input]:
    with reading(path):
        _require_file(path)
        found = reader.find_all(path, read_picture(path), invert)
    if not found:
        raise InputError(
            f"{path}: no drawing was found; photograph the paper from nearer with more light, or "
            "type --invert yes for dark ink on light paper, --invert no for light ink"
        )
    return found


def require_labelled(data: str) -> Path | None:
    """The path that `--data` of `python -m src.evaluate` names; None for the name of a data set.
    Raises InputError for an unknown name, and for a path of which no labelled samples are read."""
    names = [name for name in options("data") if name not in OWN]
    path = Path(data)
    of_samples = path.suffix.lower() == ".npz" or is_table(path)
    if data in names:
        return None
    if not (path.exists() or of_samples or "/" in data):
        raise InputError(
            f"--data {data}: must be one of {', '.join(names)}, a .csv file, an .npz file, or a "
            f"folder of pictures for each class{did_you_mean(data, names)}"
        )
    with reading(path):
        if not path.is_dir():
            _require_file(path)
            if not of_samples:
                raise InputError(
                    f"--data {path}: must be a .csv file, an .npz file, or a folder with a folder "
                    "of pictures for each class"
                )
    return path


Read = TypeVar("Read")


def read_inputs(
    paths: Sequence[Path],
    invert: Invert = "auto",
    *,
    any_arrays: bool = False,
    pictures: str | None = DRAWING,
    task: str | None = CLASSIFICATION,
) -> list[Input]:
    """The inputs in the paths. Of a folder: its PNG and JPEG files except hidden files, by name.
    `pictures` is that of the section of the model's data. With `any_arrays`, arrays may have any
    numbers: the model has to refuse them, and wrong labels too if its `task` is None. Raises
    InputError with all faults when no file can be read."""
    inputs: list[Input] = []

    def read(file: Path) -> Input:
        _require_file(file)
        if is_table(file):
            return read_table(file)
        match file.suffix.lower():
            case ".npz":
                return read_samples(file, task, any_arrays=any_arrays)
            case ".npy":
                raise InputError(f"{file}: is a single array; write it by numpy.savez(FILE, x=…)")
        return reader_of(pictures).read(file, read_picture(file), invert)

    for path in paths:
        files = _attempt(_files_of, path)
        if isinstance(files, Unread):
            inputs.append(files)
        else:
            inputs += [_attempt(read, file) for file in progress(files, "files read")]
    faults = [item.fault for item in inputs if isinstance(item, Unread)]
    if len(faults) == len(inputs):
        raise all_at_once(faults, "nothing was predicted")
    return inputs


def _attempt(read: Callable[[Path], Read], path: Path) -> Read | Unread:
    try:
        with reading(path):
            return read(path)
    except InputError as error:
        return Unread(path, str(error))


def _files_of(path: Path) -> list[Path]:
    """The pictures in a folder; any other path as it is."""
    if not path.is_dir():
        return [path]
    pictures, _ = _content_of(path)
    if not pictures:
        raise InputError(
            f"{path}: has no {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]} file; name a folder "
            "that has, or the files themselves"
        )
    return pictures


def left_out(paths: Sequence[Path]) -> list[str]:
    """A line for each folder with other visible files than pictures, with the first names."""
    lines = []
    for path in filter(Path.is_dir, paths):
        _, others = _content_of(path)
        if others:
            names = [f"{file.name}/" if file.is_dir() else file.name for file in others]
            more = f" and {len(names) - NAMES_SHOWN:,} more" if names[NAMES_SHOWN:] else ""
            named = printable(", ".join(names[:NAMES_SHOWN]))
            lines.append(f"{path}: {len(names):,} skipped, not PNG or JPEG: {named}{more}")
    return lines


def _content_of(folder: Path) -> tuple[list[Path], list[Path]]:
    """The PNG and JPEG files of a folder, and what else is visible there, each by name."""
    content: tuple[list[Path], list[Path]] = ([], [])
    for file in sorted(folder.iterdir()):
        if not file.name.startswith("."):
            picture = file.suffix.lower() in SUFFIXES and file.is_file()
            content[not picture].append(file)
    return content


def _require_file(file: Path) -> None:
    if not file.exists():
        raise InputError(f"{file}: there is no such file or folder")
    if not file.is_file():
        raise InputError(f"{file}: is neither a file nor a folder; name a PNG or JPEG file")


def read_samples(
    path: Path, task: str | None = CLASSIFICATION, *, any_arrays: bool = False
) -> Samples:
    """The arrays x and perhaps y, floats as float32. Raises InputError with all their faults; with
    no `task` yet, those of y are left to `samples_of`."""
    content, unused = read_arrays(path, ("x", "y"), ARRAYS_LIMIT)
    x, y = as_float32(content["x"]), content.get("y")
    faults = [
        *feature_faults("x", x, "auto" if any_arrays else None),
        *([] if task is None else label_faults("y", y, len(x) if x.ndim else 0, task)),
    ]
    if faults:
        raise InputError(f"{path}: {'; '.join(faults)}")
    lines = [printable(f"{path}: {unused_line(unused)}")] if unused else []
    return Samples(path, x, y, [(logging.INFO, line) for line in lines])
