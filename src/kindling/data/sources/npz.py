"""The user's own arrays in a .npz file.

x (N, ...) has the samples, y (N,) the classes, integers 0, 1, … C - 1; each of them must occur. Of
another task, y (N,) or (N, outputs) has numbers, or labels 0 and 1.
x_val and y_val, a validation set, and x_test and y_test are optional, and so are the weights of the
samples, w (N,), w_val and w_test. With data.group=NAME, the
array NAME (N,) has the groups; x_val and x_test then need NAME_val and NAME_test. Other arrays are
refused or told. data/arrays.py reads and checks the arrays.
"""

import logging
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kindling.config import schema
from kindling.config.measures import CLASSIFICATION, MULTILABEL
from kindling.config.rules import ARRAYS
from kindling.config.written import printable
from kindling.data import arrays
from kindling.data.sources.source import COPIES, Source, Split, grouped, split_off_test
from kindling.system.errors import InputError
from kindling.system.files import sha256
from kindling.system.resources import free_memory

PARTS = {"": "training", "_val": "validation", "_test": "test"}  # by the ends of the names


def open_source(config: schema.Npz, task: schema.Task) -> Source:
    """Raises InputError as `source_of`, and for what read_arrays and the names of arrays tell."""
    path = Path(config.path)
    ends = [end for end in PARTS if end != "_val" or config.kind is not None]
    names = [f"{name}{end}" for end in ends for name in filter(None, ("x", "y", "w", config.group))]
    found, unused = arrays.read_arrays(path, names, limit=free_memory() // COPIES)
    return source_of(config, task, str(path), found, sha256(path), unused=unused)


def source_of(
    config: schema.Npz | schema.Arrays,
    task: schema.Task,
    told_as: str,
    found: dict[str, NDArray[Any]],
    digest: str,
    *,
    labels: Sequence[str] = (),
    unused: Sequence[str] = (),
) -> Source:
    """The data set of arrays by their names, x, y, x_val, …, which `told_as` names in messages.
    Pictures (N, H, W) get a channel: (N, 1, H, W). `labels` are the names of the classes, by
    default their numbers; those of other outputs are y, or y0, y1, … Raises InputError with all
    faults at once."""
    group: str | None = getattr(config, "group", None)
    parts = [end for end in PARTS if f"x{end}" in found]
    faults = _pair_faults(found)
    meant = [name for name in unused if arrays.MEANT.fullmatch(name)]
    if meant and config.kind is not None:
        faults.append(
            f"has {', '.join(meant)[:100]}, which would not be used; rename it to one of "
            f"{', '.join(ARRAYS)}, or remove it (the weights of classes are trainer.class_weights)"
        )
    for end in parts:
        x = found[f"x{end}"] = arrays.as_float32(found[f"x{end}"])
        samples = len(x) if x.ndim else 0
        faults += arrays.feature_faults(f"x{end}", x, config.kind)
        faults += arrays.label_faults(f"y{end}", found.get(f"y{end}"), samples, task.name)
        faults += arrays.weight_faults(f"w{end}", found.get(f"w{end}"), samples)
    reading, lines = None, list[str]()
    if not faults and config.kind is not None:
        reading = arrays.ArrayReading.guess(found["x"], config.kind)
        lines = reading.guesses(found["x"]) if config.kind == "auto" else []
        if reading.kind == "numbers" and (line := arrays.unscaled(found["x"])):
            lines.append(line)
        if unused:
            told = arrays.unused_line(unused)
            lines.append(f"{told}; data.group=NAME takes one as the groups of samples")
        for name in [f"x{end}" for end in parts]:
            if reading.kind == "pictures":  # numbers have no further faults
                faults += arrays.feature_faults(name, found[name], reading.kind)
            found[name] = reading.features(found[name])
    faults += difference_faults(found, [f"x{end}" for end in parts])
    if group is not None:
        faults += _group_faults(found, group, parts)
    if not faults:
        classify = task.name == CLASSIFICATION
        faults += (_class_faults if classify else _width_faults)(found, parts)
    if faults:
        raise InputError(f"{told_as}: {'; '.join(faults)}")
    # Numbers of a program stay as they are; a file may be older than the kinds.
    numbers = config.name == "arrays" and reading is not None and reading.kind == "numbers"
    splits = {end: _split(found, end, group, task, channel=not numbers) for end in parts}
    train, test = splits[""], splits.get("_test")
    if test is None:
        train, test = split_off_test(train, config.test_fraction, config.split_seed)
    names = labels or _names(found["y"], task)
    return Source(
        config.name, train, test, tuple(names),
        validation=splits.get("_val"), digest=digest, arrays=reading,
        notes=[(logging.INFO, printable(f"{told_as}: {line}")) for line in lines],
    )  # fmt: skip


def difference_faults(found: Mapping[str, NDArray[Any]], names: Sequence[str]) -> list[str]:
    """The faults of samples of other types or shapes than the first ones, of the training."""
    faults, (first, *others) = [], names
    x = found[first]
    for name in others:
        other = found[name]
        if x.dtype != other.dtype:
            faults.append(
                f"{first} is of {x.dtype}, {name} of {other.dtype}; make their types equal"
            )
        if x.shape[1:] != other.shape[1:]:
            shapes = f"{first} is {x.shape}, {name} {other.shape}"
            faults.append(f"{shapes}; samples of both must have the same shape")
    return faults


def _pair_faults(found: Mapping[str, NDArray[Any]]) -> list[str]:
    faults = ["has no array y, the label of each row of x"] if "y" not in found else []
    for end in filter(None, PARTS):
        for name, other in ((f"x{end}", f"y{end}"), (f"y{end}", f"x{end}")):
            if name in found and other not in found:
                faults.append(
                    f"has {name}, but no {other}; add {other}, or remove {name} to draw the "
                    f"{PARTS[end]} set from x"
                )
    return faults


def _class_faults(found: Mapping[str, NDArray[Any]], parts: Sequence[str]) -> list[str]:
    classes = np.unique(found["y"])
    if len(classes) < 2:
        return [f"y has the one class {classes[0]}, must have two or more"]
    missing = np.setdiff1d(np.arange(len(classes)), classes)
    if missing.size:
        return [
            f"y has {len(classes)} classes from {classes[0]} to {classes[-1]}, but no class "
            f"{missing[0]}; they must be 0, 1, … {len(classes) - 1}: write y = "
            "numpy.unique(y, return_inverse=True)[1]"
        ]
    for name in [f"y{end}" for end in parts[1:]]:
        strange = found[name][~np.isin(found[name], classes)]
        if strange.size:
            return [f"{name} has the class {strange[0]}, y has only 0 to {classes[-1]}"]
    return []


def _width_faults(found: Mapping[str, NDArray[Any]], parts: Sequence[str]) -> list[str]:
    return [
        f"y{end} is {found[f'y{end}'].shape}, y {found['y'].shape}; both must have as many columns"
        for end in parts[1:]
        if found[f"y{end}"].shape[1:] != found["y"].shape[1:]
    ]


def _names(y: NDArray[Any], task: schema.Task) -> list[str]:
    """Of classes their numbers; of the columns of y: y, or y0, y1, …"""
    if task.name == CLASSIFICATION:
        return [str(number) for number in range(int(y.max()) + 1)]
    width = y[:1].size
    return ["y"] if width == 1 else [f"y{number}" for number in range(width)]


def _group_faults(found: Mapping[str, NDArray[Any]], group: str, parts: Sequence[str]) -> list[str]:
    """The faults of the arrays that data.group names."""
    known = {}
    for end in parts:
        name, x = f"{group}{end}", f"x{end}"
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
        known[name] = set(map(str, array.tolist()))
    return [
        f"data.group={group}: the group {min(shared)[:80]!r} is in {one} and in {other}; move "
        "its samples into one of the two sets"
        for one, other in combinations(known, 2)
        if (shared := known[one] & known[other])
    ]


def _split(
    found: Mapping[str, NDArray[Any]],
    end: str,
    group: str | None,
    task: schema.Task,
    *,
    channel: bool,
) -> Split:
    """`channel`: whether samples (H, W) get one."""
    features = torch.from_numpy(np.ascontiguousarray(found[f"x{end}"]))
    if features.ndim == 3 and channel:
        features = features.unsqueeze(1)
    groups = None
    if group is not None:
        groups = grouped(group, [*map(str, found[f"{group}{end}"].tolist())])
    y, w = found[f"y{end}"], found.get(f"w{end}")
    weights = None if w is None else torch.from_numpy(w.astype(np.float32))
    if task.name == CLASSIFICATION:
        return Split(features, torch.from_numpy(y.astype(np.int64)), groups, weights)
    labels = torch.from_numpy(arrays.columns_of(y))
    labels = labels.float() if task.name == MULTILABEL else labels
    return Split(features, labels, groups, weights)
