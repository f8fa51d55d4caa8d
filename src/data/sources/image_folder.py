"""The user's own pictures: PNG and JPEG files, in a folder for each class.

The class folders may lie in two folders `train` and `test`. src/data/folders.py lists and decodes
the pictures.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from src.config import schema
from src.config.written import printable
from src.data.folders import Files, decode_all, list_pictures
from src.data.pictures import read_picture, resize
from src.data.sources.source import (
    COPIES,
    Description,
    Groups,
    Source,
    Split,
    grouped,
    split_off_test,
)
from src.system.errors import InputError, shortened
from src.system.resources import require_memory

log = logging.getLogger(__name__)


class PictureSplit(Split):
    """Picture files with their labels (N,), for data sets that do not fit into memory. Each access
    to `features` decodes all pictures: uint8 (N, channels, size, size). `take` decodes nothing."""

    def __init__(
        self,
        paths: Sequence[Path],
        labels: Tensor,
        size: int,
        channels: int,
        groups: Groups | None = None,
    ) -> None:
        vars(self).update(  # because the class is frozen
            paths=paths, labels=labels, side=size, channels=channels, groups=groups
        )

    paths: Sequence[Path]
    side: int
    channels: int

    @property
    def features(self) -> Tensor:
        size = (self.side, self.side)
        pixels = [resize(read_picture(path), size, self.channels) for path in self.paths]
        return torch.from_numpy(np.stack(pixels)) if pixels else torch.zeros(0, *self.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.channels, self.side, self.side

    def take(self, chosen: Tensor | slice) -> "PictureSplit":
        numbers = torch.arange(len(self))[chosen].tolist()
        paths = [self.paths[number] for number in numbers]
        groups = None if self.groups is None else self.groups.take(chosen)
        return PictureSplit(paths, self.labels[chosen], self.side, self.channels, groups)


def open_source(config: schema.ImageFolder) -> Source:
    """Features (N, channels, size, size), uint8; pictures do not keep their proportions.

    Decodes every picture once to find the broken ones, and keeps the pixels only with
    data.loader=resident. Raises InputError for folders without pictures, for broken pictures
    unless data.skip_broken=true, and, before decoding, when the pixels do not fit into memory.
    """
    root = Path(config.path)
    listing = list_pictures(root, config.group)
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
        log.info("%s: files that are not PNG or JPEG, left out: %d", root, listing.others)
    decoded = _decoded(config, parts)
    skipped = sum(len(part.paths) for part in parts) - sum(len(split) for split in decoded)
    empty = decoded[0].empty_classes(listing.labels)
    if empty or not all(len(split) for split in decoded):
        raise InputError(
            f"data.path={root}: without its broken pictures nothing is left of "
            f"{', '.join(empty) or 'test'}; add some, or remove the folder"
        )
    if len(decoded) == 2:
        train, test = decoded
    else:
        train, test = split_off_test(decoded[0], config.test_fraction, config.split_seed)
    return Source(config.name, train, test, listing.labels, digest=listing.digest, skipped=skipped)


def _decoded(config: schema.ImageFolder, parts: Sequence[Files]) -> list[Split]:
    """The readable pictures of each part, in order."""
    keep = config.loader == "resident"
    size, channels = config.size, config.channels
    splits: list[Split] = []
    faults: list[str] = []
    sizes: set[tuple[int, int]] = set()
    modes: set[str] = set()
    for part in parts:
        pixels = np.zeros((len(part.paths) if keep else 0, channels, size, size), np.uint8)
        survey = decode_all(part.paths, size, channels, pixels if keep else None)
        faults += survey.broken.values()
        sizes |= survey.sizes
        modes |= survey.modes
        split: Split = _undecoded(config, part)
        if keep:
            split = Split(torch.from_numpy(pixels), split.labels, split.groups)
        if survey.broken:
            readable = torch.ones(len(split), dtype=torch.bool)
            readable[list(survey.broken)] = False
            split = split.take(readable)
        splits.append(split)
    if faults and not config.skip_broken:
        count = sum(len(part.paths) for part in parts)
        advice = (
            f"data.path={config.path}: {len(faults):,} of {count:,} pictures cannot be read; mend "
            "or remove them, or type data.skip_broken=true to leave them out"
        )
        raise InputError("\n  ".join([advice, *shortened(faults)]))
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


def _undecoded(config: schema.ImageFolder, part: Files) -> PictureSplit:
    labels = torch.tensor(part.classes, dtype=torch.int64)
    groups = None if part.groups is None else grouped("data.group", config.group, part.groups)
    return PictureSplit(part.paths, labels, config.size, config.channels, groups)


def training_set(config: schema.ImageFolder) -> tuple[Split, tuple[str, ...]]:
    """The training set and the names of the classes, as of `open_source` if no picture is broken.
    Decodes no picture."""
    listing = list_pictures(Path(config.path), config.group)
    train: Split = _undecoded(config, listing.train)
    if listing.test is None:
        train, _ = split_off_test(train, config.test_fraction, config.split_seed)
    return train, listing.labels


def describe(config: schema.ImageFolder) -> Description:
    """Lists the folders and decodes no picture."""
    labels = list_pictures(Path(config.path)).labels
    return Description((config.channels, config.size, config.size), len(labels))
