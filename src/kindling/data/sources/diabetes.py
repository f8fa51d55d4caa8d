"""The progression of diabetes, a regression that comes with scikit-learn."""

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from kindling.config import schema
from kindling.data.sources.source import Description, Source, Split


def open_source(_config: schema.Diabetes, _task: schema.Task) -> Source:
    """442 patients: features (N, 10), of age, sex, body mass, blood pressure and six blood serum
    measurements, standardised over all patients; labels (N, 1). Every fifth patient belongs to the
    test set."""
    package = find_spec("sklearn")  # its import takes as long as that of torch
    assert package is not None
    assert package.origin is not None
    folder = Path(package.origin).parent / "datasets/data"
    tables = []
    for name in ("data_raw", "target"):
        with gzip.open(folder / f"diabetes_{name}.csv.gz") as file:
            tables.append(np.loadtxt(file))
    rows, labels = tables
    features = torch.from_numpy((rows - rows.mean(0)) / rows.std(0)).float()
    everything = Split(features, torch.from_numpy(labels)[:, None])
    is_test = torch.arange(len(everything)) % 5 == 4
    names = ("progression",)
    return Source("diabetes", everything.take(~is_test), everything.take(is_test), names)


def describe(_config: schema.Diabetes, _task: schema.Task) -> Description:
    return Description((10,), 1)
