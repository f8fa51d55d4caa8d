"""The user's own pictures: PNG and JPEG files, in a folder for each class.

The class folders may lie in folders `train`, `val` and `test`. data/folders.py lists the
pictures.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kindling.config import schema
from kindling.config.written import printable
from kindling.data.folders import Files, Listing, list_pictures
from kindling.data.pictures import read_picture, resize
from kindling.data.sources.source import COPIES, Groups, Source, Split, grouped, split_off_test
from kindling.system.errors import InputError, shortened
from kindling.system.resources import cpu_count, require_memory
from kindling.system.terminal import progress

log = logging.getLogger(__name__)

AT_ONCE = 256  # pictures given to the threads together; Ctrl-C waits for at most these


class PictureSplit(Split):
    """Picture files with their labels (N,), for data sets that do not fit into memory. Each access
    to `features` decodes all pictures: uint8 (N, channels, size, size). `take` decodes nothing."""

    paths: Sequence[Path]
    size: tuple[int, int]
    channels: int

    def __init__(
        self, paths: Sequence[Path], labels: Tensor, groups: Groups | None, size: tuple[int, int],
        channels: int,
    ) -> None:  # fmt: skip
        vars(self).update(  # because the class is frozen
            paths=paths, labels=labels, groups=groups, size=size, channels=channels
        )

    @property
    def features(self) -> Tensor:
        pixels = [resize(read_picture(path), self.size, self.channels) for path in self.paths]
        return torch.from_numpy(np.stack(pixels)) if pixels else torch.zeros(0, *self.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.channels, *self.size

    def take(self, chosen: Tensor | slice) -> "PictureSplit":
        numbers = torch.arange(len(self))[chosen].tolist()
        paths = [self.paths[number] for number in numbers]
        groups = None if self.groups is None else self.groups.take(chosen)
        return PictureSplit(paths, self.labels[chosen], groups, self.size, self.channels)


def open_source(config: schema.ImageFolder) -> Source:
    """Features (N, channels, size, size), uint8; pictures do not keep their proportions.

    Decodes every picture once to find the broken ones, and keeps the pixels only with
    data.loader=resident. Raises InputError for folders without pictures, for broken pictures
    unless data.skip_broken=true, and, before decoding, when the pixels do not fit into memory.
    """
    root = Path(config.path)
    listing = list_pictures(root, config.group)
    listed = sum(len(files.paths) for files in listing.parts.values())
    if config.loader == "resident":
        require_memory(
            f"data.path={root}: {listed:,} pictures of {config.channels} × {config.size} × "
            f"{config.size} need",
            COPIES * listed * config.channels * config.size**2,
            "data.loader=workers, or a smaller data.size",
        )
    decoded = _decoded(config, listing.parts, listed)
    skipped = listed - sum(map(len, decoded.values()))
    train = decoded["training"]
    empty = train.empty_classes(listing.labels)
    empty += [name for name, split in decoded.items() if not len(split) and split is not train]
    if empty:
        raise InputError(
            f"data.path={root}: without its broken pictures nothing is left of "
            f"{', '.join(empty)}; add some, or remove the folder"
        )
    return _source(config, listing, decoded, skipped)


def _source(
    config: schema.ImageFolder, listing: Listing, parts: Mapping[str, Split], skipped: int = 0
) -> Source:
    train, test = parts["training"], parts.get("test")
    if test is None:
        train, test = split_off_test(train, config.test_fraction, config.split_seed)
    return Source(
        config.name, train, test, listing.labels,
        validation=parts.get("validation"), digest=listing.digest, skipped=skipped,
        notes=[(logging.INFO, printable(line)) for line in listing.told],
    )  # fmt: skip


def decode_all(
    paths: Sequence[Path], size: int, channels: int, into: NDArray[np.uint8] | None
) -> Iterator[tuple[tuple[int, int], str] | str]:
    """Decodes all pictures once, on all cores. Yields the size (width, height) and the mode of each
    picture, or its fault. Writes the pixels to `into` (N, channels, size, size), if given, and
    leaves the places of broken pictures unchanged."""

    def decode(number: int) -> tuple[tuple[int, int], str] | str:
        try:
            image = read_picture(paths[number])
            seen = image.size, image.mode
            pixels = resize(image, (size, size), channels)
        except InputError as error:
            return str(error)
        if into is not None:
            into[number] = pixels
        return seen

    numbers = range(len(paths))
    with ThreadPoolExecutor(cpu_count()) as pool:
        parts = (pool.map(decode, numbers[n : n + AT_ONCE]) for n in numbers[::AT_ONCE])
        shown = progress(numbers, "pictures read")
        yield from (seen for _, seen in zip(shown, chain.from_iterable(parts), strict=True))


def _decoded(
    config: schema.ImageFolder, parts: Mapping[str, Files], count: int
) -> dict[str, Split]:
    """The readable pictures of each part, in order; there are `count` pictures in all."""
    keep = config.loader == "resident"
    size, channels = config.size, config.channels
    splits: dict[str, Split] = {}
    faults: list[str] = []
    looks: set[tuple[tuple[int, int], str]] = set()  # sizes and modes
    for name, files in parts.items():
        pixels = np.zeros((len(files.paths) if keep else 0, channels, size, size), np.uint8)
        readable = torch.ones(len(files.paths), dtype=torch.bool)
        seen = decode_all(files.paths, size, channels, pixels if keep else None)
        for number, found in enumerate(seen):
            if isinstance(found, str):
                faults.append(found)
                readable[number] = False
            else:
                looks.add(found)
        split: Split = _undecoded(config, files)
        if keep:
            split = Split(torch.from_numpy(pixels), split.labels, split.groups)
        splits[name] = split if readable.all() else split.take(readable)
    if faults and not config.skip_broken:
        advice = (
            f"data.path={config.path}: {len(faults):,} of {count:,} pictures cannot be read; mend "
            "or remove them, or type data.skip_broken=true to leave them out"
        )
        raise InputError("\n  ".join([advice, *shortened(faults)]))
    for fault in faults:
        log.warning("left out: %s", printable(fault))
    sizes, modes = {size for size, _ in looks}, {mode for _, mode in looks}
    if len(sizes) > 1 or len(modes) > 1:
        widths, heights = zip(*sizes, strict=True)
        log.info(
            "%s: pictures from %d × %d to %d × %d pixels, of modes %s, all made %d × %d of %d "
            "channel(s)",
            config.path, min(widths), min(heights), max(widths), max(heights),
            ", ".join(sorted(modes)), size, size, channels,
        )  # fmt: skip
    return splits


def _undecoded(config: schema.ImageFolder, files: Files) -> PictureSplit:
    labels = torch.tensor(files.classes, dtype=torch.int64)
    groups = None if config.group is None else grouped(config.group, files.groups)
    return PictureSplit(files.paths, labels, groups, (config.size, config.size), config.channels)


def undecoded(config: schema.ImageFolder) -> Source:
    """The data set of `open_source` if no picture is broken. Decodes no picture."""
    listing = list_pictures(Path(config.path), config.group)
    parts = {name: _undecoded(config, files) for name, files in listing.parts.items()}
    return _source(config, listing, parts)
