"""The user's own labelled samples as the test set of a trained model: a table, an archive of
arrays, or a folder of pictures for each class.

All samples are tested, and are read as `python -m src.predict` reads them.
"""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from src.data.folders import labelled_pictures
from src.data.sources.source import Source, Split
from src.data.tables import read_table
from src.inference.inputs import Picture, Samples, Unread, read_inputs, read_samples
from src.inference.samples import pixels_of, samples_of, takes_whole_pictures
from src.runs.loading import Trained
from src.system.errors import InputError, all_at_once


def labelled_source(trained: Trained, path: Path) -> Source:
    """A source whose test set is all samples of `path`, which `require_labelled` has checked, with
    the classes of the model. `train` is the same set, and must not be used.

    Raises InputError for damaged files, samples without a class, and classes and shapes that the
    model does not know.
    """
    if path.is_dir():
        features, labels = _of_folder(trained, path)
    else:
        table = path.suffix.lower() == ".csv"
        samples = samples_of(trained, read_table(path) if table else read_samples(path))
        features, labels = samples.features, _labels_of(trained, samples)
    inputs = torch.from_numpy(np.ascontiguousarray(features)).view(-1, *trained.shape)
    test = Split(inputs, torch.from_numpy(labels.astype(np.int64)))
    return Source(str(path), test, test, trained.labels)


def _labels_of(trained: Trained, samples: Samples) -> NDArray[np.int64]:
    if samples.labels is not None:
        return samples.labels
    target = getattr(trained.config.data, "target", None)
    what = f"no column {target}" if samples.path.suffix.lower() == ".csv" else "no array y"
    raise InputError(f"{samples.path}: has {what}, the class of each sample; add it")


def _of_folder(trained: Trained, folder: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    paths, classes = labelled_pictures(folder, trained.labels)
    inputs = read_inputs(paths)
    faults = [item.fault for item in inputs if isinstance(item, Unread)]
    pictures = [item for item in inputs if isinstance(item, Picture)]
    if not takes_whole_pictures(trained):
        faults += [f"{item.path}: is blank; remove it" for item in pictures if item.drawing.blank]
    if faults:
        raise all_at_once(faults, "nothing was tested")
    return pixels_of(trained, pictures), np.array(classes, np.int64)
