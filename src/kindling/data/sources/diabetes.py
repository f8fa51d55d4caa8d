"""The progression of diabetes, a regression that comes with scikit-learn."""

import torch

from kindling.config import schema
from kindling.data.sources.digits import every_fifth_held_out, packaged
from kindling.data.sources.source import Description, Source, Split


def open_source(_config: schema.Diabetes, _task: schema.Task) -> Source:
    """442 patients: features (N, 10), of age, sex, body mass, blood pressure and six blood serum
    measurements, standardised over all patients; labels (N, 1). Every fifth patient belongs to the
    test set."""
    rows, labels = packaged("diabetes_data_raw"), packaged("diabetes_target")
    features = torch.from_numpy((rows - rows.mean(0)) / rows.std(0)).float()
    everything = Split(features, torch.from_numpy(labels)[:, None])
    return every_fifth_held_out("diabetes", everything, ("progression",))


def describe(_config: schema.Diabetes, _task: schema.Task) -> Description:
    return Description((10,), 1)
