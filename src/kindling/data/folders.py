"""Lists pictures in a folder for each class. Imports no torch."""

import hashlib
import logging
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

from kindling.config.written import counted, place_of_class, printable
from kindling.data.pictures import SUFFIXES
from kindling.system.errors import InputError, all_at_once, reading
from kindling.system.files import sha256
from kindling.system.installation import as_command

log = logging.getLogger(__name__)

MOST_TOLD = 10  # classes, in a message
# The parts of the data with the names of their folders, in any case, also with "set", "data",
# "images" or a number behind them.
PARTS = {
    "training": ("train", "training"),
    "validation": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}


@dataclass(frozen=True)
class Files:
    """Picture files and their classes, sorted by class and name, and the name of each one's group
    if there are groups."""

    paths: list[Path] = field(default_factory=list)
    classes: list[int] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)  # other files, by the ends of their names

    def add(self, folder: Path, number: int) -> list[Path]:
        """Adds the pictures of a class, and returns them."""
        pictures, others = _pictures(folder)
        self.paths.extend(pictures)
        self.classes.extend([number] * len(pictures))
        self.others.update(others)
        return pictures


@dataclass(frozen=True)
class Listing:
    """The content of a folder of pictures."""

    labels: tuple[str, ...]
    parts: Mapping[str, Files]  # by the names in PARTS; all but `training` may be missing
    told: tuple[str, ...]  # lines about all that is left out
    digest: str  # of the names and sizes of all pictures


@dataclass(frozen=True)
class Layout:
    """The folders of the parts of a folder of pictures. The training part is the folder itself, if
    it has no parts."""

    parts: Mapping[str, Path]
    unlabelled: Path | None = None  # a test folder with pictures, but without classes

    @property
    def train(self) -> Path:
        return self.parts["training"]


def part_of(name: str) -> str | None:
    """The part of the data that a folder of this name has, by the usual names."""
    plain = re.sub("[^a-z]", "", name.casefold())
    plain = re.sub("(set|data|images|pictures)$", "", plain)
    return next((part for part, names in PARTS.items() if plain in names), None)


def layout_of(root: Path) -> Layout:
    """Folders for the parts of the data, or for the classes. Raises InputError for folders of which
    some are named as parts, unless they are one for training and one for validation, test or both,
    and for a training or validation part without folders of classes."""
    names = _folders(root)
    found: dict[str, list[str]] = {}
    for name in names:
        part = part_of(name)
        if part and not (name.casefold() == "valid" and "invalid" in map(str.casefold, names)):
            found.setdefault(part, []).append(name)
    if not found:
        return Layout({"training": root})
    fault = _parts_fault(root, names, found)
    if fault:
        raise InputError(
            f"data.path={root}: has {fault}. A folder of pictures has a folder for each class, or "
            "train with val, test or both, each with the folders of the classes. If one of these "
            f"is a class, rename its folder. Seen: {', '.join(names[:MOST_TOLD])}"
            f"{', …' if names[MOST_TOLD:] else ''}"
        )
    folders = {part: root / found[part][0] for part in PARTS if part in found}
    for part, folder in folders.items():
        lying = 0 if _folders(folder) else len(_pictures(folder)[0])
        if lying and part == "test":
            others = {each: path for each, path in folders.items() if each != "test"}
            return Layout(others, unlabelled=folder)
        if lying:
            raise InputError(
                f"{folder}: has {lying:,} pictures, but no folder for each class; move those of "
                f"each class into a folder of its own, such as {folder / 'cat'}"
            )
    return Layout(folders)


def _parts_fault(root: Path, names: Sequence[str], found: Mapping[str, Sequence[str]]) -> str:
    """The fault of folders of which those `found` are named as parts of the data, "" for none."""
    of_parts = [name for of_part in found.values() for name in of_part]
    told = " and ".join(of_parts)
    twice = next((of_part for of_part in found.values() if len(of_part) > 1), None)
    if twice:
        return f"{' and '.join(twice)}, which are the same part of the data; keep one of them"
    if "training" not in found:
        return f"{told}, but no folder train beside"
    others = [name for name in names if name not in of_parts and _pictures(root / name)[0]]
    if others:
        return f"{others[0]}, with pictures, beside {told}; move it elsewhere"
    if len(found) == 1:
        return f"{told}, but neither val nor test beside; type data.path={root / told}"
    return ""


def class_folders(root: Path) -> tuple[Layout, list[str]]:
    """The layout, and the folders of the classes in alphabetical order, without hidden ones. Raises
    InputError when there are fewer than two, when `root` cannot be read, and as `layout_of`."""
    with reading(f"data.path={root}"):
        layout = layout_of(root)
        base = layout.train
        names = _folders(base)
    if len(names) < 2:
        folders = f"only the folder {names[0]}" if names else "no folder"
        raise InputError(
            f"data.path={base}: has {folders}; it needs one for each of two or more classes with "
            f"their pictures in it, such as {base / 'cat'} and {base / 'dog'}"
        )
    return layout, names


def _folders(root: Path) -> list[str]:
    return sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))


