"""The predictions of a trained model for arrays, pictures and tables; as a table, or as CSV.

`predict` is for your own programs, `predict_request` for the command `python -m src.predict`.
"""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kindling.config.measures import CLASSIFICATION, MULTILABEL, REGRESSION, in_words, score_of
from kindling.config.section import WHOLE
from kindling.config.written import printable
from kindling.data.folders import digest_of
from kindling.data.pictures import read_picture
from kindling.data.tables.table import Table
from kindling.inference import multilabel, regression
from kindling.inference.inputs import Input, PredictRequest, Samples, Unread, require_drawings
from kindling.inference.likeness import Likeness, likeness_of
from kindling.inference.logits import averaging, compute_logits, consult
from kindling.inference.pictures import NONE, Box, Picture, reader_of
from kindling.inference.samples import as_split, features_of, pixels_of, samples_of
from kindling.inference.tables import averaged_over
from kindling.records.folder import csv_text
from kindling.records.loading import Trained, open_trained
from kindling.records.outcome import UNKNOWN, format_metric, text_table
from kindling.system.errors import InputError, all_at_once
from kindling.system.files import write_durably
from kindling.system.installation import as_command
from kindling.system.process import status_line
from kindling.tasks import classification

ROWS_SHOWN = 100
MOST_WRONG = 100  # rows of a table whose other rows have predictions
# Those of OPTIONAL are left out if no row has one: the box of a drawing in a photograph, what a
# committee says, and the augmented copies.
COLUMNS = (
    "file", "row", "class", "probability", "runner_up", "runner_up_probability", "drawn", "label",
    "drawings", "unlikeness", "x", "y", "width", "height", "agreement", "disagreement",
    "augmented_copies", "fault",
)  # fmt: skip
OPTIONAL = COLUMNS[10:17]
UNLIKE = (
    "unlike: farther from every training sample of the predicted class than 99.5% of the held-out "
    "samples"
)


