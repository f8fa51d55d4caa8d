"""What a trained model takes pictures for: the most probable class, and its runner-up."""

import csv
import io
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tabulate import tabulate

from src.config import schema
from src.data.folders import printable
from src.data.pictures import read_picture, resize
from src.data.sources.source import Split
from src.data.tables import Table
from src.inference.drawings import LEAST_FIELD, fit
from src.inference.evaluation import predict
from src.inference.inputs import Input, Picture, Request, Samples, Unread
from src.inference.likeness import Likeness, likeness_of
from src.runs.loading import Trained, open_trained
from src.system.errors import InputError, all_at_once
from src.system.files import write_durably

ROWS_SHOWN = 100
# Whose samples are whole pictures: others are resized as they are, where a digit is looked for,
# cut out and centred.
PHOTOGRAPHS = ("fashion_mnist", "kmnist", "cifar10", "cifar100", "image_folder")
COLUMNS = (
    "file", "row", "class", "probability", "runner_up", "runner_up_probability", "drawn", "label",
    "drawings", "unlikeness", "fault",
)  # fmt: skip
UNLIKE = (
    "unlike: farther from every training sample of their class than 99.5 % of the held-out samples"
)


@dataclass(frozen=True)
class Guess:
    """The two most probable classes, each with its probability."""

    best: int
    probability: float
    second: int
    second_probability: float


@dataclass(frozen=True)
class Prediction:
    """Of a picture, or of one row of an .npz or a table; or the fault of a file that has none.

    `guess` is None where nothing is drawn, `drawn` says which way a drawing was read, `drawings`
    how many stand apart. `unlikeness` is above 1 for an input unlike what the model was trained
    on, None where it was not measured.
    """

    path: Path
    row: int | None
    guess: Guess | None
    drawn: str = ""
    label: int | None = None
    drawings: int | None = None
    unlikeness: float | None = None
    fault: str = ""

    @property
    def name(self) -> str:
        """Safe to print: a file's name may hold line ends and worse."""
        return printable(str(self.path))

    @property
    def note(self) -> str:
        """What speaks against the guess, in a few words."""
        several = f"{self.drawings} drawings" if (self.drawings or 0) > 1 else ""
        unlike = "unlike" if (self.unlikeness or 0) > 1 else ""
        return ", ".join(filter(None, [several, unlike]))


@dataclass(frozen=True)
class Answer:
    """`text` is for the standard output; `notes` and `faults` are for the error output. The files
    with faults have no prediction."""

    text: str
    notes: Sequence[str]
    faults: Sequence[str]


def answer(request: Request) -> Answer:
    """The table of a request's predictions, or its CSV, which is written first where it goes to a
    file.

    Raises InputError when the run holds no model, when the model takes other input, and when no
    file has a prediction.
    """
    trained = open_trained(request.run)
    notes, likeness = list(request.left_out), None
    try:
        likeness = likeness_of(trained)
    except InputError as error:
        reason = str(error).splitlines()[0].removeprefix(f"{trained.checkpoint}: ")
        notes.append(f"not compared with what the model was trained on: {reason}")
    predictions = predict_inputs(trained, request.inputs, likeness)
    faults = [prediction.fault for prediction in predictions if prediction.fault]
    if request.csv_file == "-":
        return Answer(to_csv(predictions, trained.labels), notes, faults)
    if request.csv_file is not None:
        try:
            write_durably(Path(request.csv_file), to_csv(predictions, trained.labels))
        except OSError as error:
            raise InputError(
                f"--csv {request.csv_file}: cannot be written ({error.strerror}); name another file"
            ) from None
    table = describe(predictions, trained.labels)
    head = f"{trained.checkpoint}, trained on {trained.data}"
    return Answer(f"{head}\n\n{table}\n", notes, faults)


def predict_inputs(
    trained: Trained, inputs: Sequence[Input], likeness: Likeness | None = None
) -> list[Prediction]:
    """A prediction for each picture and each row of samples or of a table, in their order; for a
    file that cannot be read, or whose samples the model does not take, its fault.

    Raises InputError when the model takes no pictures, and when there are faults alone.
    """
    pictures = [item for item in inputs if isinstance(item, Picture)]
    of_pictures = iter(_of_pictures(trained, pictures, likeness) if pictures else [])
    predictions: list[Prediction] = []
    for item in inputs:
        try:
            if isinstance(item, Unread):
                raise InputError(item.fault)
            if isinstance(item, Picture):
                predictions.append(next(of_pictures))
            else:
                samples = _samples_of(trained, item) if isinstance(item, Table) else item
                predictions += _of_samples(trained, samples, likeness)
        except InputError as error:
            predictions.append(Prediction(item.path, None, None, fault=str(error)))
    faults = [prediction.fault for prediction in predictions if prediction.fault]
    if len(faults) == len(predictions):
        raise all_at_once(faults, "nothing was predicted")
    return predictions


