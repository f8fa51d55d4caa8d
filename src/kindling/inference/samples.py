"""What a trained model takes: pictures, rows of tables and arrays as its features; with classes, as
a test set. And the data set that it was trained on, opened again."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kindling.config import schema
from kindling.config.measures import CLASSIFICATION
from kindling.config.written import place_of_class
from kindling.data.arrays import as_float32, columns_of, feature_faults, label_faults
from kindling.data.folders import digest_of, labelled_pictures
from kindling.data.paths import has_data
from kindling.data.sources.catalogue import open_source
from kindling.data.sources.csv import numbers_of
from kindling.data.sources.folds import training_and_validation
from kindling.data.sources.source import Source, Split
from kindling.data.tables.columns import Columns
from kindling.data.tables.reading import is_table, read_table
from kindling.data.tables.table import Table
from kindling.inference.inputs import Samples, Unread, read_inputs, read_samples, require_labelled
from kindling.inference.pictures import Picture, reader_of
from kindling.models.committee import Committee
from kindling.records.config_files import require_same_digest
from kindling.records.loading import Trained
from kindling.system.errors import InputError, all_at_once
from kindling.system.installation import as_command
from kindling.system.resources import require_memory
from kindling.system.terminal import progress


def picture_shape(trained: Trained) -> tuple[int, int] | None:
    """(H, W) of the pictures that a model takes; None if it takes none."""
    numbers = trained.arrays is not None and trained.arrays.kind == "numbers"
    if numbers or trained.config.data.pictures is None:  # pixels have another scale than numbers
        return None
    return reader_of(trained.config.data.pictures).picture_shape(trained.shape)


def pixels_of(trained: Trained, pictures: Sequence[Picture]) -> NDArray[np.uint8]:
    """The samples of pictures, (N, *shape), grey ones perhaps (N, H, W). Raises InputError when the
    model takes no pictures."""
    if picture_shape(trained) is None:
        takes = "rows of a table" if trained.columns else f"features of shape {trained.shape}"
        raise InputError(
            f"{trained.checkpoint}: this model was trained on data={trained.data}; it takes "
            f"{takes}, not pictures; {_instead(trained)}"
        )
    reader = reader_of(trained.config.data.pictures)
    shown = progress(pictures, "pictures read")
    return np.stack([reader.features(picture, trained.shape) for picture in shown])


def samples_of(trained: Trained, item: Table | Samples) -> Samples:
    """The features of the rows, and their classes if the table or archive has them. Raises
    InputError for a table when the model takes none, for other shapes, and for classes that the
    model does not know."""
    if isinstance(item, Table):
        return _rows_of(trained, item)
    labels = item.labels
    features = features_of(trained, f"{item.path}: x", item.features)
    if labels is not None:
        labels = labels_of(trained, f"{item.path}: y", labels, len(features))
    return replace(item, features=features, labels=labels)


def labels_of(trained: Trained, name: str, y: NDArray[Any], samples: int) -> NDArray[Any]:
    """The labels of samples: classes (N,), or numbers (N, outputs) in their unit. Raises InputError
    for others; `name` is for the message."""
    task = trained.config.task.name
    faults = label_faults(name, y, samples, task)
    if faults:
        raise InputError(faults[0])
    if task != CLASSIFICATION:
        if y[:1].size != trained.classes:
            listed = ", ".join(trained.labels)[:200]
            raise InputError(f"{name} is {y.shape}, must have a column for each of {listed}")
        return columns_of(y)
    if y.min() < 0 or y.max() >= trained.classes:
        raise InputError(
            f"{name} goes from {y.min()} to {y.max()}, must be from 0 to {trained.classes - 1}"
        )
    return y


def features_of(trained: Trained, name: str, x: NDArray[Any]) -> NDArray[Any]:
    """The features of samples (N, ...), read as the training samples were, uint8 or float32. Raises
    InputError for other types, ranges and shapes; `name` is for the message."""
    x, reading = as_float32(x), trained.arrays
    faults = feature_faults(name, x, None if reading is None else reading.kind)
    if faults:
        raise InputError(faults[0])
    return _fitting(trained, name, x if reading is None else reading.features(x, trained.shape))


def _fitting(trained: Trained, name: str, features: NDArray[Any]) -> NDArray[Any]:
    shape = features.shape[1:]
    if trained.shape not in (shape, (1, *shape)):
        raise InputError(
            f"{name} is {features.shape}, but {trained.checkpoint} takes {_expected_shape(trained)}"
        )
    return features


def _rows_of(trained: Trained, table: Table) -> Samples:
    section, columns = trained.config.data, trained.columns
    if columns is None or not isinstance(section, schema.Csv):
        raise InputError(
            f"{table.path}: {trained.checkpoint} was trained on data={trained.data}, not on a "
            f"table; {_instead(trained)}"
        )
    features = _fitting(trained, f"{table.path}: x", columns.features(table))
    labels, task = None, trained.config.task
    known = set(section.targets) & set(table.names)
    if known and task.name != CLASSIFICATION:
        table.require(section.targets)
        labels = numbers_of(table, section, task, columns.marks)
    elif known:
        (target,) = section.targets
        targets = table.texts(target, "class", section)
        place_of = {target: place_of_class(trained.labels, target) for target in set(targets)}
        unknown = sorted(target for target, place in place_of.items() if place is None)
        if unknown:
            raise InputError(
                f"{table.path}: column {target} has the class {unknown[0][:80]!r}, which "
                f"{trained.checkpoint} does not know; leave the rows out, or to predict, the column"
            )
        labels = np.array([place_of[target] for target in targets])
    return Samples(table.path, features, labels, table.notes, table.lines)


def _instead(trained: Trained) -> str:
    """What to name as the input."""
    if trained.columns is not None:
        names = ", ".join(trained.columns.names)
        return f"name a .csv file with the columns {names[:200]}"
    pictures = "pictures, or " if picture_shape(trained) else ""
    return f"name {pictures}an .npz file with x of {_expected_shape(trained)}"


def _expected_shape(trained: Trained) -> str:
    return f"(N, {', '.join(map(str, trained.shape))})"


def as_split(trained: Trained, features: NDArray[Any], labels: NDArray[Any] | None = None) -> Split:
    """Features (N, ...) that fit the model, as (N, *shape); without labels, of class 0."""
    # PyTorch warns of arrays that are read only, as those that joblib shares among processes.
    writable = np.require(features, requirements=("C", "W"))
    inputs = torch.from_numpy(writable).view(-1, *trained.shape)
    if labels is None or trained.config.task.name == CLASSIFICATION:
        if labels is None:
            return Split(inputs, torch.zeros(len(inputs), dtype=torch.int64))
        return Split(inputs, torch.from_numpy(labels.astype(np.int64)))
    numbers = torch.from_numpy(labels)
    own = trained.targets
    return Split(inputs, numbers.float() if own is None else own.standardised(numbers))


# --- test sets -----------------------------------------------------------------------------------


def source_of(trained: Trained, data: str | None = None) -> Source:
    """Opens the data set or the user's own samples that `data` names; by default the data set that
    the model was trained on, which is the fallback if the configured data set was not available for
    the training. Of the very file or folder that the model was trained on, `test` is the part that
    was held out.

    Raises InputError when the data cannot be loaded, and when the user's own files have changed
    since the training: test samples could then be former training samples.
    """
    path = None if data is None else require_labelled(data)
    if path is not None and (trained.digest is None or digest_of(path) != trained.digest):
        return labelled_source(trained, path)
    if trained.lessons and trained.columns is not None and (data is None or path is not None):
        return _of_lessons(trained, trained.columns, data, path)
    return _opened(trained, data, path)


def _opened(trained: Trained, data: str | None, own: Path | None) -> Source:
    """The data set that `data` names. `own` is the path of what the model was trained on, perhaps
    at another place."""
    section: schema.Data = trained.config.data
    if not has_data(section):  # a stranger's file must not choose where to download
        section = section.model_copy(update={"root": None})
    if own is not None:
        section = section.model_copy(update={"path": str(own)})
    elif data is not None or section.name != trained.data:
        from kindling.config.compose import compose  # imports Hydra, which is seldom needed here

        section = compose(f"data={data or trained.data}").data
    if isinstance(section, schema.Arrays):
        raise InputError(
            f"{trained.checkpoint}: was trained on arrays of a Python program, which no file has; "
            f"there, call kindling.load(…).score(x, y); {as_command('evaluate')} takes others by "
            "--data FILE.npz"
        )
    path = getattr(section, "path", None)
    if path is not None and not Path(path).exists():
        raise InputError(
            f"{trained.checkpoint}: was trained on data.path={path}, which is not "
            f"{'there' if Path(path).is_absolute() else f'in {Path.cwd()}'}; put it back; "
            f"{as_command('evaluate')} also takes it from another place, by --data PATH"
        )
    task = trained.config.task
    if task.name not in section.tasks:
        raise InputError(
            f"--data {data}: has labels for {' and '.join(section.tasks)}, and "
            f"{trained.checkpoint} was trained with task={task.name}; name other data"
        )
    source = open_source(section, task)
    if own is not None:
        return replace(source, name=f"the held-out part of {own}")
    if data is not None:
        return _in_classes_of(trained, source)
    require_same_content(trained, source)
    return source


def require_same_content(trained: Trained, source: Source) -> None:
    """Raises InputError if the user's own files have changed since the training."""
    path = getattr(trained.config.data, "path", None)
    require_same_digest(trained.checkpoint, path, trained.digest, source.digest)


