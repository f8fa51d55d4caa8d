"""The predictions of a trained model for arrays, pictures and tables.

`predict` is for your own programs, `predict_inputs` for the command `python -m src.predict`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from src.config.written import printable
from src.data.arrays import as_float32, feature_faults
from src.data.sources.source import NONE, Split
from src.inference.drawings import Box
from src.inference.evaluation import Opinions, compute_logits, consult, require_copies
from src.inference.inputs import Input, Picture, Samples, Unread
from src.inference.likeness import Likeness
from src.inference.samples import pixels_of, samples_of, shape_faults, takes_whole_pictures
from src.runs.loading import Trained
from src.system.errors import InputError, all_at_once

# Of a model without a class `none`: a drawing of a photograph whose class is less probable is none.
LEAST_SURE = 0.6


def predict(trained: Trained, features: NDArray[Any], copies: int = 0) -> NDArray[np.float64]:
    """The probability of each class, (N, classes), for features (N, *trained.shape).

    Features are uint8 from 0 to 255, or floats from 0 to 1; grey pictures may be (N, H, W). For a
    model trained on a table, first convert the rows with `trained.columns.features(table)`, as
    `Model` does (src/inference/model.py). With
    `copies`, probabilities are means over each sample and that many augmented copies, as in
    `compute_logits`. Raises InputError for features of another type, range or shape, for `copies`
    that the model cannot have, and when a probability is not finite.

    >>> from pathlib import Path
    >>> import numpy as np
    >>> from src.inference.prediction import predict
    >>> from src.runs.loading import open_trained
    >>> trained = open_trained(Path("runs/example"))
    >>> pictures = np.zeros((5, 28, 28), np.uint8)
    >>> probabilities = predict(trained, pictures)
    >>> probabilities.shape
    (5, 10)
    >>> names = [trained.labels[best] for best in probabilities.argmax(1)]
    """
    features = as_float32(features)
    faults = feature_faults("features", features) or shape_faults(trained, "features", features)
    if faults:
        raise InputError(faults[0])
    logits = _finite_logits(trained, features, copies)
    probabilities: NDArray[np.float64] = logits.softmax(-1).numpy()
    return probabilities


@dataclass(frozen=True)
class Guess:
    """The two most probable classes, each with its probability. Of a committee also the share of
    votes whose members predict the first class, and the members' disagreement in bits."""

    best: int
    probability: float
    second: int
    second_probability: float
    agreement: float | None = None
    disagreement: float | None = None


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
    trained: Trained, inputs: Sequence[Input], likeness: Likeness | None = None, copies: int = 0
) -> list[Prediction]:
    """A prediction for each picture and each row of arrays or tables, in the order of the inputs.

    A file that cannot be read or does not fit the model has a Prediction with its fault. Raises
    InputError for pictures when the model takes none, when no file has a prediction, and for
    `copies` as `compute_logits`.
    """
    require_copies(trained, copies)
    pictures = [item for item in inputs if isinstance(item, Picture)]
    # All pictures go through the model at once.
    picture_predictions = iter(
        _of_pictures(trained, pictures, likeness, copies) if pictures else []
    )
    predictions: list[Prediction] = []
    for item in inputs:
        try:
            if isinstance(item, Unread):
                raise InputError(item.fault)
            if isinstance(item, Picture):
                predictions.append(next(picture_predictions))
            else:
                predictions += _of_samples(trained, samples_of(trained, item), likeness, copies)
        except InputError as error:
            predictions.append(Prediction(item.path, None, None, fault=str(error)))
    faults = [prediction.fault for prediction in predictions if prediction.fault]
    if len(faults) == len(predictions):
        raise all_at_once(faults, "nothing was predicted")
    return predictions