def classify(trained: Trained, features: NDArray[Any]) -> list[Guess]:
    """What the model takes features (N, *shape) for, as `evaluate` computes it: uint8 from 0 to
    255, or float32 from 0 to 1. Equally probable classes come in their order.

    Raises InputError when the model's weights make no finite numbers of them.
    """
    if trained.classes < 2:
        raise InputError(f"{trained.checkpoint}: knows one class alone, there is nothing to tell")
    inputs = _tensor(trained, features)
    labels = torch.zeros(len(inputs), dtype=torch.long)
    logits = predict(trained, Split(inputs, labels)).double()
    if not logits.isfinite().all():
        raise InputError(f"{trained.checkpoint}: its weights make no finite numbers of the input")
    order = logits.sort(descending=True, stable=True).indices[:, :2]
    probabilities = logits.softmax(-1).gather(1, order)
    return [
        Guess(best, probability, second, second_probability)
        for (best, second), (probability, second_probability) in zip(
            order.tolist(), probabilities.tolist(), strict=True
        )
    ]


def picture_shape(trained: Trained) -> tuple[int, int]:
    """(H, W) of the pictures that a model takes. Raises InputError when it takes none."""
    if trained.data in PHOTOGRAPHS:
        return trained.shape[1], trained.shape[2]
    sizes = trained.shape[1:] if len(trained.shape) == 3 else trained.shape
    grey = math.prod(sizes) == math.prod(trained.shape)
    if len(sizes) != 2 or not grey or min(sizes) < LEAST_FIELD:
        raise InputError(
            f"{trained.checkpoint}: takes features {trained.shape}, it was trained on "
            f"data={trained.data}; pictures are made for models of grey ones, (1, H, W), alone. "
            f"Name an .npz file with x of {_rows(trained)} in place of pictures"
        )
    return sizes[0], sizes[1]


def _of_pictures(
    trained: Trained, pictures: Sequence[Picture], likeness: Likeness | None
) -> list[Prediction]:
    shape = picture_shape(trained)
    if trained.data in PHOTOGRAPHS:
        pixels = [resize(read_picture(p.path), shape, trained.shape[0]) for p in pictures]
        found = _compared(trained, np.stack(pixels), likeness)
        return [
            Prediction(picture.path, None, guess, unlikeness=unlikeness)
            for picture, (guess, unlikeness) in zip(pictures, found, strict=True)
        ]
    prepared = [fit(picture.drawing, shape) for picture in pictures]
    found = _compared(trained, np.stack([each.pixels for each in prepared]), likeness)
    return [
        Prediction(picture.path, None, None, "nothing", drawings=0)
        if drawing.blank
        else Prediction(
            picture.path,
            None,
            guess,
            "dark on light" if drawing.inverted else "light on dark",
            drawings=drawing.count,
            unlikeness=unlikeness,
        )
        for picture, drawing, (guess, unlikeness) in zip(pictures, prepared, found, strict=True)
    ]


def _compared(
    trained: Trained, features: NDArray[Any], likeness: Likeness | None
) -> list[tuple[Guess, float | None]]:
    """What the model takes features (N, ...) for, as `classify`, and how unlike they are."""
    guesses = classify(trained, features)
    if likeness is None:
        return [(guess, None) for guess in guesses]
    classes = torch.tensor([guess.best for guess in guesses])
    unlikeness = likeness.unlikeness(_tensor(trained, features), classes)
    return list(zip(guesses, unlikeness, strict=True))


def _tensor(trained: Trained, features: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(features)).view(-1, *trained.shape)


def _samples_of(trained: Trained, table: Table) -> Samples:
    """The rows of a table as the model was trained on such, and their classes where it has the
    column of them."""
    section, columns = trained.config.data, trained.columns
    if columns is None or not isinstance(section, schema.Csv):
        raise InputError(
            f"{table.path}: {trained.checkpoint} was trained on data={trained.data}, not on a "
            f"table; name an .npz file with x of {_rows(trained)} in its place"
        )
    features = columns.features(table)
    labels = None
    if section.target in table.names:
        targets = table.classes(section.target)
        strange = sorted(set(targets) - set(trained.labels))
        if strange:
            raise InputError(
                f"{table.path}: column {section.target} has the class {strange[0][:80]!r}, which "
                f"{trained.checkpoint} does not know; leave the column out"
            )
        labels = np.array([trained.labels.index(target) for target in targets])
    return Samples(table.path, features, labels)