def _of_lessons(trained: Trained, columns: Columns, data: str | None, own: Path | None) -> Source:
    """One data set of those of a table whose training rows differ, as of several folds, and with
    them what they taught: with the columns of all, and numbers standardised as in the first. Only
    one of them is in memory at a time. Raises InputError as `_opened`, and if memory is short."""
    first, *others = [trained.members[numbers[0]] for numbers in trained.lessons]
    source = _opened(first, data, own)
    require_memory(
        f"{trained.checkpoint}: the features of its members need",
        4 * (len(source.train) + len(source.test)) * columns.width,
        "one of its members instead",
    )
    parts = {
        name: replace(split, features=torch.empty(len(split), columns.width))
        for name, split in (("train", source.train), ("test", source.test))
    }
    for member in (first, *others):
        each = source if member is first else _opened(member, data, own)
        assert member.columns is not None
        places = torch.tensor(columns.features_at(columns.places_of(member.columns.columns)))
        for name, part in parts.items():
            part.features[:, places] = getattr(each, name).features
    return replace(source, train=parts["train"], test=parts["test"], columns=columns)


def _in_classes_of(trained: Trained, source: Source) -> Source:
    """The source with the classes of the model, if the model knows all classes of the source, or
    with its numbers standardised as those of the model."""
    labels, own, other = trained.labels, trained.targets, source.targets
    if own is not None and other is not None and labels == source.labels:
        change = source.with_labels(lambda numbers: own.standardised(other.restored(numbers)))
        return replace(change, targets=own)
    if trained.config.task.name != CLASSIFICATION:
        return source
    if source.shape != trained.shape or not set(source.labels) <= set(labels):
        return source
    places = torch.tensor([labels.index(label) for label in source.labels])
    return replace(source.with_labels(lambda numbers: places[numbers]), labels=labels)


