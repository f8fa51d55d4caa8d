"""The user's own arrays in a .npz file.

x (N, ...) has the samples, uint8 or floats. y (N,) has the classes, integers 0, 1, … C - 1; each of
them must occur. x_test and y_test are optional. With data.group=NAME, the array NAME (N,) has the
groups, and x_test needs NAME_test too. src/data/arrays.py reads and checks the arrays.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from src.config import schema
from src.data.arrays import as_float32, feature_faults, label_faults, read_arrays
from src.data.sources.source import COPIES, Groups, Source, Split, grouped, split_off_test
from src.system.errors import InputError
from src.system.files import sha256
from src.system.resources import free_memory


def open_source(config: schema.Npz) -> Source:
    """Pictures (N, H, W) get a channel: (N, 1, H, W). Raises InputError with all faults at once."""
    path = Path(config.path)
    limit = free_memory() // COPIES
    group = config.group
    names = [] if group is None else [group, f"{group}_test"]
    found = read_arrays(path, ("x", "y", "x_test", "y_test", *names), limit)
    faults = [
        f"has {name}, but no {other}; add {other}, or remove {name} to draw the test set from x"
        for name, other in (("x_test", "y_test"), ("y_test", "x_test"))
        if name in found and other not in found
    ]
    if "y" not in found:
        faults.append("has no array y, the label of each row of x")
    has_test = "x_test" in found
    for x, y in [("x", "y"), ("x_test", "y_test")] if has_test else [("x", "y")]:
        found[x] = as_float32(found[x])
        samples = len(found[x]) if found[x].ndim else 0
        faults += [*feature_faults(x, found[x]), *label_faults(y, found.get(y), samples)]
    if has_test and found["x"].dtype != found["x_test"].dtype:
        faults.append(
            f"x is of {found['x'].dtype}, x_test of {found['x_test'].dtype}; make their types equal"
        )
    if has_test and found["x"].shape[1:] != found["x_test"].shape[1:]:
        shapes = f"x is {found['x'].shape}, x_test {found['x_test'].shape}"
        faults.append(f"{shapes}; samples of both must have the same shape")
    if group is not None:
        faults += _group_faults(found, group)
    if not faults:
        faults += _class_faults(found["y"], found.get("y_test"))
    if faults:
        raise InputError(f"{path}: {'; '.join(faults)}")
    train = _split(found["x"], found["y"], None if group is None else _groups(group, found[group]))
    if has_test:
        test = _split(found["x_test"], found["y_test"])
    else:
        train, test = split_off_test(train, config.test_fraction, config.split_seed)
    labels = tuple(str(number) for number in range(int(found["y"].max()) + 1))
    return Source(config.name, train, test, labels, digest=sha256(path))


def _class_faults(y: NDArray[Any], y_test: NDArray[Any] | None) -> list[str]:
    classes = np.unique(y)
    if len(classes) < 2:
        return [f"y has the one class {classes[0]}, must have two or more"]
    missing = np.setdiff1d(np.arange(len(classes)), classes)
    if missing.size:
        return [
            f"y has {len(classes)} classes from {classes[0]} to {classes[-1]}, but no class "
            f"{missing[0]}; they must be 0, 1, … {len(classes) - 1}: write y = "
            "numpy.unique(y, return_inverse=True)[1]"
        ]
    if y_test is not None and not np.isin(y_test, classes).all():
        strange = y_test[~np.isin(y_test, classes)][0]
        return [f"y_test has the class {strange}, y has only 0 to {classes[-1]}"]
    return []


def _group_faults(found: Mapping[str, NDArray[Any]], group: str) -> list[str]:
    """The faults of the arrays that data.group names."""
    known = {}
    for name, x in [(group, "x"), (f"{group}_test", "x_test")]:
        if x not in found:
            continue
        if name not in found:
            return [
                f"data.group={group}: there is no array {name}; add the group of each row of {x}"
            ]
        array, shape = found[name], found[x].shape[:1]
        if array.dtype.kind not in "iuUS" or array.shape != shape:
            return [
                f"data.group={group}: {name} is {array.shape} of {array.dtype}, must be {shape} of "
                f"whole numbers or texts, a group for each row of {x}"
            ]
        known[x] = set(_texts(array))
    shared = sorted(known["x"] & known.get("x_test", set()))
    if not shared:
        return []
    return [
        f"data.group={group}: the group {shared[0][:80]!r} is in {group} and in {group}_test; move "
        "its samples into one of the two sets"
    ]


def _texts(array: NDArray[Any]) -> list[str]:
    return [str(value) for value in array.tolist()]


def _groups(name: str, array: NDArray[Any]) -> Groups:
    return grouped("data.group", name, _texts(array))


def _split(x: NDArray[Any], y: NDArray[Any], groups: Groups | None = None) -> Split:
    features = torch.from_numpy(np.ascontiguousarray(x))
    if features.ndim == 3:
        features = features.unsqueeze(1)
    return Split(features, torch.from_numpy(y.astype(np.int64)), groups)
