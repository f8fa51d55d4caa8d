"""Predictions as a table, or as CSV for other programs."""

import csv
import io
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

from src.config.written import printable
from src.data.folders import digest_of
from src.data.pictures import read_picture
from src.data.sources.source import NONE
from src.inference.boxes import draw_boxes
from src.inference.copies import told
from src.inference.inputs import Request, require_drawings
from src.inference.likeness import likeness_of
from src.inference.prediction import Guess, Prediction, predict_inputs
from src.runs.loading import Trained, open_trained
from src.runs.outcome import UNKNOWN, format_metric
from src.system.errors import InputError
from src.system.files import write_durably

ROWS_SHOWN = 100
COLUMNS = (
    "file",
    "row",
    "class",
    "probability",
    "runner_up",
    "runner_up_probability",
    "drawn",
    "label",
    "drawings",
    "unlikeness",
    "fault",
)
COMMITTEE_COLUMNS = ("agreement", "disagreement")  # before `fault`  # fmt: skip
BOX_COLUMNS = ("x", "y", "width", "height")  # before `fault`, of drawings in a photograph
COPIES_COLUMN = "augmented_copies"  # before `fault`, with augmented copies
UNLIKE = (
    "unlike: farther from every training sample of their class than 99.5% of the held-out samples"
)


@dataclass(frozen=True)
class Output:
    """The output of `python -m src.predict`."""

    text: str  # for the standard output
    notes: Sequence[str]  # for the error output
    faults: Sequence[str]  # of the files without a prediction


def predict_request(request: Request) -> Output:
    """Predicts the inputs of a request; writes the CSV file where one is requested. Raises
    InputError as `open_trained` and `predict_inputs`, and when the file cannot be written."""
    trained = open_trained(request.run)
    if request.boxes_file:
        require_drawings(str(trained.checkpoint), trained.data)
    notes, likeness = list(request.left_out), None
    try:
        likeness = likeness_of(trained)
    except InputError as error:
        reason = str(error).splitlines()[0].removeprefix(f"{trained.checkpoint}: ")
        notes.append(f"inputs unlike the training data are not marked: {reason}")
    predictions = predict_inputs(trained, request.inputs, likeness, request.copies)
    notes += _trained_on(trained, request, predictions)
    crowded = [each for each in predictions if (each.drawings or 0) > 1]
    if crowded:
        more = f" and {len(crowded) - 1:,} more" if crowded[1:] else ""
        notes.append(
            f"{crowded[0].name}{more}: has {crowded[0].drawings} drawings; to read each one, type "
            f"python -m src.predict {shlex.join([str(request.run), crowded[0].name])} "
            "--boxes boxes.png"
        )
    faults = [prediction.fault for prediction in predictions if prediction.fault]
    rows = to_csv(predictions, trained.labels, request.copies)
    if request.boxes_file:
        picture = read_picture(predictions[0].path)
        _write("--boxes", request.boxes_file, draw_boxes(picture, predictions, trained.labels))
    if request.csv_file == "-":
        return Output(rows, notes, faults)
    if request.csv_file is not None:
        _write("--csv", Path(request.csv_file), rows)
    table = describe(predictions, trained.labels)
    head = f"{trained.checkpoint}, trained on {trained.data}"
    if request.copies:
        head += f"\n{told(request.copies)}"
    return Output(f"{head}\n\n{table}\n", notes, faults)