def classify(trained: Trained, features: NDArray[Any], copies: int = 0) -> list[Guess]:
    """The two most probable classes for features (N, *shape), equally probable classes in their
    order. Raises InputError when the model has only one class, when its logits are not finite, and
    for `copies` as `compute_logits`."""
    if trained.classes < 2:
        raise InputError(f"{trained.checkpoint}: has only one class, so a prediction says nothing")
    opinions = None
    if trained.members:
        opinions = consult(trained, _split(trained, features), copies)
    logits = _finite_logits(trained, features, copies, opinions)
    order = logits.sort(descending=True, stable=True).indices[:, :2]
    probabilities = logits.softmax(-1).gather(1, order)
    pairs = zip(order.tolist(), probabilities.tolist(), strict=True)
    guesses = [
        Guess(best, p_best, second, p_second) for (best, second), (p_best, p_second) in pairs
    ]
    if opinions is None:
        return guesses
    agreement = opinions.tally.gather(1, order[:, :1]).squeeze(1).tolist()
    return [
        replace(guess, agreement=min(1.0, share), disagreement=bits)
        for guess, share, bits in zip(
            guesses, agreement, opinions.disagreement.tolist(), strict=True
        )
    ]


def _split(trained: Trained, features: NDArray[Any]) -> Split:
    inputs = _tensor(trained, features)
    return Split(inputs, torch.zeros(len(inputs), dtype=torch.long))


def _finite_logits(
    trained: Trained, features: NDArray[Any], copies: int, opinions: Opinions | None = None
) -> torch.Tensor:
    """Logits (N, classes) in float64, computed like those of `src.evaluate`. `opinions` are those
    of a committee, if they are known already."""
    if opinions is None:
        logits = compute_logits(trained, _split(trained, features), copies).double()
    else:
        logits = opinions.logits
    if not logits.isfinite().all():
        raise InputError(f"{trained.checkpoint}: its logits for the input are not finite")
    return logits


def _of_pictures(
    trained: Trained, pictures: Sequence[Picture], likeness: Likeness | None, copies: int
) -> list[Prediction]:
    pixels = pixels_of(trained, pictures)
    guesses = _guesses_with_unlikeness(trained, pixels, likeness, copies)
    predictions = []
    for number, (picture, (guess, unlikeness)) in enumerate(zip(pictures, guesses, strict=True)):
        path, drawing = picture.path, picture.drawing
        if takes_whole_pictures(trained):
            prediction = Prediction(path, None, guess, unlikeness=unlikeness)
        elif picture.box:
            none = NONE not in trained.labels and (
                (unlikeness or 0) > 1 or guess.probability < LEAST_SURE
            )
            prediction = Prediction(
                path, number, None if none else guess, unlikeness=unlikeness, box=picture.box
            )
        elif drawing.blank:
            prediction = Prediction(path, None, None, "nothing", drawings=0)
        else:
            polarity = "dark on light" if drawing.inverted else "light on dark"
            prediction = Prediction(
                path, None, guess, polarity, drawings=drawing.count, unlikeness=unlikeness
            )
        predictions.append(prediction)
    return predictions


def _guesses_with_unlikeness(
    trained: Trained, features: NDArray[Any], likeness: Likeness | None, copies: int
) -> list[tuple[Guess, float | None]]:
    """The guess and the unlikeness for each sample of features (N, ...)."""
    guesses = classify(trained, features, copies)
    if likeness is None:
        return [(guess, None) for guess in guesses]
    classes = torch.tensor([guess.best for guess in guesses])
    unlikeness = likeness.unlikeness(_tensor(trained, features), classes)
    return list(zip(guesses, unlikeness, strict=True))


def _tensor(trained: Trained, features: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(features)).view(-1, *trained.shape)


def _of_samples(
    trained: Trained, samples: Samples, likeness: Likeness | None, copies: int
) -> list[Prediction]:
    labels = samples.labels
    guesses = _guesses_with_unlikeness(trained, samples.features, likeness, copies)
    classes = [None] * len(guesses) if labels is None else labels.tolist()
    return [
        Prediction(samples.path, row, guess, true_class=true_class, unlikeness=unlikeness)
        for row, ((guess, unlikeness), true_class) in enumerate(zip(guesses, classes, strict=True))
    ]
