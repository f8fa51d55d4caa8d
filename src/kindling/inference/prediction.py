"""The predictions of a trained model for arrays, pictures and tables; as a table, or as CSV.

`predict` is for your own programs, `predict_request` for the command `python -m src.predict`.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tabulate import tabulate
from torch import Tensor

from kindling.config.section import WHOLE
from kindling.config.written import printable
from kindling.data.folders import digest_of
from kindling.data.pictures import read_picture
from kindling.data.sources.source import Split
from kindling.data.tables import Table
from kindling.inference.evaluation import averaged_over
from kindling.inference.inputs import Input, PredictRequest, Samples, Unread, require_drawings
from kindling.inference.likeness import Likeness, likeness_of
from kindling.inference.logits import Opinions, averaging, compute_logits, consult
from kindling.inference.pictures import NONE, Box, Picture, reader_of
from kindling.inference.samples import as_split, features_of, pixels_of, samples_of
from kindling.records.folder import csv_text
from kindling.records.loading import Trained, open_trained
from kindling.records.outcome import UNKNOWN, format_metric
from kindling.system.errors import InputError, all_at_once
from kindling.system.files import write_durably
from kindling.system.installation import as_command
from kindling.tasks import classification

ROWS_SHOWN = 100
# Those of OPTIONAL are left out if no row has one: the box of a drawing in a photograph, what a
# committee says, and the augmented copies.
COLUMNS = (
    "file", "row", "class", "probability", "runner_up", "runner_up_probability", "drawn", "label",
    "drawings", "unlikeness", "x", "y", "width", "height", "agreement", "disagreement",
    "augmented_copies", "fault",
)  # fmt: skip
OPTIONAL = COLUMNS[10:17]
UNLIKE = (
    "unlike: farther from every training sample of their class than 99.5% of the held-out samples"
)


def predict(trained: Trained, features: NDArray[Any], copies: int = 0) -> NDArray[np.float64]:
    """The probability of each class, (N, classes), for features (N, *trained.shape).

    Features are uint8 from 0 to 255, or floats from 0 to 1; grey pictures may be (N, H, W). A model
    that was trained on arrays takes arrays like them. For a model trained on a table, first convert
    the rows with `trained.columns.features(table)`, as `Model` does (inference/model.py). With
    `copies`, probabilities are means over each sample and that many augmented copies, as
    `averaging` says. Raises InputError for features of another type, range or shape, for `copies`
    that the model cannot have, and when a probability is not finite.

    >>> from pathlib import Path
    >>> import numpy as np
    >>> from kindling.inference.prediction import predict
    >>> from kindling.records.loading import open_trained
    >>> trained = open_trained(Path("runs/example"))
    >>> pictures = np.zeros((5, 28, 28), np.uint8)
    >>> probabilities = predict(trained, pictures)
    >>> probabilities.shape
    (5, 10)
    >>> names = [trained.labels[best] for best in probabilities.argmax(1)]
    """
    split = as_split(trained, features_of(trained, "features", features))
    logits, _ = _logits_of(averaging(trained, copies), split)
    probabilities: NDArray[np.float64] = classification.probabilities(logits).numpy()
    return probabilities


@dataclass(frozen=True)
class Guess:
    """The two most probable classes and their probabilities. Of a committee also the share of
    votes whose members predict the first class, and the members' disagreement in bits."""

    best: int
    second: int
    probability: float
    second_probability: float
    agreement: float | None = None
    disagreement: float | None = None
    unlikeness: float | None = None  # above 1: unlike the training data; None: not measured


@dataclass(frozen=True)
class Prediction:
    """The prediction for one picture, row, or drawing in a photograph. If its file could not be
    used, `fault` says why."""

    path: Path
    row: int | None
    guess: Guess | None  # None if the picture is blank or its drawing none, and with a fault
    polarity: str = ""  # "dark on light", "light on dark"; blank: "nothing"; not a drawing: ""
    true_class: int | None = None  # from the file, if the file has classes
    drawings: int | None = None  # separate drawings in the picture
    unlikeness: float | None = None  # above 1: unlike the training data; None: not measured
    fault: str = ""
    line: int | None = None  # of the row, in the file of a table
    box: Box | None = None  # of a drawing in a photograph, the row of which is its number

    @property
    def name(self) -> str:
        """The path, safe to print: the name of a file may have line ends and control characters."""
        return printable(str(self.path))

    @property
    def note(self) -> str:
        """Reasons to doubt the guess, in a few words."""
        several = f"{self.drawings} drawings" if (self.drawings or 0) > 1 else ""
        unlike = "unlike" if (self.unlikeness or 0) > 1 else ""
        unsure = "unsure" if self.box and not self.guess and not unlike else ""
        return ", ".join(filter(None, [several, unlike, unsure]))