def predict(trained: Trained, features: NDArray[Any], copies: int = 0) -> NDArray[np.float64]:
    """The probability of each class, (N, classes), for features (N, *trained.shape). Of several
    labels, the probability of each; of a regression, the numbers in their unit, (N, outputs).

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
    return predict_checked(averaging(trained, copies), features_of(trained, "features", features))


def predict_checked(trained: Trained, features: NDArray[Any]) -> NDArray[np.float64]:
    """As `predict`, of features that `features_of` has checked, or somebody else."""
    outputs = _finite(trained, compute_logits(trained, as_split(trained, features)).double())
    found: NDArray[np.float64] = trained.task.predicted(trained.answers(outputs)).numpy()
    return found


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

    def columns(self, labels: Sequence[str]) -> list[tuple[str, str]]:
        """The columns of a table for people: names and texts."""
        return [
            ("class", labels[self.best]),
            ("probability", format_metric("acc", self.probability)),
            ("runner-up", labels[self.second]),
            ("probability", format_metric("acc", self.second_probability)),
        ]

    def cells(self, labels: Sequence[str]) -> dict[str, object]:
        """The columns of a CSV."""
        found: dict[str, object] = {
            "class": labels[self.best], "probability": f"{self.probability:.6f}",
            "runner_up": labels[self.second],
            "runner_up_probability": f"{self.second_probability:.6f}",
        }  # fmt: skip
        if self.agreement is not None:
            found["agreement"] = f"{self.agreement:.4f}"
            found["disagreement"] = f"{self.disagreement:.6f}"
        return found

    @staticmethod
    def truth(true: int, labels: Sequence[str]) -> str:
        return labels[true]

    @staticmethod
    def summary(said: Sequence["Guess"], true: Sequence[int], _labels: Sequence[str]) -> str:
        """How often the classes of a file were predicted rightly."""
        right = [guess.best == label for guess, label in zip(said, true, strict=True)]
        accuracy = format_metric("acc", sum(right) / len(right))
        return f"{sum(right):,} of {len(right):,} right, accuracy {accuracy}"


NO_GUESS = [(name, UNKNOWN) for name in ("class", "probability", "runner-up", "probability")]


@dataclass(frozen=True)
class Prediction:
    """The prediction for one picture, row, or drawing in a photograph. If its file could not be
    used, `fault` says why."""

    path: Path
    row: int | None
    # A Guess, NumberGuess or LabelGuess; None if the picture is blank or its drawing none, and with
    # a fault.
    guess: Any
    polarity: str = ""  # "dark on light", "light on dark"; blank: "nothing"; not a drawing: ""
    true_class: Any = None  # from the file, if it has any: a class, or a list of labels or numbers
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


def predict_inputs(trained: Trained, inputs: Sequence[Input], aid: Any = None) -> list[Prediction]:
    """A prediction for each picture and each row of arrays or tables, in the order of the inputs.

    A file that cannot be read or does not fit the model has a Prediction with its fault, and so has
    each row of a table, if others fit and at most MOST_WRONG do not. `aid` is what the `aid` of
    KINDS has returned. Raises
    InputError for pictures when the model takes none, and when no file has a prediction.
    """
    pictures = [item for item in inputs if isinstance(item, Picture)]
    # All pictures go through the model at once.
    of_pictures = iter(_of_pictures(trained, pictures, aid) if pictures else [])
    predictions: list[Prediction] = []
    for item in inputs:
        try:
            if isinstance(item, Unread):
                raise InputError(item.fault)
            if isinstance(item, Picture):
                predictions.append(next(of_pictures))
            elif isinstance(item, Table):
                predictions += _of_table(trained, item, aid)
            else:
                predictions += _of_samples(trained, samples_of(trained, item), aid)
        except InputError as error:
            predictions.append(Prediction(item.path, None, None, fault=str(error)))
    faults = [prediction.fault for prediction in predictions if prediction.fault]
    if len(faults) == len(predictions):
        raise all_at_once(faults, "nothing was predicted")
    return predictions


def _of_pictures(trained: Trained, pictures: Sequence[Picture], aid: Any) -> list[Prediction]:
    guesses = _kind(trained).guesses(trained, pixels_of(trained, pictures), aid)
    name = trained.config.data.pictures
    reader, predictions = reader_of(name), []
    if name == WHOLE:  # the pictures for a checkpoint file were read as drawings
        pictures = [Picture(picture.path) for picture in pictures]
    for number, (picture, guess) in enumerate(zip(pictures, guesses, strict=True)):
        blank = picture.drawings == 0
        none = picture.box and reader.is_none(
            trained.labels, guess.probability, guess.unlikeness or 0
        )
        predictions.append(
            Prediction(
                picture.path, number if picture.box else None, None if blank or none else guess,
                picture.polarity, drawings=picture.drawings,
                unlikeness=None if blank else guess.unlikeness, box=picture.box,
            )
        )  # fmt: skip
    return predictions


def _of_table(trained: Trained, table: Table, aid: Any) -> list[Prediction]:
    """A prediction for each row, those of wrong rows with their faults."""
    notes = [*table.notes]
    try:
        return _of_samples(trained, samples_of(trained, table), aid)
    except InputError:
        table.notes[:] = notes
        wrong = _wrong_rows(trained, table)
        if not wrong:
            raise
    right = np.array([row not in wrong for row in range(len(table.lines))])
    guessed = iter(_of_samples(trained, samples_of(trained, table.take(right)), aid))
    return [
        replace(next(guessed), row=row)
        if row not in wrong
        else Prediction(table.path, row, None, fault=wrong[row], line=line)
        for row, line in enumerate(table.lines)
    ]


def _wrong_rows(trained: Trained, table: Table) -> dict[int, str]:
    """The faults of a table by row, found by halves: each costs no more than two readings of the
    table. {} if all rows are wrong, or more than MOST_WRONG."""
    found: dict[int, str] = {}

    def search(first: int, last: int) -> bool:
        part = np.zeros(len(table.lines), bool)
        part[first:last] = True
        try:
            samples_of(trained, replace(table.take(part), notes=[]))
        except InputError as error:
            if last - first == 1:
                found[first] = str(error)
                return len(found) <= MOST_WRONG
            middle = (first + last) // 2
            return search(first, middle) and search(middle, last)
        return True

    with status_line("looking for the rows that do not fit ..."):
        few = search(0, len(table.lines))
    return found if few and len(found) < len(table.lines) else {}


def _of_samples(trained: Trained, samples: Samples, aid: Any) -> list[Prediction]:
    guesses = _kind(trained).guesses(trained, samples.features, aid)
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
    opinions = consult(trained, split) if trained.members else None
    logits = opinions.logits if opinions else compute_logits(trained, split).double()
    logits = _finite(trained, logits)
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


def _finite(trained: Trained, logits: Tensor) -> Tensor:
    if not logits.isfinite().all():
        raise InputError(f"{trained.checkpoint}: its logits for the input are not finite")
    return logits


class _Kind(NamedTuple):
    """What differs between the tasks: the guesses for features; what helps to judge them, as far as
    the data of the training are there; and a text that there is no such help."""

    guesses: Callable[[Trained, NDArray[Any], Any], Sequence[Any]]
    aid: Callable[[Trained], Any] = lambda _: None
    without: str = ""


KINDS = {
    CLASSIFICATION: _Kind(
        classify,
        lambda trained: likeness_of(averaging(trained, 0)),
        "inputs unlike the training data are not marked",
    ),
    REGRESSION: _Kind(regression.guesses, regression.interval_of, "no intervals are told"),
    MULTILABEL: _Kind(multilabel.guesses),
}


def _kind(trained: Trained) -> _Kind:
    return KINDS[trained.config.task.name]


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
        require_drawings(str(trained.checkpoint), trained.config)
    trained, notes, aid = averaging(trained, request.copies), list(request.left_out), None
    try:
        aid = _kind(trained).aid(trained)
    except InputError as error:
        reason = str(error).splitlines()[0].removeprefix(f"{trained.checkpoint}: ")
        notes.append(f"{_kind(trained).without}: {reason}")
    predictions = predict_inputs(trained, request.inputs, aid)
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
        says = "numbers" if trained.targets else "probabilities"
        averaged = averaged_over(request.copies, says)
        head = f"{trained.checkpoint}, trained on {trained.data}\n{averaged}"
        text = f"{head}\n{describe_predictions(predictions, trained.labels)}\n"
    return PredictOutput(text, notes, faults)


def _trained_on(trained: Trained, run: Path, predictions: Sequence[Prediction]) -> list[str]:
    """A line for each file with classes that the model was trained on."""
    said = in_words(score_of(trained.config.task.name))
    labelled = dict.fromkeys(each.path for each in predictions if each.true_class is not None)
    return [
        f"{printable(str(path))}: the model was trained on most of these samples, so the {said} "
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
    kind: Any = next((type(guess) for guess in guesses if guess is not None), Guess)
    agreements = [getattr(guess, "agreement", None) for guess in guesses]
    agree = [UNKNOWN if share is None else f"{share:.0%}" for share in agreements]
    optional = {
        "agree": agree if any(share is not None for share in agreements) else [],
        "box": [", ".join(map(str, found.box or ())) for found in predictions],
        "drawn": [found.polarity for found in predictions],
        "label": ["" if label is None else kind.truth(label, labels) for label in true],
        "note": [found.note for found in predictions],
    }
    optional = {name: texts for name, texts in optional.items() if any(texts)}
    known = next((guess.columns(labels) for guess in guesses if guess is not None), NO_GUESS)
    rows = [
        [*_named_guess(found, labels, len(known)), *(texts[number] for texts in optional.values())]
        for number, found in enumerate(predictions[:ROWS_SHOWN])
    ]
    headers = ["file", *(name for name, _ in known), *optional]
    right = [name for name in headers if name not in ("file", "drawn", "note")]
    parts = [text_table(headers, rows, right=right)]
    if len(predictions) > len(rows):
        parts.append(f"and {len(predictions) - len(rows):,} more; --csv FILE writes every row")
    if "box" in optional:
        none = sum(guess is None or labels[guess.best] == NONE for guess in guesses)
        parts.append(f"drawings found: {len(predictions):,}; called none: {none:,}")
    unlike = sum("unlike" in found.note for found in predictions)
    if unlike:
        are = "is" if unlike == 1 else "are"
        parts.append(f"{unlike:,} of {len(predictions):,} {are} {UNLIKE}")
    told: dict[str, list[tuple[Any, Any]]] = {}
    for found in predictions:
        if found.true_class is not None and found.guess is not None:
            told.setdefault(found.name, []).append((found.guess, found.true_class))
    parts += [
        f"{name}: {kind.summary(*zip(*pairs, strict=True), labels)}" for name, pairs in told.items()
    ]
    return "\n".join(parts)


def _named_guess(found: Prediction, labels: Sequence[str], columns: int) -> list[str]:
    """The name of the input, and what was predicted."""
    guess, name = found.guess, found.name
    if found.line is not None:
        name += f":{found.line}"
    elif found.row is not None:
        name += f"[{found.row}]"
    if guess is None:
        return [name, NONE if found.box else UNKNOWN, *[UNKNOWN] * (columns - 1)]
    return [name, *(text for _, text in guess.columns(labels))]


def to_csv(predictions: Sequence[Prediction], labels: Sequence[str], copies: int = 0) -> str:
    """CSV with COLUMNS, and classes by name. A cell that does not apply is empty. Of other tasks,
    the columns of the guesses stand in place of those of classes."""
    rows = [_cells(prediction, labels, copies) for prediction in predictions]
    used = {name for row in rows for name, value in row.items() if value not in (None, "")}
    own = [
        name for name in dict.fromkeys(name for row in rows for name in row) if name not in COLUMNS
    ]
    always = ("file", "row", "fault") if own else [n for n in COLUMNS if n not in OPTIONAL]
    shown = [name for name in COLUMNS if name in always or name in used]
    return csv_text([*shown[:2], *own, *shown[2:]], rows)


def _cells(found: Prediction, labels: Sequence[str], copies: int) -> dict[str, object]:
    guess = found.guess
    cells: dict[str, object] = {
        "file": found.name, "row": found.row, "drawn": found.polarity, "drawings": found.drawings,
        "unlikeness": None if found.unlikeness is None else f"{found.unlikeness:.4f}",
        "augmented_copies": copies or None,
        "fault": printable(found.fault.removeprefix(f"{found.path}: ")),
    }  # fmt: skip
    if found.box:
        cells |= {"class": NONE} | dict(zip(("x", "y", "width", "height"), found.box, strict=True))
    if guess is not None:
        cells |= guess.cells(labels)
    true = found.true_class
    if isinstance(true, int):
        cells["label"] = labels[true]
    elif true is not None:
        cells |= {f"true_{name}": value for name, value in zip(labels, true, strict=True)}
    return cells
