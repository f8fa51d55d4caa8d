"""Sources in the user's own files: folders of pictures, NumPy's archives, tables.

What can be wrong with the files themselves is told by src/data/folders.py, arrays.py, tables.py.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from src.config import schema
from src.data.arrays import as_float32, feature_faults, label_faults, read_arrays
from src.data.folders import FAULTS_SHOWN, Files, decode_all, list_pictures, printable, read_pixels
from src.data.sources.source import Source, Split, held_out, with_test
from src.data.tables import learn_columns, read_table
from src.system.errors import InputError, all_at_once
from src.system.files import sha256
from src.system.resources import free_memory, require_memory

log = logging.getLogger(__name__)

COPIES = 2  # of a resident data set while its parts are drawn
TEXT_COST = 12  # bytes of memory for each byte of a table, while it is read


def read_files(config: schema.ImageFolder | schema.Npz | schema.Csv) -> Source:
    match config:
        case schema.ImageFolder():
            return image_folder(config)
        case schema.Npz():
            return npz(config)
        case schema.Csv():
            return csv_table(config)


class PictureSplit(Split):
    """Picture files with their labels (N,), for what does not fit into memory.

    `features` decodes all of them each time it is asked for: uint8 (N, channels, size, size).
    Parts of it are as lazy.
    """

    def __init__(self, paths: Sequence[Path], labels: Tensor, size: int, channels: int) -> None:
        for name, value in (("paths", paths), ("labels", labels), ("side", size)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "channels", channels)

    paths: Sequence[Path]
    side: int
    channels: int

    @property
    def features(self) -> Tensor:
        pixels = [read_pixels(path, self.side, self.channels) for path in self.paths]
        return torch.from_numpy(np.stack(pixels)) if pixels else torch.zeros(0, *self.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.channels, self.side, self.side

    def take(self, chosen: Tensor | slice) -> "PictureSplit":
        numbers = torch.arange(len(self))[chosen].tolist()
        paths = [self.paths[number] for number in numbers]
        return PictureSplit(paths, self.labels[chosen], self.side, self.channels)


def image_folder(config: schema.ImageFolder) -> Source:
    """PNG and JPEG files in a folder for each class, or in those of `train` and `test` where both
    are there; features (N, channels, size, size), uint8, the whole picture whatever its
    proportions. Classes are numbered in the order of their names.

    Every picture is decoded once here, so that broken ones are known, but kept only with
    data.loader=resident. Raises InputError for folders without pictures, for broken pictures
    unless they are to be skipped, and before anything is decoded where memory does not suffice.
    """
    root = Path(config.path)
    listing = list_pictures(root)
    parts = [part for part in (listing.train, listing.test) if part is not None]
    if config.loader == "resident":
        count = sum(len(part.paths) for part in parts)
        require_memory(
            f"data.path={root}: {count:,} pictures of {config.channels} × {config.size} × "
            f"{config.size} need",
            COPIES * count * config.channels * config.size**2,
            "data.loader=workers, or a smaller data.size",
        )
    if listing.others:
        log.info("%s: files that are no PNG or JPEG, left out: %d", root, listing.others)
    decoded = _decoded(config, parts)
    skipped = sum(len(part.paths) for part in parts) - sum(len(split) for split in decoded)
    counts = torch.bincount(decoded[0].labels, minlength=len(listing.labels)).tolist()
    empty = [n for n, count in zip(listing.labels, counts, strict=True) if not count]
    if empty or not all(len(split) for split in decoded):
        raise InputError(
            f"data.path={root}: without its broken pictures nothing is left of "
            f"{', '.join(empty) or 'test'}; add some, or remove the folder"
        )
    if len(decoded) == 2:
        train, test = decoded
    else:
        train, test = with_test(decoded[0], config.test_fraction, config.split_seed)
    return Source(config.name, train, test, listing.labels, digest=listing.digest, skipped=skipped)


def _decoded(config: schema.ImageFolder, parts: Sequence[Files]) -> list[Split]:
    """The pictures of each part that can be read, in order."""
    keep = config.loader == "resident"
    size, channels = config.size, config.channels
    splits: list[Split] = []
    faults: list[str] = []
    sizes: dict[tuple[int, int], None] = {}
    modes: dict[str, None] = {}
    for part in parts:
        pixels = np.zeros((len(part.paths) if keep else 0, channels, size, size), np.uint8)
        survey = decode_all(part.paths, size, channels, pixels if keep else None)
        faults += survey.broken.values()
        sizes |= dict.fromkeys(survey.sizes)
        modes |= dict.fromkeys(survey.modes)
        labels = torch.tensor(part.classes, dtype=torch.int64)
        split = (
            Split(torch.from_numpy(pixels), labels)
            if keep
            else PictureSplit(part.paths, labels, size, channels)
        )
        if survey.broken:
            whole = torch.ones(len(labels), dtype=torch.bool)
            whole[list(survey.broken)] = False
            split = split.take(whole)
        splits.append(split)
    if faults and not config.skip_broken:
        count = sum(len(part.paths) for part in parts)
        shown = [
            f"data.path={config.path}: {len(faults):,} of {count:,} pictures cannot be read; mend "
            "or remove them, or type data.skip_broken=true to leave them out",
            *faults[:FAULTS_SHOWN],
        ]
        if faults[FAULTS_SHOWN:]:
            shown.append(f"and {len(faults) - FAULTS_SHOWN:,} more")
        raise InputError("\n  ".join(shown))
    for fault in faults:
        log.warning("left out: %s", printable(fault))
    if len(sizes) > 1 or len(modes) > 1:
        widths, heights = ([size[axis] for size in sizes] for axis in (0, 1))
        log.info(
            "%s: pictures from %d × %d to %d × %d pixels, of modes %s, all made %d × %d of %d "
            "channel(s)",
            config.path, min(widths), min(heights), max(widths), max(heights),
            ", ".join(sorted(modes)), size, size, channels,
        )  # fmt: skip
    return splits


def npz(config: schema.Npz) -> Source:
    """Arrays x (N, ...), uint8 or floats, and y (N,), whole numbers from 0 without a gap; perhaps
    x_test and y_test. Pictures (N, H, W) get a channel: (N, 1, H, W). Floats become float32.

    Raises InputError with every fault of the arrays at once.
    """
    path = Path(config.path)
    free = free_memory() // COPIES
    found = read_arrays(path, ("x", "y", "x_test", "y_test"), free)
    faults = [
        f"has {name}, but no {other}; both or none of them make a test set"
        for name, other in (("x_test", "y_test"), ("y_test", "x_test"))
        if name in found and other not in found
    ]
    if "y" not in found:
        faults.append("has no array y, the label of each row of x")
    parts = [("x", "y")] + [("x_test", "y_test")] * ("x_test" in found)
    for x, y in parts:
        found[x] = as_float32(found[x])
        samples = len(found[x]) if found[x].ndim else 0
        faults += [*feature_faults(x, found[x]), *label_faults(y, found.get(y), samples)]
    if len(parts) == 2 and found["x"].dtype != found["x_test"].dtype:
        faults.append(f"x is of {found['x'].dtype}, x_test of {found['x_test'].dtype}")
    if len(parts) == 2 and found["x"].shape[1:] != found["x_test"].shape[1:]:
        faults.append(f"x is {found['x'].shape}, x_test {found['x_test'].shape}")
    if not faults:
        faults += _class_faults(found["y"], found.get("y_test"))
    if faults:
        raise InputError(f"{path}: {'; '.join(faults)}")
    train = _split(found["x"], found["y"])
    if len(parts) == 2:
        test = _split(found["x_test"], found["y_test"])
    else:
        train, test = with_test(train, config.test_fraction, config.split_seed)
    labels = tuple(str(number) for number in range(int(found["y"].max()) + 1))
    return Source(config.name, train, test, labels, digest=sha256(path))


def _class_faults(y: NDArray[Any], y_test: NDArray[Any] | None) -> list[str]:
    classes = np.unique(y)
    if len(classes) < 2:
        return [f"y has the one class {classes[0]}, must have two or more"]
    missing = np.setdiff1d(np.arange(len(classes)), classes)
    if missing.size:
        return [
            f"y has {len(classes)} classes from {classes[0]} to {classes[-1]}, and none "
            f"{missing[0]}; they must be 0, 1, … {len(classes) - 1}: write y = "
            "numpy.unique(y, return_inverse=True)[1]"
        ]
    if y_test is not None and not np.isin(y_test, classes).all():
        strange = y_test[~np.isin(y_test, classes)][0]
        return [f"y_test has the class {strange}, y has 0 to {classes[-1]} alone"]
    return []


def _split(x: NDArray[Any], y: NDArray[Any]) -> Split:
    features = torch.from_numpy(np.ascontiguousarray(x))
    if features.ndim == 3:
        features = features.unsqueeze(1)
    return Split(features, torch.from_numpy(y.astype(np.int64)))


def csv_table(config: schema.Csv) -> Source:
    """A table whose column `target` names the classes.

    Features (N, width), float32, by what the samples that are trained on teach of each column
    (src/data/tables.py): neither validation nor test has a part in that. Classes are numbered in
    their order, of numbers or of texts. Raises InputError with the faults of the table.
    """
    path = Path(config.path)
    size = path.stat().st_size if path.is_file() else 0
    require_memory(f"data.path={path}: it needs", TEXT_COST * size, "fewer rows")
    table = read_table(path)
    table.require([config.target], "data.target")
    table.require(config.drop, "data.drop")
    trained_on = np.zeros(len(table.rows), bool)
    try:
        targets = table.classes(config.target)
        labels = _classes(targets, path, config.target)
        number_of = {label: number for number, label in enumerate(labels)}
        rows = Split(
            torch.arange(len(targets)), torch.tensor([number_of[target] for target in targets])
        )
        parts = with_test(rows, config.test_fraction, config.split_seed)
        learning, _ = held_out(parts[0], config.val_fraction, config.split_seed)
    except InputError as error:
        faults = [str(error)]
        try:
            learn_columns(table, config, ~trained_on)
        except InputError as more:
            faults.append(str(more))
        raise all_at_once(faults, "nothing was read") from None
    trained_on[learning.features.numpy()] = True
    columns = learn_columns(table, config, trained_on)
    require_memory(
        f"data.path={path}: as {columns.width:,} features of each row it needs",
        4 * COPIES * len(targets) * columns.width,
        "fewer rows, or leave out columns of text by data.drop",
    )
    features = torch.from_numpy(columns.features(table))
    train, test = (Split(features[part.features], part.labels) for part in parts)
    return Source(
        config.name,
        train,
        test,
        tuple(printable(label) for label in labels),
        digest=sha256(path),
        columns=columns,
    )


def _classes(targets: Sequence[str], path: Path, target: str) -> list[str]:
    """The distinct ones in their order."""
    found = set(targets)
    if len(found) < 2:
        raise InputError(
            f"{path}: column {target} has the one class {targets[0][:80]!r}; a classifier needs two"
        )
    try:
        values = {text: float(text) for text in found}
    except ValueError:
        return sorted(found)
    measured = next((text for text, value in values.items() if not value.is_integer()), None)
    if measured is not None:
        raise InputError(
            f"{path}: column {target} has numbers as {measured}, which name no class; name another "
            "column with data.target=COLUMN"
        )
    return sorted(found, key=lambda text: (values[text], text))