def validation_of(trained: Trained, source: Source) -> Split:
    """The validation set of the training of a model: that of its data set, or drawn from it."""
    section = trained.config.data
    return training_and_validation(source.train, section, source.labels, source.validation)[1]


def held_out_parts(trained: Trained, source: Source) -> list[tuple[Trained, Split]]:
    """The validation set of the training with the model that answers for its samples. Of a
    committee of folds, the samples of each fold, with a committee of those members that were not
    trained on them; members that were trained on all rows answer for none."""
    if not trained.lessons:
        return [(trained, validation_of(trained, source))]
    committee, found = trained.model, list[tuple[Trained, Split]]()
    assert isinstance(committee, Committee)
    for numbers in trained.lessons:
        members = [trained.members[n] for n in numbers]
        if not members[0].config.data.holds_out_validation:
            continue
        votes, adapters = zip(
            *((committee.votes[n], committee.adapters[n]) for n in numbers), strict=True
        )
        model = Committee([each.model for each in members], votes, trained.task, adapters).eval()
        some = replace(trained, config=members[0].config, model=model, members=tuple(members))
        found.append((some, validation_of(some, source)))
    return found


def labelled_source(trained: Trained, path: Path) -> Source:
    """A source whose test set is all samples of `path`, a table, an archive of arrays, or a folder
    of pictures for each class, which `require_labelled` has checked; with the classes of the model.
    `train` is the same set, and must not be used.

    Raises InputError for damaged files, samples without a class, and classes and shapes that the
    model does not know.
    """
    task = trained.config.task.name
    if path.is_dir() and task != CLASSIFICATION:
        raise InputError(
            f"{path}: has a class for each folder, and {trained.checkpoint} was trained with "
            f"task={task}; name a .csv or .npz file"
        )
    if path.is_dir():
        samples = _of_folder(trained, path)
    else:
        of_rows = is_table(path)
        samples = samples_of(
            trained, read_table(path) if of_rows else read_samples(path, None, any_arrays=True)
        )
        if samples.labels is None:
            targets = getattr(trained.config.data, "targets", [])
            what = f"no column {', '.join(targets)}" if of_rows else "no array y"
            each = "class" if task == CLASSIFICATION else "label"
            raise InputError(f"{path}: has {what}, the {each} of each sample; add it")
    test = as_split(trained, samples.features, samples.labels)
    return Source(
        str(path), test, test, trained.labels, targets=trained.targets, notes=samples.notes
    )


def _of_folder(trained: Trained, folder: Path) -> Samples:
    paths, classes = labelled_pictures(folder, trained.labels)
    inputs = read_inputs(paths, pictures=trained.config.data.pictures)
    faults = [item.fault for item in inputs if isinstance(item, Unread)]
    pictures = [item for item in inputs if isinstance(item, Picture)]
    faults += [f"{item.path}: is blank; remove it" for item in pictures if item.drawings == 0]
    if faults:
        raise all_at_once(faults, "nothing was tested")
    return Samples(folder, pixels_of(trained, pictures), np.array(classes))