def predict_inputs(
    trained: Trained, inputs: Sequence[Input], likeness: Likeness | None = None
) -> list[Prediction]:
    """A prediction for each picture and each row of arrays or tables, in the order of the inputs.

    A file that cannot be read or does not fit the model has a Prediction with its fault. Raises
    InputError for pictures when the model takes none, and when no file has a prediction.
    """
    pictures = [item for item in inputs if isinstance(item, Picture)]
    # All pictures go through the model at once.
    of_pictures = iter(_of_pictures(trained, pictures, likeness) if pictures else [])
    predictions: list[Prediction] = []
    for item in inputs:
        try:
            if isinstance(item, Unread):
                raise InputError(item.fault)
            if isinstance(item, Picture):
                predictions.append(next(of_pictures))
            else:
                predictions += _of_samples(trained, samples_of(trained, item), likeness)
        except InputError as error:
            predictions.append(Prediction(item.path, None, None, fault=str(error)))
    faults = [prediction.fault for prediction in predictions if prediction.fault]
    if len(faults) == len(predictions):
        raise all_at_once(faults, "nothing was predicted")
    return predictions


def _of_pictures(
    trained: Trained, pictures: Sequence[Picture], likeness: Likeness | None
) -> list[Prediction]:
    guesses = classify(trained, pixels_of(trained, pictures), likeness)
    name = trained.config.data.pictures
    reader, predictions = reader_of(name), []
    if name == WHOLE:  # the pictures for a checkpoint file were read as drawings
        pictures = [Picture(picture.path) for picture in pictures]
    for number, (picture, guess) in enumerate(zip(pictures, guesses, strict=True)):
        blank, certain = picture.drawings == 0, (guess.probability, guess.unlikeness or 0)
        none = picture.box and reader.is_none(trained.labels, *certain)
        predictions.append(
            Prediction(
                picture.path, number if picture.box else None, None if blank or none else guess,
                picture.polarity, drawings=picture.drawings,
                unlikeness=None if blank else guess.unlikeness, box=picture.box,
            )
        )  # fmt: skip
    return predictions


def _of_samples(trained: Trained, samples: Samples, likeness: Likeness | None) -> list[Prediction]:
    guesses = classify(trained, samples.features, likeness)
    nothing = [None] * len(guesses)
    classes = nothing if samples.labels is None else samples.labels.tolist()
    rows = enumerate(zip(guesses, classes, samples.lines or nothing, strict=True))
    return [
        Prediction(
            samples.path, row, guess, true_class=label, unlikeness=guess.unlikeness, line=line
        )
        for row, (guess, label, line) in rows
    ]


def classify(
    trained: Trained, features: NDArray[Any], likeness: Likeness | None = None
) -> list[Guess]:
    """The two most probable classes for features (N, *shape), equally probable classes in their
    order. Raises InputError when the model has only one class, and when its logits are not finite.
    """
    if trained.classes < 2:
        raise InputError(f"{trained.checkpoint}: has only one class, so a prediction says nothing")
    split = as_split(trained, features)
    logits, opinions = _logits_of(trained, split)
    order = logits.sort(descending=True, stable=True).indices[:, :2]
    probabilities = classification.probabilities(logits).gather(1, order)
    nothing: list[Any] = [None] * len(split)
    agreement = disagreement = unlikeness = nothing
    if opinions is not None:
        agreement = opinions.tally.gather(1, order[:, :1]).squeeze(1).clamp(max=1).tolist()
        disagreement = opinions.disagreement.tolist()
    if likeness is not None:
        unlikeness = likeness.unlikeness(split.features, order[:, 0])
    classes = (*order.T.tolist(), *probabilities.T.tolist())
    columns = zip(*classes, agreement, disagreement, unlikeness, strict=True)
    return [Guess(*values) for values in columns]


