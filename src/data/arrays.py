"""Reads and checks arrays in .npz files. Imports no torch, and unpickles nothing."""

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from src.system.errors import InputError, parsing
from src.system.files import MIB, open_regular

WRITTEN_BY = "write it by numpy.savez(FILE, x=SAMPLES, y=LABELS)"


def read_arrays(path: Path, names: Sequence[str], limit: int) -> dict[str, NDArray[Any]]:
    """The named arrays that the file has; x is always one of them. Raises InputError when the file
    is not a .npz file, unpacks to more than `limit` bytes, has no x, or has arrays of objects."""
    with parsing(f"{path}: cannot be read as .npz", f"; {WRITTEN_BY}"), open_regular(path) as file:
        with zipfile.ZipFile(file) as archive:
            records = archive.infolist()
        kinds = {record.compress_type for record in records}
        if not kinds <= {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
            raise ValueError("it is compressed in a way that NumPy never uses")
        if sum(record.file_size for record in records) > limit:
            raise InputError(
                f"{path}: unpacks to more than {limit // MIB:,} MiB; split it into several files"
            )
        file.seek(0)
        with np.load(file, allow_pickle=False) as content:
            present = list(content)
            arrays = {name: content[name] for name in names if name in present}
    if not isinstance(arrays.get("x"), np.ndarray):
        raise InputError(
            f"{path}: has no array x, it has {', '.join(present)[:100] or 'none'}; {WRITTEN_BY}"
        )
    return arrays


def as_float32(x: NDArray[Any]) -> NDArray[Any]:
    """Converts floats to float32, too large ones to infinity; leaves other types unchanged."""
    if x.dtype.kind != "f":
        return x
    with np.errstate(over="ignore"):
        return x.astype(np.float32)


def feature_faults(name: str, x: NDArray[Any]) -> list[str]:
    """The faults of samples (N, ...), uint8 or float32. Float pictures must lie in [0, 1]."""
    if x.dtype != np.uint8 and x.dtype.kind != "f":
        return [f"{name} is of {x.dtype}, must be uint8 or floats, of pictures from 0 to 1"]
    if x.ndim < 2 or x.size == 0:
        return [f"{name} is {x.shape}, must be (N, ...) with a sample in each of N rows"]
    if x.dtype == np.uint8:
        return []
    wrong = ~np.isfinite(x).all(axis=tuple(range(1, x.ndim)))
    if wrong.any():
        allowed = "finite" if x.ndim == 2 else "from 0 to 1"
        return [f"{name}[{int(wrong.argmax())}] has NaN or infinite values, must be {allowed}"]
    if x.ndim > 2 and (x.min() < 0 or x.max() > 1):
        return [
            f"{name} goes from {x.min():g} to {x.max():g}, floats of pictures must be from 0 to 1; "
            f"scale them, or make {name} (N, values)"
        ]
    return []


def label_faults(name: str, y: Any, samples: int) -> list[str]:
    """The faults of labels, which must be integers (samples,). None (no labels) has no fault."""
    if y is None:
        return []
    if not isinstance(y, np.ndarray) or y.dtype.kind not in "iu":
        dtype = getattr(y, "dtype", type(y).__name__)
        return [f"{name} is of {dtype}, must be whole numbers"]
    if y.shape != (samples,):
        return [f"{name} is {y.shape}, must be ({samples},), a label for each row of its samples"]
    return []
