"""The user's own arrays in memory, which `kindling.fit(config, data=(x, y))` gets. They are read
and checked as those of a .npz file (npz.py), but classes may be any whole numbers or texts. And
those of a data set of an extension."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from kindling.config import schema
from kindling.config.measures import CLASSIFICATION, MULTILABEL
from kindling.data import arrays
from kindling.data.sources.npz import difference_faults, source_of
from kindling.data.sources.source import Source, Split
from kindling.system.errors import InputError, parsing

PAIRS = {"data": "", "validation": "_val", "test": "_test"}  # arguments: ends of names as in .npz
CODED = "biuU"  # the types of classes: whole numbers and texts


class OwnArrays:
    """The arrays x, y, x_val, … of the pairs (x, y), or with weights (x, y, w), that `fit` and
    `sweep` take as `data`, `validation` and `test`. Raises InputError for anything else."""

    def __init__(self, **pairs: Any) -> None:
        given = {name: pair for name, pair in pairs.items() if pair is not None}
        self.told_as = ", ".join(f"{name}=(x{PAIRS[name]}, y{PAIRS[name]})" for name in given)
        self.arrays: dict[str, NDArray[Any]] = {}
        for name, pair in given.items():
            if not isinstance(pair, tuple | list) or len(pair) not in (2, 3):
                raise InputError(
                    f"{name}: must be samples and their labels, and perhaps weights; type "
                    f"{name}=(x, y) or {name}=(x, y, w)"
                )
            for part, array in zip("xyw", pair, strict=False):
                self.arrays[part + PAIRS[name]] = _as_array(f"{name}=(x, y): {part}", array)
        digest = hashlib.sha256()
        for name, array in sorted(self.arrays.items()):
            digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
            digest.update(array.reshape(-1).view(np.uint8).data)
        self.digest = digest.hexdigest()
        self.short_digest = self.digest[:12]


def _as_array(name: str, given: Any) -> NDArray[Any]:
    """Shares the memory of `given` where that may be written, as torch wants it."""
    if given is None:
        raise InputError(f"{name} is None; both are needed, the samples x and their classes y")
    given = given.detach() if hasattr(given, "detach") else given
    cure = "; type numpy.array(…), or of a tensor .cpu()"
    with parsing(f"{name} cannot be read as an array", cure):
        array = np.asarray(given)
        texts = array.dtype == object and all(isinstance(each, str) for each in array.flat)
        if texts or array.dtype.kind == "S":
            array = array.astype(str)
    if array.dtype.kind not in CODED + "f":
        more = ", or of classes texts" if name.endswith("y") else ""
        raise InputError(f"{name} is of {array.dtype}, must be numbers{more}")
    return np.require(array, requirements=["C", "W"])


_opened = WeakKeyDictionary[OwnArrays, dict[tuple[Any, ...], Source]]()  # a sweep asks often


def open_source(config: schema.Arrays, task: schema.Task) -> Source:
    own: OwnArrays = config.held
    opened = _opened.setdefault(own, {})
    key = (config.kind, config.test_fraction, config.split_seed, task.name)
    if key not in opened:
        found, labels = dict(own.arrays), list[str]()
        if task.name == CLASSIFICATION:
            found, labels = _numbered(own.told_as, own.arrays)
        opened[key] = source_of(config, task, own.told_as, found, own.digest, labels=labels)
    return opened[key]


def _numbered(
    told_as: str, arrays: Mapping[str, NDArray[Any]]
) -> tuple[dict[str, NDArray[Any]], list[str]]:
    """The arrays with the places of classes, in their order, and the classes as texts. What cannot
    be classes stays. Raises InputError for a class that y lacks."""
    found, y = dict(arrays), arrays["y"]
    if y.ndim != 1 or y.dtype.kind not in CODED:
        return found, []
    classes = np.unique(y)
    for name in [name for name in arrays if name.startswith("y")]:
        labels = arrays[name]
        if labels.ndim != 1 or labels.dtype.kind not in CODED:
            continue
        texts = {each.dtype.kind == "U" for each in (labels, classes)}
        strange = labels if len(texts) > 1 else labels[~np.isin(labels, classes)]
        if strange.size:
            known = ", ".join(map(str, classes[:10]))[:200]
            raise InputError(f"{told_as}: {name} has the class {strange[0]}, y has only {known}")
        found[name] = np.searchsorted(classes, labels)
    return found, [str(each) for each in classes.tolist()]


def checked(source: Any, told_as: str, task: str) -> Source:
    """What an extension returned, which `told_as` names in messages, in the types of a `Split`: the
    engine reads memory. Raises InputError for what has no one meaning."""
    if not isinstance(source, Source):
        raise InputError(
            f"{told_as}: returned {type(source).__name__}, must return a Source of "
            f"{Source.__module__}"
        )
    names, least = source.labels, 2 if task == CLASSIFICATION else 1
    texts = isinstance(names, tuple | list) and all(isinstance(name, str) for name in names)
    if not texts or len(set(names)) < max(len(names), least):
        raise InputError(
            f"{told_as}: labels is {names!r:.200}, must be {least} or more different names"
        )
    splits, found = dict[str, Any](), dict[str, NDArray[Any]]()
    for part in ("train", "validation", "test"):
        if part != "validation" or source.validation is not None:
            split = splits[part] = _checked(getattr(source, part), told_as, part, names, task)
            if type(split) is Split:
                found[f"{part}.features"] = split.features.numpy()
    if faults := found and difference_faults(found, [*found]):
        raise InputError(f"{told_as}: {'; '.join(faults)}")
    return replace(source, labels=tuple(names), **splits)


def _checked(split: Any, told_as: str, part: str, names: Sequence[str], task: str) -> Split:
    if not isinstance(split, Split):
        raise InputError(f"{told_as}: {part} is {type(split).__name__}, must be a Split")
    if type(split) is not Split:  # one of ours that reads its pictures later
        return split
    named = [f"{part}.{name}" for name in ("features", "labels", "weights")]
    x, y = (
        _as_array(f"{told_as}: {name}", array)
        for name, array in zip(named, (split.features, split.labels), strict=False)
    )
    w = None if split.weights is None else _as_array(f"{told_as}: {named[2]}", split.weights)
    x, samples = arrays.as_float32(x), len(x) if x.ndim else 0
    if x.dtype.kind == "f" or x.dtype == np.uint8:
        faults = arrays.feature_faults(named[0], x, "numbers")
    else:
        faults = [
            f"{named[0]} is of {x.dtype}, must be floats, or uint8 for pixels from 0 to 255, which "
            "are divided by 255; of other numbers write .float()"
        ]
    faults += arrays.label_faults(named[1], y, samples, task)
    faults += arrays.weight_faults(named[2], w, samples)
    if not faults and task == CLASSIFICATION:
        y = y.astype(np.int64, copy=False)
        strange = y[(y < 0) | (y >= len(names))]
        if strange.size:
            faults = [
                f"{named[1]} has the class {strange[0]}, must be 0 to {len(names) - 1}, a place in "
                f"labels={names!r:.200}"
            ]
    elif not faults:
        y = arrays.columns_of(y)
        y = y.astype(np.float32) if task == MULTILABEL else y
        if y.shape[1] != len(names):
            faults = [f"{named[1]} has {y.shape[1]} columns, labels={names!r:.200} {len(names)}"]
    if faults:
        raise InputError(f"{told_as}: {'; '.join(faults)}")
    weights = None if w is None else torch.from_numpy(w.astype(np.float32))
    return Split(torch.from_numpy(x), torch.from_numpy(y), split.groups, weights)