def _logits_of(trained: Trained, split: Split) -> tuple[Tensor, Opinions | None]:
    """Logits (N, classes) in float64, computed like those of `src.evaluate`, and the opinions of a
    committee."""
    opinions = consult(trained, split) if trained.members else None
    logits = opinions.logits if opinions else compute_logits(trained, split).double()
    if not logits.isfinite().all():
        raise InputError(f"{trained.checkpoint}: its logits for the input are not finite")
    return logits, opinions


# --- the command ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class PredictOutput:
    """The output of `python -m src.predict`."""

    text: str  # for the standard output
    notes: Sequence[str]  # for the error output
    faults: Sequence[str]  # of the files without a prediction


def predict_request(request: PredictRequest) -> PredictOutput:
    """Predicts the inputs of a request; writes the CSV file where one is requested. Raises
    InputError as `open_trained` and `predict_inputs`, when all pictures are blank, and when the
    file cannot be written."""
    trained = open_trained(request.run)
    if request.boxes_file:
        require_drawings(str(trained.checkpoint), trained.config.data)
    notes, likeness = list(request.left_out), None
    try:
        likeness = likeness_of(trained)
    except InputError as error:
        reason = str(error).splitlines()[0].removeprefix(f"{trained.checkpoint}: ")
        notes.append(f"inputs unlike the training data are not marked: {reason}")
    trained = averaging(trained, request.copies)  # not for the likeness
    predictions = predict_inputs(trained, request.inputs, likeness)
    notes += _trained_on(trained, request.run, predictions)
    read = [item for item in request.inputs if isinstance(item, Table | Samples)]
    notes += [text for item in read for _, text in item.notes]
    crowded = [each for each in predictions if (each.drawings or 0) > 1]
    if crowded:
        more = f" and {len(crowded) - 1:,} more" if crowded[1:] else ""
        notes.append(
            f"{crowded[0].name}{more}: has {crowded[0].drawings} drawings; to read each one, type "
            f"{as_command('predict')} {shlex.join([str(request.run), crowded[0].name])} "
            "--boxes boxes.png"
        )
    faults = [
        each.fault or f"{each.name}: has no drawing, so no prediction"
        for each in predictions
        if each.fault or each.polarity == "nothing"
    ]
    if len(faults) == len(predictions):
        raise all_at_once(faults, "nothing was predicted")
    if request.boxes_file:
        named = [
            (found.box, trained.labels[found.guess.best], found.guess.probability)
            if found.guess
            else (found.box, NONE, None)
            for found in predictions
            if found.box
        ]
        picture, reader = read_picture(predictions[0].path), reader_of(trained.config.data.pictures)
        _write("--boxes", request.boxes_file, reader.draw_boxes(picture, named))
    text = to_csv(predictions, trained.labels, request.copies)
    if request.csv_file != "-":
        if request.csv_file is not None:
            _write("--csv", Path(request.csv_file), text)
        head = f"{trained.checkpoint}, trained on {trained.data}\n{averaged_over(request.copies)}"
        text = f"{head}\n{describe_predictions(predictions, trained.labels)}\n"
    return PredictOutput(text, notes, faults)


def _trained_on(trained: Trained, run: Path, predictions: Sequence[Prediction]) -> list[str]:
    """A line for each file with classes that the model was trained on."""
    labelled = dict.fromkeys(each.path for each in predictions if each.true_class is not None)
    return [
        f"{printable(str(path))}: the model was trained on most of these samples, so the accuracy "
        f"says nothing about new ones; to test on held-out ones, type {as_command('evaluate')} "
        f"{shlex.quote(str(run))}"
        for path in labelled
        if trained.digest is not None and trained.digest == digest_of(path)
    ]


def _write(option: str, path: Path, content: str | bytes) -> None:
    try:
        write_durably(path, content)
    except OSError as error:
        raise InputError(
            f"{option} {path}: cannot be written ({error.strerror}); name another file"
        ) from None


