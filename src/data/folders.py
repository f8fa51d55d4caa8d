"""Folders of pictures, one for each class, and their pixels. No torch here."""

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from src.data.pictures import SUFFIXES, read_picture, resize
from src.system.errors import InputError, all_at_once
from src.system.resources import cpu_count

AT_ONCE = 256  # pictures that are handed to the threads together: Ctrl-C waits for no more


@dataclass(frozen=True)
class Files:
    """Picture files and the class of each, in the order of classes and names."""

    paths: Sequence[Path]
    classes: Sequence[int]


@dataclass(frozen=True)
class Listing:
    """What a folder holds. `test` is None where it has no test set, `others` are files that are
    no PNG or JPEG by their names, `digest` is of the names and sizes of all pictures."""

    labels: tuple[str, ...]
    train: Files
    test: Files | None
    others: int
    digest: str


def has_parts(root: Path) -> bool:
    """Whether it has folders train and test, and in train those of the classes."""
    return (root / "train").is_dir() and (root / "test").is_dir() and bool(_folders(root / "train"))


def class_folders(root: Path) -> list[str]:
    """Names of the classes: folders in alphabetical order, hidden ones left out, as torchvision's
    ImageFolder has them.

    Raises InputError when there are fewer than two, or the folder cannot be read.
    """
    try:
        base = root / "train" if has_parts(root) else root
        names = _folders(base)
    except OSError as error:
        raise InputError(f"data.path={root}: cannot be read ({error.strerror})") from None
    if len(names) < 2:
        found = f"only the folder {names[0]}" if names else "no folder"
        raise InputError(
            f"data.path={root}: has {found}; it needs one for each of two or more classes with "
            f"their pictures in it, such as {base / 'cat'} and {base / 'dog'}"
        )
    return names


def _folders(root: Path) -> list[str]:
    return sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))


def list_pictures(root: Path) -> Listing:
    """The pictures of each class, those in folders within its folder too.

    Raises InputError with every class that has none, and where test has others than train.
    """
    names = class_folders(root)
    parts = [root / "train", root / "test"] if has_parts(root) else [root]
    faults, found, others = [], [], 0
    digest = hashlib.sha256()
    for part in parts:
        paths: list[Path] = []
        classes: list[int] = []
        if part is not parts[0]:
            unknown = sorted(set(_folders(part)) - set(names))
            faults += [
                f"{part / name}: {part.parent / 'train'} has no such class" for name in unknown
            ]
        for number, name in enumerate(names):
            pictures, other = _pictures(part / name)
            if not pictures and part is parts[0]:
                faults.append(
                    f"{part / name}: has no picture ({', '.join(SUFFIXES)}); add some, or remove "
                    "the folder"
                )
            others += other
            paths += pictures
            classes += [number] * len(pictures)
        found.append(Files(paths, classes))
        for path in paths:
            size = path.stat().st_size if path.exists() else -1
            digest.update(os.fsencode(f"{path.relative_to(root)}\0{size}\n"))
    if len(parts) == 2 and not found[1].paths:
        faults.append(f"{parts[1]}: has no picture; add some, or remove the folder")
    if faults:
        raise all_at_once(faults, "nothing was decoded")
    labels = tuple(printable(name) for name in names)
    return Listing(labels, found[0], found[1] if parts[1:] else None, others, digest.hexdigest())


def _pictures(folder: Path) -> tuple[list[Path], int]:
    """The PNG and JPEG files by name, and how many others there are; hidden ones do not count."""
    pictures, others = [], 0
    for path, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        shown = [name for name in sorted(names) if not name.startswith(".")]
        chosen = [name for name in shown if name.lower().endswith(SUFFIXES)]
        pictures += [Path(path, name) for name in chosen]
        others += len(shown) - len(chosen)
    return pictures, others


def printable(name: str) -> str:
    """Safe to show: a file's name may hold line ends and worse."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name)


def read_pixels(path: Path, size: int, channels: int) -> NDArray[np.uint8]:
    """(channels, size, size). Raises InputError when the picture cannot be read."""
    return resize(read_picture(path), (size, size), channels)


@dataclass
class Survey:
    """What decoding every picture has shown: the fault of each that is broken, by its number, and
    how many there are of each size (width, height) and of each mode, by Pillow's names."""

    broken: dict[int, str] = field(default_factory=dict)
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    modes: Counter[str] = field(default_factory=Counter)


def decode_all(
    paths: Sequence[Path], size: int, channels: int, into: NDArray[np.uint8] | None
) -> Survey:
    """Decodes every picture once, on all cores; `into` (N, channels, size, size) takes the pixels.

    Broken ones are noted, and their pixels left as they are.
    """
    survey = Survey()
    for number, seen in enumerate(_each(paths, size, channels, into)):
        if isinstance(seen, str):
            survey.broken[number] = seen
        else:
            survey.sizes[seen[0]] += 1
            survey.modes[seen[1]] += 1
    return survey


def _each(
    paths: Sequence[Path], size: int, channels: int, into: NDArray[np.uint8] | None
) -> Iterator[tuple[tuple[int, int], str] | str]:
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

    with ThreadPoolExecutor(cpu_count()) as pool:
        for first in range(0, len(paths), AT_ONCE):
            yield from pool.map(decode, range(first, min(first + AT_ONCE, len(paths))))
