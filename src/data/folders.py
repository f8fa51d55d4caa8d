"""Lists and decodes pictures in a folder for each class. Imports no torch."""

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from src.config.written import printable
from src.data.pictures import SUFFIXES, read_picture, resize
from src.system.errors import InputError, all_at_once, reading
from src.system.files import sha256
from src.system.resources import cpu_count
from src.system.terminal import progress

MOST_TOLD = 10  # classes, in a message
AT_ONCE = 256  # pictures given to the threads together; Ctrl-C waits for at most these


@dataclass(frozen=True)
class Files:
    """Picture files and their classes, sorted by class and name, and the name of each one's group
    if there are groups."""

    paths: Sequence[Path]
    classes: Sequence[int]
    groups: Sequence[str] | None = None


@dataclass(frozen=True)
class Listing:
    """The content of a folder of pictures."""

    labels: tuple[str, ...]
    train: Files
    test: Files | None  # None without a folder `test`
    others: int  # the number of files that are not PNG or JPEG by their names
    digest: str  # of the names and sizes of all pictures


def has_parts(root: Path) -> bool:
    """Whether `root` has folders train and test, and train has folders of classes."""
    return (root / "train").is_dir() and (root / "test").is_dir() and bool(_folders(root / "train"))


def class_folders(root: Path) -> list[str]:
    """The folders of the classes in alphabetical order, without hidden ones. Raises InputError when
    there are fewer than two, or when `root` cannot be read."""
    with reading(f"data.path={root}"):
        base = root / "train" if has_parts(root) else root
        names = _folders(base)
    if len(names) < 2:
        folders = f"only the folder {names[0]}" if names else "no folder"
        raise InputError(
            f"data.path={root}: has {folders}; it needs one for each of two or more classes with "
            f"their pictures in it, such as {base / 'cat'} and {base / 'dog'}"
        )
    return names


def _folders(root: Path) -> list[str]:
    return sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))


def list_pictures(root: Path, level: int | None = None) -> Listing:
    """The pictures of each class, including those in subfolders of its folder. Pictures with the
    same `level` folders below those of the classes form a group, whatever their classes. Raises
    InputError with all classes without pictures, all classes of test that train lacks, the first
    picture with fewer folders than `level`, and the first group in both train and test."""
    names = class_folders(root)
    parts = [root / "train", root / "test"] if has_parts(root) else [root]
    faults, listed, others = [], [], 0
    digest = hashlib.sha256()
    for part in parts:
        paths: list[Path] = []
        classes: list[int] = []
        if part is not parts[0]:
            unknown = sorted(set(_folders(part)) - set(names))
            faults += [f"{part / name}: {parts[0]} has no such class" for name in unknown]
        groups: list[str] = []
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
            folders = [path.relative_to(part / name).parent.parts for path in pictures]
            groups += ["/".join(each[:level]) for each in folders]
            depths = zip(pictures, map(len, folders), strict=True)
            shallow = [path for path, depth in depths if depth < (level or 0)]
            if shallow:
                faults.append(
                    f"{shallow[0]}: lies in no folder of level {level} below {part / name}, which "
                    f"data.group={level} takes for its group (in all {len(shallow):,} of "
                    f"{len(pictures):,} pictures there); move them, or type data.group=null"
                )
        listed.append(Files(paths, classes, None if level is None else groups))
        for path in paths:
            size = path.stat().st_size if path.exists() else -1
            digest.update(os.fsencode(f"{path.relative_to(root)}\0{size}\n"))
    if len(parts) == 2 and not listed[1].paths:
        faults.append(f"{parts[1]}: has no picture; add some, or remove the folder")
    shared = sorted(set.intersection(*(set(each.groups or ()) for each in listed)))
    if len(parts) == 2 and shared and not faults:
        faults.append(
            f"data.group={level}: the group {shared[0][:80]!r} is in {parts[0]} and in {parts[1]}; "
            "move its pictures into one of them"
        )
    if faults:
        raise all_at_once(faults, "nothing was decoded")
    labels = tuple(printable(name) for name in names)
    test = listed[1] if len(parts) == 2 else None
    return Listing(labels, listed[0], test, others, digest.hexdigest())


def labelled_pictures(root: Path, labels: Sequence[str]) -> tuple[list[Path], list[int]]:
    """The pictures in the folders of these classes, not all of which must be there, with the place
    of each one's class in `labels`. Raises InputError with all folders that are no class, and when
    there is no picture."""
    with reading(root):
        names = _folders(root)
    paths: list[Path] = []
    classes: list[int] = []
    unknown = [name for name in names if printable(name) not in labels]
    if unknown:
        told = ", ".join(labels[:MOST_TOLD]) + (", …" if labels[MOST_TOLD:] else "")
        faults = [f"{root / name}: is no class of the model ({told})" for name in unknown]
        raise all_at_once(faults, "nothing was decoded")
    for name in names:
        pictures, _ = _pictures(root / name)
        paths += pictures
        classes += [labels.index(printable(name))] * len(pictures)
    if not paths:
        raise InputError(
            f"{root}: has no picture ({', '.join(SUFFIXES)}) in a folder of its class, such as "
            f"{root / labels[0]}"
        )
    return paths, classes


def _pictures(folder: Path) -> tuple[list[Path], int]:
    """The PNG and JPEG files sorted by name, and the number of other files, without hidden ones."""
    pictures, others = [], 0
    for path, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        shown = [name for name in sorted(names) if not name.startswith(".")]
        chosen = [name for name in shown if name.lower().endswith(SUFFIXES)]
        pictures += [Path(path, name) for name in chosen]
        others += len(shown) - len(chosen)
    return pictures, others


@dataclass
class Survey:
    """The result of decoding all pictures."""

    broken: dict[int, str] = field(default_factory=dict)  # picture number → fault
    sizes: set[tuple[int, int]] = field(default_factory=set)  # (width, height)
    modes: set[str] = field(default_factory=set)  # Pillow's names


def decode_all(
    paths: Sequence[Path], size: int, channels: int, into: NDArray[np.uint8] | None
) -> Survey:
    """Decodes all pictures once, on all cores. Writes the pixels to `into` (N, channels, size,
    size), if given, and leaves the places of broken pictures unchanged."""
    survey = Survey()

    def decode(number: int) -> tuple[tuple[int, int], str] | str:
        """The size and mode of a picture, or its fault."""
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
        places = iter(progress(range(len(paths)), "pictures read"))
        for first in range(0, len(paths), AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, len(paths)))
            for number, seen in zip(
                islice(places, len(numbers)), pool.map(decode, numbers), strict=True
            ):
                if isinstance(seen, str):
                    survey.broken[number] = seen
                else:
                    survey.sizes.add(seen[0])
                    survey.modes.add(seen[1])
    return survey


def digest_of(path: Path) -> str | None:
    """The digest of the user's own data, as their source has it; None for a folder that cannot be
    trained on."""
    if path.is_file():
        return sha256(path)
    with suppress(InputError):
        return list_pictures(path).digest
    return None