def list_pictures(root: Path, level: int | None = None) -> Listing:
    """The pictures of each class, including those in subfolders of its folder. Pictures with the
    same `level` folders below those of the classes form a group, whatever their classes. Raises
    InputError with all classes without pictures, all classes of other parts that train lacks, the
    first picture with fewer folders than `level`, and the first group in two parts."""
    layout, names = class_folders(root)
    faults, parts = list[str](), dict[str, Files]()
    digest = hashlib.sha256()
    for part, folder in layout.parts.items():
        files = Files()
        if part != "training":
            unknown = sorted(set(_folders(folder)) - set(names))
            faults += [f"{folder / name}: {layout.train} has no such class" for name in unknown]
        for number, name in enumerate(names):
            base = folder / name
            pictures = files.add(base, number)
            if not pictures and part == "training":
                faults.append(
                    f"{base}: has no picture ({', '.join(SUFFIXES)}); add some, or remove the "
                    "folder"
                )
            if level is None:
                continue
            above = [path.relative_to(base).parent.parts for path in pictures]
            files.groups.extend("/".join(folders[:level]) for folders in above)
            pairs = zip(pictures, above, strict=True)
            shallow = [path for path, folders in pairs if len(folders) < level]
            if shallow:
                faults.append(
                    f"{shallow[0]}: lies in no folder of level {level} below {base}, which "
                    f"data.group={level} takes for its group (in all {len(shallow):,} of "
                    f"{len(pictures):,} pictures there); move them, or type data.group=null"
                )
        if not files.paths and part != "training":
            faults.append(f"{folder}: has no picture; add some, or remove the folder")
        for path in files.paths:
            size = path.stat().st_size if path.exists() else -1
            digest.update(os.fsencode(f"{path.relative_to(root)}\0{size}\n"))
        parts[part] = files
    for one, other in combinations(parts if not faults else (), 2):
        shared = sorted(set(parts[one].groups) & set(parts[other].groups))
        if shared:
            faults.append(
                f"data.group={level}: the group {shared[0][:80]!r} is in {layout.parts[one]} and "
                f"in {layout.parts[other]}; move its pictures into one of them"
            )
    if faults:
        raise all_at_once(faults, "nothing was decoded")
    others = sum((files.others for files in parts.values()), Counter[str]())
    told = tuple(_left_out(root, layout, others))
    return Listing(tuple(map(_storable, names)), parts, told, digest.hexdigest())


def _left_out(root: Path, layout: Layout, others: Counter[str]) -> Iterator[str]:
    """A line for each kind of file that is not used. `others` are those in folders of classes."""
    if layout.unlabelled is not None:
        count = len(_pictures(layout.unlabelled)[0])
        yield (
            f"{layout.unlabelled}: {counted(count, 'picture')} without classes, not used; "
            f"{as_command('predict')} RUN {layout.unlabelled} predicts them"
        )
    stray: list[Path] = []
    folders = [*layout.parts.values()]
    for folder in dict.fromkeys([root, *folders]):
        lying, kinds = _pictures(folder, below=False)
        stray += lying
        others = others + kinds
    if stray:
        told = f"{len(stray):,}, such as {stray[0]}"
        yield f"{root}: pictures in no folder of a class, left out: {told}"
    used = [*folders, layout.unlabelled]
    unused = [name for name in _folders(root) if layout.train != root and root / name not in used]
    if unused:
        yield f"{root}: folders without pictures, left out: {', '.join(unused[:MOST_TOLD])}"
    for folder in sorted({folder for part in folders for folder in part.iterdir()}):
        inner = _folders(folder) if folder.is_dir() and not folder.name.startswith(".") else []
        parts = [name for name in inner if part_of(name)]
        if "training" in map(part_of, parts) and parts[1:]:
            yield (
                f"{folder}: the pictures in {' and '.join(parts)} are mixed; to keep the parts, "
                f"move them to {root / parts[0] / folder.name} and so on"
            )
            break
    if others:
        ends = ", ".join(f"{end} {count:,}" for end, count in others.most_common(5))
        yield f"{root}: files that are not PNG or JPEG, left out: {others.total():,} ({ends})"


def _storable(name: str) -> str:
    """The name of a class, the name of its folder; bytes that are not UTF-8 cannot be stored."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return printable(name)
    return name


def labelled_pictures(root: Path, labels: Sequence[str]) -> tuple[list[Path], list[int]]:
    """The pictures in the folders of these classes, not all of which must be there, with the place
    of each one's class in `labels`. Warns of files that are left out. Raises InputError with all
    folders that are no class, and when there is no picture."""
    with reading(root):
        names = _folders(root)
    places = [place_of_class(labels, name) for name in names]
    unknown = [name for name, place in zip(names, places, strict=True) if place is None]
    if unknown:
        told = ", ".join(labels[:MOST_TOLD]) + (", …" if labels[MOST_TOLD:] else "")
        faults = [f"{root / name}: is no class of the model ({told})" for name in unknown]
        raise all_at_once(faults, "nothing was decoded")
    files = Files()
    for name, place in zip(names, places, strict=True):
        files.add(root / name, place or 0)
    if not files.paths:
        raise InputError(
            f"{root}: has no picture ({', '.join(SUFFIXES)}) in a folder of its class, such as "
            f"{root / labels[0]}"
        )
    for line in _left_out(root, Layout({"training": root}), files.others):
        log.warning("%s", printable(line))
    return files.paths, files.classes


def _pictures(folder: Path, *, below: bool = True) -> tuple[list[Path], Counter[str]]:
    """The PNG and JPEG files of a folder, sorted by name, and the numbers of others by the ends of
    their names; with `below`, also those of all folders in it. Without hidden ones."""
    pictures, others = [], Counter[str]()
    for path, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if below and not name.startswith("."))
        for name in sorted(name for name in names if not name.startswith(".")):
            if name.lower().endswith(SUFFIXES):
                pictures.append(Path(path, name))
            else:
                others[Path(name).suffix.lower() or "without an end"] += 1
    return pictures, others


def digest_of(path: Path) -> str | None:
    """The digest of the user's own data, as their source has it; None for a folder that cannot be
    trained on."""
    if path.is_file():
        return sha256(path)
    with suppress(InputError):
        return list_pictures(path).digest
    return None
