"""Reads and checks arrays in .npz files. Imports no torch, and unpickles nothing."""

import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from kindling.config.measures import CLASSIFICATION, MULTILABEL
from kindling.system.errors import InputError, parsing
from kindling.system.files import open_regular
from kindling.system.units import MIB

WRITTEN_BY = "write it by numpy.savez(FILE, x=SAMPLES, y=LABELS)"


CHANNELS = (1, 3, 4)  # of pictures: grey, colour, colour with transparency
# Arrays that other programs would train with, or that look like a part of the data.
MEANT = re.compile(r"(?i)(sample|class|instance)?_?(weights?|w)|[xyw]([_-].*)?")
LARGE, SMALL = 10, 0.1  # of the root mean squares of features: others are not scaled


class ArrayReading(BaseModel):
    """How arrays (N, ...) become features. It follows from the training samples, and holds for all
    others: a checkpoint has it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    kind: Literal["pictures", "numbers"]  # pictures: bytes, or floats from 0 to 1
    channels_last: bool  # arrays are (N, H, W, C), features (N, C, H, W)

    @classmethod
    def guess(cls, x: NDArray[Any], kind: str) -> Self:
        """`kind` is the setting data.kind. With `auto`, bytes are pictures, and so are floats from
        0 to 1 of more than one dimension; all others are numbers."""
        if kind == "auto":
            pictures = x.dtype == np.uint8 or (
                x.dtype.kind == "f" and x.ndim > 2 and x.min() >= 0 and x.max() <= 1
            )
        else:
            pictures = kind == "pictures"
        last = kind != "numbers" and x.ndim == 4 and x.shape[-1] in CHANNELS
        return cls(
            kind="pictures" if pictures else "numbers",
            channels_last=bool(last and x.shape[1] not in CHANNELS),
        )

    def features(self, x: NDArray[Any], shape: Sequence[int] | None = None) -> NDArray[Any]:
        """Samples without faults as features: uint8 for bytes of pictures, else float32. Samples
        that have the `shape` of features already keep it."""
        if self.channels_last and x.ndim == 4 and x.shape[1:] != shape:
            x = np.moveaxis(x, -1, 1)
        return x if self.kind == "pictures" else as_float32(x, always=True)

    def guesses(self, x: NDArray[Any]) -> list[str]:
        """A line for each thing that was guessed."""
        lines, shape = [], f"x is {x.dtype} {x.shape}"
        if self.channels_last:
            moved = f"({x.shape[3]}, {x.shape[1]}, {x.shape[2]})"
            lines.append(f"{shape}: read as pictures with the channels last, made {moved}")
        if self.kind == "pictures" and x.ndim == 2:
            lines.append(
                f"{shape}: read as bytes of pictures, divided by 255; for other numbers type "
                "data.kind=numbers"
            )
        if self.kind == "numbers" and x.dtype.kind != "f":
            lines.append(
                f"{shape}: read as quantities; if they are places in a list, such as tokens or "
                "categories, write them one-hot"
            )
        elif self.kind == "numbers" and x.ndim > 2:
            lines.append(
                f"x goes from {x.min():g} to {x.max():g}: read as numbers, because floats of "
                "pictures go from 0 to 1"
            )
        return lines


def unscaled(features: NDArray[Any]) -> str:
    """A line about numbers (N, ...), float32, that are far from 1; "" for others."""
    values = features.reshape(len(features), -1)
    sizes = np.sqrt(np.einsum("nf,nf->f", values, values, dtype=np.float64) / len(values))
    if SMALL <= sizes.max() <= LARGE:
        return ""
    return (
        f"x is trained on as it is, though its features are about {sizes.min():.3g} to "
        f"{sizes.max():.3g} in size; networks learn best from features about 1 in size: write "
        "(x - x.mean(0)) / x.std(0), or train on a table (data=csv), which is scaled"
    )


def read_arrays(
    path: Path, names: Sequence[str], limit: int
) -> tuple[dict[str, NDArray[Any]], list[str]]:
    """The named arrays that the file has, of which x is always one, and the names of all others.
    x_train is read as x if there is no x, as other libraries name it, and so is y_train. Raises
    InputError when the file is not a .npz file, unpacks to more than `limit` bytes, has no x, or
    has named arrays of objects."""
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
            stored = {name: name if name in present else f"{name}_train" for name in names}
            arrays = {name: content[its] for name, its in stored.items() if its in present}
    if not isinstance(arrays.get("x"), np.ndarray):
        hint = "did you mean x? " if "X" in present else ""
        raise InputError(
            f"{path}: has no array x, it has {', '.join(present)[:100] or 'none'}; {hint}"
            f"{WRITTEN_BY}"
        )
    used = {stored[name] for name in arrays}
    return arrays, [name for name in present if name not in used]


def unused_line(names: Sequence[str]) -> str:
    """A line about the arrays of a file that are not used, which are one or more."""
    return f"arrays that are not used: {', '.join(names)[:200]}"


def as_float32(x: NDArray[Any], *, always: bool = False) -> NDArray[Any]:
    """Converts floats, and `always` all numbers, to float32, too large ones to infinity; leaves
    other types unchanged, and copies nothing that is float32."""
    if x.dtype.kind not in ("biuf" if always else "f"):
        return x
    with np.errstate(over="ignore"):
        return x.astype(np.float32, copy=False)


def feature_faults(name: str, x: NDArray[Any], kind: str | None = None) -> list[str]:
    """The faults of samples (N, ...), of floats in float32. Of pictures, and with no `kind` of
    samples with more than one dimension, floats must lie in [0, 1]; `numbers` may be of any type,
    `auto` may be either."""
    numbers = kind in ("numbers", "auto")
    if x.dtype.kind not in "biuf" if numbers else x.dtype != np.uint8 and x.dtype.kind != "f":
        allowed = "numbers" if numbers else "uint8 or floats, of pictures from 0 to 1"
        return [f"{name} is of {x.dtype}, must be {allowed}"]
    if x.ndim < 2 or x.size == 0:
        return [f"{name} is {x.shape}, must be (N, ...) with a sample in each of N rows"]
    if x.dtype.kind != "f":
        return []
    pictures = kind == "pictures" or (kind is None and x.ndim > 2)
    with np.errstate(over="ignore", invalid="ignore"):
        total = x.sum()  # finite only if all values are, and quick
    if not np.isfinite(total):
        wrong = ~np.isfinite(x).all(axis=tuple(range(1, x.ndim)))
        if wrong.any():
            allowed = "from 0 to 1" if pictures else "finite"
            return [f"{name}[{int(wrong.argmax())}] has NaN or infinite values, must be {allowed}"]
    if pictures and (x.min() < 0 or x.max() > 1):
        return [
            f"{name} goes from {x.min():g} to {x.max():g}, floats of pictures must be from 0 to 1; "
            "scale them as pictures are, or train on them with data.kind=numbers"
        ]
    return []


def label_faults(name: str, y: Any, samples: int, task: str = CLASSIFICATION) -> list[str]:
    """The faults of labels: classes are integers (samples,), those of other tasks numbers
    (samples,) or (samples, outputs). None (no labels) has no fault."""
    if y is None:
        return []
    if task != CLASSIFICATION:
        return _number_faults(name, y, samples, task)
    if not isinstance(y, np.ndarray) or y.dtype.kind not in "iu":
        dtype = getattr(y, "dtype", type(y).__name__)
        if isinstance(y, np.ndarray) and y.dtype.kind == "f" and np.isnan(y).any():
            count = int(np.isnan(y).sum())
            return [f"{name} has {count:,} NaN of {y.size:,} values; leave these samples out"]
        cure = ""
        if isinstance(y, np.ndarray):
            places = f"numpy.unique({name}, return_inverse=True)[1]"
            cure = f"; write {name} = {f'{name}.argmax(1)' if y.ndim == 2 else places}"
            if y.dtype.kind == "f" and y.ndim == 1:
                cure += ", or to predict numbers, type task=regression"
        return [f"{name} is of {dtype}, must be whole numbers{cure}"]
    if y.shape != (samples,):
        one_hot = y.ndim == 2 and len(y) == samples and y.shape[1] > 1
        cure = f"; if it is one-hot, write {name} = {name}.argmax(1)" if one_hot else ""
        must = f"must be ({samples},), a label for each row of its samples"
        return [f"{name} is {y.shape}, {must}{cure}"]
    return []


def _number_faults(name: str, y: Any, samples: int, task: str) -> list[str]:
    zero_or_one = task == MULTILABEL
    if not isinstance(y, np.ndarray) or y.dtype.kind not in "biuf":
        dtype = getattr(y, "dtype", type(y).__name__)
        return [f"{name} is of {dtype}, must be {'0 and 1' if zero_or_one else 'numbers'}"]
    if y.ndim not in (1, 2) or len(y) != samples or not y[:1].size:
        must = f"({samples},) or ({samples}, {'labels' if zero_or_one else 'numbers'})"
        return [f"{name} is {y.shape}, must be {must}, a row for each row of its samples"]
    wrong = ~(np.isin(y, (0, 1)) if zero_or_one else np.isfinite(y))
    if not wrong.any():
        return []
    place = ", ".join(str(int(part[0])) for part in np.nonzero(wrong))
    must = "0 or 1; for numbers, type task=regression" if zero_or_one else "finite"
    return [f"{name}[{place}] is {y[wrong][0]:g}, must be {must}"]


def columns_of(y: NDArray[Any]) -> NDArray[np.float64]:
    """Numbers (N,) or (N, outputs) as (N, outputs)."""
    return y.reshape(len(y), -1).astype(np.float64)


def weight_faults(name: str, w: Any, samples: int) -> list[str]:
    """The faults of weights of samples, finite numbers (samples,) of 0 or more, not all 0 as
    float32. None has no fault."""
    if w is None:
        return []
    if not isinstance(w, np.ndarray) or w.dtype.kind not in "biuf" or w.shape != (samples,):
        shape = f"{getattr(w, 'shape', type(w).__name__)} of {getattr(w, 'dtype', 'no numbers')}"
        return [f"{name} is {shape}, must be ({samples},), a weight for each row of its samples"]
    with np.errstate(over="ignore"):
        kept = w.astype(np.float32)  # as training reads weights
    wrong = ~(np.isfinite(kept) & (kept >= 0))
    if wrong.any():
        first = int(wrong.argmax())
        return [
            f"{name}[{first}] is {w[first]:g}; a weight must be a number from 0 to "
            f"{np.finfo(np.float32).max:.1g}"
        ]
    if not kept.any():
        return [f"{name} is 0 for all samples; one weight or more must be above 0"]
    return []
