"""The user's own arrays in a .npz file.

x (N, ...) has the samples, uint8 or floats, and y (N,) the classes, whole numbers from 0 without a
gap. x_test and y_test are optional. src/data/arrays.py reads the file and checks the arrays.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from src.config import schema
from src.data.arrays import as_float32, feature_faults, label_faults, read_arrays
from src.data.sources.source import COPIES, Source, Split, with_test
from src.system.errors import InputError
from src.system.files import sha256
from src.system.resources import free_memory


def open_source(config: schema.Npz) -> Source:
    """Pictures (N, H, W) get a channel: (N, 1, H, W). Floats become float32. Raises InputError with
    all faults of the arrays at once."""
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
            f"y has {len(classes)} classes from {classes[0]} to {classes[-1]}, but no class "
            f"{missing[0]}; they must be 0, 1, … {len(classes) - 1}: write y = "
            "numpy.unique(y, return_inverse=True)[1]"
        ]
    if y_test is not None and not np.isin(y_test, classes).all():
        strange = y_test[~np.isin(y_test, classes)][0]
        return [f"y_test has the class {strange}, y has only 0 to {classes[-1]}"]
    return []


def _split(x: NDArray[Any], y: NDArray[Any]) -> Split:
    features = torch.from_numpy(np.ascontiguousarray(x))
    if features.ndim == 3:
        features = features.unsqueeze(1)
    return Split(features, torch.from_numpy(y.astype(np.int64)))
