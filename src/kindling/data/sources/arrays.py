"""The user's own arrays in memory, which `kindling.fit(config, data=(x, y))` gets. They are read
and checked as those of a .npz file (npz.py), but classes may be any whole numbers or texts."""

import hashlib
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from kindling.config import schema
from kindling.config.measures import CLASSIFICATION
from kindling.data.sources.npz import source_of
from kindling.data.sources.source import Source
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