def describe_predictions(predictions: Sequence[Prediction], labels: Sequence[str]) -> str:
    """A table of the first ROWS_SHOWN predictions, and the accuracy on each file with labels.
    `labels` are the names of the classes. Faults are left out."""
    labels = [*map(printable, labels)]
    predictions = [found for found in predictions if not found.fault]
    guesses = [found.guess for found in predictions]
    true = [found.true_class for found in predictions]
    agreements = [None if guess is None else guess.agreement for guess in guesses]
    agree = [UNKNOWN if share is None else f"{share:.0%}" for share in agreements]
    optional = {
        "agree": agree if any(share is not None for share in agreements) else [],
        "box": [", ".join(map(str, found.box or ())) for found in predictions],
        "drawn": [found.polarity for found in predictions],
        "label": ["" if number is None else labels[number] for number in true],
        "note": [found.note for found in predictions],
    }
    optional = {name: texts for name, texts in optional.items() if any(texts)}
    rows = [
        [*_named_guess(found, labels), *(texts[number] for texts in optional.values())]
        for number, found in enumerate(predictions[:ROWS_SHOWN])
    ]
    headers = ["file", "class", "probability", "runner-up", "probability", *optional]
    sides = ["left" if name in ("file", "drawn", "note") else "right" for name in headers]
    parts = [tabulate(rows, headers, disable_numparse=True, colalign=sides)]
    if len(predictions) > len(rows):
        parts.append(f"and {len(predictions) - len(rows):,} more; --csv FILE writes every row")
    if "box" in optional:
        none = sum(guess is None or labels[guess.best] == NONE for guess in guesses)
        parts.append(f"drawings found: {len(predictions):,}; called none: {none:,}")
    unlike = sum("unlike" in found.note for found in predictions)
    if unlike:
        parts.append(f"{unlike:,} of {len(predictions):,} are {UNLIKE}")
    hits: dict[str, list[bool]] = {}
    for found in predictions:
        if found.true_class is not None and found.guess is not None:
            hits.setdefault(found.name, []).append(found.guess.best == found.true_class)
    parts += [
        f"{name}: {sum(right):,} of {len(right):,} right, "
        f"accuracy {format_metric('acc', sum(right) / len(right))}"
        for name, right in hits.items()
    ]
    return "\n".join(parts)


def _named_guess(found: Prediction, labels: Sequence[str]) -> list[str]:
    """The name of the input, both classes, and their probabilities."""
    guess, name = found.guess, found.name
    if found.line is not None:
        name += f":{found.line}"
    elif found.row is not None:
        name += f"[{found.row}]"
    if guess is None:
        return [name, NONE if found.box else UNKNOWN, *[UNKNOWN] * 3]
    return [
        name, labels[guess.best], format_metric("acc", guess.probability),
        labels[guess.second], format_metric("acc", guess.second_probability),
    ]  # fmt: skip


def to_csv(predictions: Sequence[Prediction], labels: Sequence[str], copies: int = 0) -> str:
    """CSV with COLUMNS, and classes by name. A cell that does not apply is empty."""
    rows = [_cells(prediction, labels, copies) for prediction in predictions]
    used = {name for row in rows for name, value in row.items() if value is not None}
    return csv_text([name for name in COLUMNS if name not in OPTIONAL or name in used], rows)


def _cells(found: Prediction, labels: Sequence[str], copies: int) -> dict[str, object]:
    guess = found.guess
    cells: dict[str, object] = {
        "file": found.name, "row": found.row, "drawn": found.polarity, "drawings": found.drawings,
        "label": None if found.true_class is None else labels[found.true_class],
        "unlikeness": None if found.unlikeness is None else f"{found.unlikeness:.4f}",
        "augmented_copies": copies or None,
        "fault": printable(found.fault.removeprefix(f"{found.path}: ")),
    }  # fmt: skip
    if found.box:
        cells |= {"class": NONE} | dict(zip(("x", "y", "width", "height"), found.box, strict=True))
    if guess is not None:
        cells |= {
            "class": labels[guess.best], "probability": f"{guess.probability:.6f}",
            "runner_up": labels[guess.second],
            "runner_up_probability": f"{guess.second_probability:.6f}",
        }  # fmt: skip
        if guess.agreement is not None:
            cells["agreement"] = f"{guess.agreement:.4f}"
            cells["disagreement"] = f"{guess.disagreement:.6f}"
    return cells