def _of_samples(trained: Trained, samples: Samples, likeness: Likeness | None) -> list[Prediction]:
    features, labels = samples.features, samples.labels
    shape = features.shape[1:]
    if trained.shape not in (shape, (1, *shape)):
        raise InputError(
            f"{samples.path}: x is {features.shape}, but {trained.checkpoint} takes "
            f"{_rows(trained)}"
        )
    if labels is not None and (labels.min() < 0 or labels.max() >= trained.classes):
        raise InputError(
            f"{samples.path}: y goes from {labels.min()} to {labels.max()}, must be from 0 to "
            f"{trained.classes - 1}"
        )
    return [
        Prediction(
            samples.path,
            row,
            guess,
            label=None if labels is None else int(labels[row]),
            unlikeness=unlikeness,
        )
        for row, (guess, unlikeness) in enumerate(_compared(trained, features, likeness))
    ]


def _rows(trained: Trained) -> str:
    return f"(N, {', '.join(map(str, trained.shape))})"


# --- output ----------------------------------------------------------------------------------


def describe(predictions: Sequence[Prediction], labels: Sequence[str]) -> str:
    """A table of the first hundred, and the accuracy on each file of samples that has labels.
    `labels` are the names of the classes."""
    predictions = [prediction for prediction in predictions if not prediction.fault]
    drawn = any(prediction.drawn for prediction in predictions)
    labelled = any(prediction.label is not None for prediction in predictions)
    notes = [prediction.note for prediction in predictions]
    headers = ["file", "class", "probability", "runner-up", "probability"]
    headers += ["drawn"] * drawn + ["label"] * labelled + ["note"] * any(notes)
    rows = []
    for prediction in predictions[:ROWS_SHOWN]:
        guess, name = prediction.guess, prediction.name
        row = [name if prediction.row is None else f"{name}[{prediction.row}]"]
        row += ["-"] * 4 if guess is None else [
            labels[guess.best], f"{guess.probability:.2%}",
            labels[guess.second], f"{guess.second_probability:.2%}",
        ]  # fmt: skip
        row += [prediction.drawn] * drawn
        row += ["" if prediction.label is None else labels[prediction.label]] * labelled
        row += [prediction.note] * any(notes)
        rows.append(row)
    alignment = (
        "left", *["right"] * 4, *["left"] * drawn, *["right"] * labelled, *["left"] * any(notes)
    )  # fmt: skip
    parts = [tabulate(rows, headers, disable_numparse=True, colalign=alignment)]
    if len(predictions) > len(rows):
        parts.append(f"and {len(predictions) - len(rows):,} more; --csv FILE writes every row")
    unlike = sum("unlike" in note for note in notes)
    if unlike:
        parts.append(f"{unlike:,} of {len(predictions):,} are {UNLIKE}")
    samples, right = Counter[str](), Counter[str]()
    for prediction in predictions:
        if prediction.label is not None and prediction.guess is not None:
            samples[prediction.name] += 1
            right[prediction.name] += prediction.guess.best == prediction.label
    parts += [
        f"{name}: {right[name]:,} of {count:,} right, accuracy {right[name] / count:.2%}"
        for name, count in samples.items()
    ]
    return "\n".join(parts)


def to_csv(predictions: Sequence[Prediction], labels: Sequence[str]) -> str:
    """Columns as COLUMNS, classes by their names; what does not apply is empty, and of a blank
    picture the guess."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for prediction in predictions:
        guess, unlikeness = prediction.guess, prediction.unlikeness
        writer.writerow([
            prediction.name,
            prediction.row,
            *([None] * 4 if guess is None else [
                labels[guess.best], f"{guess.probability:.6f}",
                labels[guess.second], f"{guess.second_probability:.6f}",
            ]),
            prediction.drawn,
            None if prediction.label is None else labels[prediction.label],
            prediction.drawings,
            None if unlikeness is None else f"{unlikeness:.4f}",
            printable(prediction.fault.removeprefix(f"{prediction.path}: ")),
        ])  # fmt: skip
    return text.getvalue()