def _trained_on(trained: Trained, request: Request, predictions: Sequence[Prediction]) -> list[str]:
    """A line for each file with classes that the model was trained on."""
    labelled = dict.fromkeys(each.path for each in predictions if each.true_class is not None)
    return [
        f"{printable(str(path))}: the model was trained on most of these samples, so the accuracy "
        "says nothing about new ones; to test on held-out ones, type python -m src.evaluate "
        f"{shlex.join([str(request.run)])}"
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


def describe(predictions: Sequence[Prediction], labels: Sequence[str]) -> str:
    """A table of the first ROWS_SHOWN predictions, and the accuracy on each file with labels.
    `labels` are the names of the classes. Faults are left out."""
    predictions = [prediction for prediction in predictions if not prediction.fault]
    drawn = any(prediction.polarity for prediction in predictions)
    labelled = any(prediction.true_class is not None for prediction in predictions)
    notes = [prediction.note for prediction in predictions]
    headers = ["file", "class", "probability", "runner-up", "probability"]
    agreed = any(_of_committee(prediction) for prediction in predictions)
    boxed = any(prediction.box for prediction in predictions)
    headers += (
        ["agree"] * agreed
        + ["box"] * boxed
        + ["drawn"] * drawn
        + ["label"] * labelled
        + ["note"] * any(notes)
    )
    rows = []
    for prediction in predictions[:ROWS_SHOWN]:
        guess, name, true_class = prediction.guess, prediction.name, prediction.true_class
        row = [name if prediction.row is None else f"{name}[{prediction.row}]"]
        row += [NONE if prediction.box else UNKNOWN, *[UNKNOWN] * 3] if guess is None else [
            labels[guess.best], format_metric("acc", guess.probability),
            labels[guess.second], format_metric("acc", guess.second_probability),
        ]  # fmt: skip
        agreement = None if guess is None else guess.agreement
        row += [UNKNOWN if agreement is None else f"{agreement:.0%}"] * agreed
        row += [", ".join(map(str, prediction.box or ()))] * boxed
        row += [prediction.polarity] * drawn
        row += ["" if true_class is None else labels[true_class]] * labelled
        row += [prediction.note] * any(notes)
        rows.append(row)
    alignment = (
        "left", *["right"] * (4 + agreed + boxed), *["left"] * drawn, *["right"] * labelled,
        *["left"] * any(notes),
    )  # fmt: skip
    parts = [tabulate(rows, headers, disable_numparse=True, colalign=alignment)]
    if len(predictions) > len(rows):
        parts.append(f"and {len(predictions) - len(rows):,} more; --csv FILE writes every row")
    if boxed:
        guesses = [prediction.guess for prediction in predictions]
        none = sum(guess is None or labels[guess.best] == NONE for guess in guesses)
        parts.append(f"drawings found: {len(predictions):,}; called none: {none:,}")
    unlike = sum("unlike" in note for note in notes)
    if unlike:
        parts.append(f"{unlike:,} of {len(predictions):,} are {UNLIKE}")
    samples, correct = Counter[str](), Counter[str]()
    for prediction in predictions:
        if prediction.true_class is not None and prediction.guess is not None:
            samples[prediction.name] += 1
            correct[prediction.name] += prediction.guess.best == prediction.true_class
    parts += [
        f"{name}: {correct[name]:,} of {count:,} right, "
        f"accuracy {format_metric('acc', correct[name] / count)}"
        for name, count in samples.items()
    ]
    return "\n".join(parts)


def _of_committee(prediction: Prediction) -> bool:
    return prediction.guess is not None and prediction.guess.agreement is not None


def _agreement_cells(guess: Guess | None) -> tuple[str, str]:
    if guess is None or guess.agreement is None:
        return "", ""
    return f"{guess.agreement:.4f}", f"{guess.disagreement:.6f}"


def to_csv(predictions: Sequence[Prediction], labels: Sequence[str], copies: int = 0) -> str:
    """CSV with the columns COLUMNS, of drawings in a photograph also BOX_COLUMNS, of a committee
    also COMMITTEE_COLUMNS, with augmented `copies` also COPIES_COLUMN, and classes by name. A
    cell that does not apply is empty."""
    agreed = any(_of_committee(prediction) for prediction in predictions)
    boxed = any(prediction.box for prediction in predictions)
    more = [
        *(BOX_COLUMNS * boxed),
        *(COMMITTEE_COLUMNS * agreed),
        *([COPIES_COLUMN] if copies else []),
    ]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*COLUMNS[:-1], *more, COLUMNS[-1]])
    for prediction in predictions:
        guess, true_class = prediction.guess, prediction.true_class
        writer.writerow([
            prediction.name,
            prediction.row,
            *([NONE if prediction.box else None, *[None] * 3] if guess is None else [
                labels[guess.best], f"{guess.probability:.6f}",
                labels[guess.second], f"{guess.second_probability:.6f}",
            ]),
            prediction.polarity,
            None if true_class is None else labels[true_class],
            prediction.drawings,
            None if prediction.unlikeness is None else f"{prediction.unlikeness:.4f}",
            *((prediction.box or [None] * 4) * boxed),
            *(_agreement_cells(guess) * agreed),
            *([copies] if copies else []),
            printable(prediction.fault.removeprefix(f"{prediction.path}: ")),
        ])  # fmt: skip
    return text.getvalue()
