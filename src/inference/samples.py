"""What a trained model takes: pictures, rows of tables and arrays as its features."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from src.config import schema
from src.data.pictures import read_picture, resize
from src.data.tables import Table
from src.inference.drawings import LEAST_FIELD, scale_drawing
from src.inference.inputs import WHOLE_PICTURES, Picture, Samples
from src.runs.loading import Trained
from src.system.errors import InputError
from src.system.terminal import progress


def takes_whole_pictures(trained: Trained) -> bool:
    """Whether pictures are resized as they are. For other models, the drawing is found and
    centred."""
    return trained.data in WHOLE_PICTURES


def picture_shape(trained: Trained) -> tuple[int, int]:
    """(H, W) of the pictures that a model takes. Raises InputError when it takes none."""
    shape = _picture_shape(trained)
    if shape is None:
        takes = "rows of a table" if trained.columns else f"features of shape {trained.shape}"
        raise InputError(
            f"{trained.checkpoint}: this model was trained on data={trained.data}; it takes "
            f"{takes}, not pictures; {_instead(trained)}"
        )
    return shape


def _picture_shape(trained: Trained) -> tuple[int, int] | None:
    if takes_whole_pictures(trained):
        return trained.shape[1], trained.shape[2]
    sizes = trained.shape[1:] if len(trained.shape) == 3 else trained.shape
    grey = math.prod(sizes) == math.prod(trained.shape)  # one channel
    if len(sizes) != 2 or not grey or min(sizes) < LEAST_FIELD:
        return None
    return sizes[0], sizes[1]


def pixels_of(trained: Trained, pictures: Sequence[Picture]) -> NDArray[np.uint8]:
    """(N, channels, H, W) of whole pictures, (N, H, W) of drawings. Raises InputError as
    `picture_shape`."""
    shape, shown = picture_shape(trained), progress(pictures, "pictures read")
    if takes_whole_pictures(trained):
        return np.stack([resize(read_picture(p.path), shape, trained.shape[0]) for p in shown])
    return np.stack([scale_drawing(picture.drawing, shape).pixels for picture in shown])


def samples_of(trained: Trained, item: Table | Samples) -> Samples:
    """The features of the rows, and their classes if the table or archive has them. Raises
    InputError for a table when the model takes none, for other shapes, and for classes that the
    model does not know."""
    samples = _rows_of(trained, item) if isinstance(item, Table) else item
    labels = samples.labels
    faults = shape_faults(trained, "x", samples.features)
    if faults:
        raise InputError(f"{samples.path}: {faults[0]}")
    if labels is not None and (labels.min() < 0 or labels.max() >= trained.classes):
        raise InputError(
            f"{samples.path}: y goes from {labels.min()} to {labels.max()}, must be from 0 to "
            f"{trained.classes - 1}"
        )
    return samples


def _rows_of(trained: Trained, table: Table) -> Samples:
    section, columns = trained.config.data, trained.columns
    if columns is None or not isinstance(section, schema.Csv):
        raise InputError(
            f"{table.path}: {trained.checkpoint} was trained on data={trained.data}, not on a "
            f"table; {_instead(trained)}"
        )
    features = columns.features(table)
    labels = None
    if section.target in table.names:
        targets = table.texts(section.target, "class")
        unknown = sorted(set(targets) - set(trained.labels))
        if unknown:
            raise InputError(
                f"{table.path}: column {section.target} has the class {unknown[0][:80]!r}, which "
                f"{trained.checkpoint} does not know; leave the rows out, or to predict, the column"
            )
        labels = np.array([trained.labels.index(target) for target in targets])
    return Samples(table.path, features, labels)


def shape_faults(trained: Trained, name: str, features: NDArray[Any]) -> list[str]:
    shape = features.shape[1:]
    if trained.shape in (shape, (1, *shape)):
        return []
    return [
        f"{name} is {features.shape}, but {trained.checkpoint} takes {_expected_shape(trained)}"
    ]


def _instead(trained: Trained) -> str:
    """What to name as the input."""
    if trained.columns is not None:
        names = ", ".join(column.name for column in trained.columns.columns)
        return f"name a .csv file with the columns {names[:200]}"
    pictures = "pictures, or " if _picture_shape(trained) else ""
    return f"name {pictures}an .npz file with x of {_expected_shape(trained)}"


def _expected_shape(trained: Trained) -> str:
    return f"(N, {', '.join(map(str, trained.shape))})"
