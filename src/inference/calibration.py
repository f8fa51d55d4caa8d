"""How well a model's probabilities agree with how often it is right, and temperature scaling.

After Guo, Pleiss, Sun and Weinberger, On Calibration of Modern Neural Networks, 2017.
"""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate
from torch import Tensor
from torch.nn import functional as F

from src.data.sources.source import Source, Split
from src.inference import evaluation
from src.inference.evaluation import compute_logits, source_of, validation_of
from src.runs.loading import Trained, open_trained
from src.runs.outcome import format_metric
from src.system.errors import InputError
from src.training.tallies import UNIT, calibration_tally, probabilities, tally, values

LEAST_TEMPERATURE, MOST_TEMPERATURE = 0.01, 100.0


@dataclass(frozen=True)
class Scores:
    """`ece`, expected calibration error: the mean distance, over samples, of the accuracy in a bin
    of confidence from the mean confidence in the bin. `brier`: the mean over samples of the squared
    distance of the probabilities from the true class, from 0 to 2. `loss`: mean cross entropy."""

    ece: float
    brier: float
    loss: float


@dataclass(frozen=True)
class Bins:
    """BINS equal bins of the highest probability of each sample; 0 for an empty bin."""

    counts: tuple[int, ...]
    confidence: tuple[float, ...]  # the mean highest probability
    accuracy: tuple[float, ...]


@dataclass(frozen=True)
class Calibration:
    """The calibration on the test set, as trained and with the fitted temperature."""

    temperature: float
    fitted_on: int  # validation samples
    before: Scores
    after: Scores
    bins: Bins  # as trained

    def to_primitives(self) -> dict[str, Any]:
        return asdict(self)


def calibrate(trained: Trained, source: Source, test: Split, copies: int = 0) -> Calibration:
    """Fits a temperature on the validation set of a model and scores the model on `test`; `source`
    is the data set of its training. With `copies`, both use the mean probabilities of
    `compute_logits`. Raises InputError if the model has no validation set of its own, because on
    training samples the temperature would be too low."""
    if not trained.config.data.holds_out_validation:
        raise InputError(
            f"{trained.checkpoint}: was trained with data.val_fraction=null, without a validation "
            "set of its own; train with data.val_fraction=0.1 to calibrate"
        )
    validation = validation_of(trained, source)
    temperature = fit_temperature(_finite_logits(trained, validation, copies), validation.labels)
    logits = _finite_logits(trained, test, copies)
    return Calibration(
        temperature,
        len(validation),
        score(logits, test.labels),
        score(logits / temperature, test.labels),
        bins(logits, test.labels),
    )


def _finite_logits(trained: Trained, split: Split, copies: int) -> Tensor:
    logits = compute_logits(trained, split, copies).double()
    if not logits.isfinite().all():
        raise InputError(f"{trained.checkpoint}: its logits are not finite; name another run")
    return logits


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature by which logits (N, classes) are divided for the least mean cross entropy, at
    least 0.01 and at most 100. The loss is a convex function of its inverse, so a local minimum is
    the minimum."""
    from scipy.optimize import minimize_scalar

    exact = logits.double()
    found = minimize_scalar(
        lambda log: F.cross_entropy(exact / math.exp(log), labels).item(),
        bounds=(math.log(LEAST_TEMPERATURE), math.log(MOST_TEMPERATURE)),
        method="bounded",
        options={"xatol": 1e-6},
    )
    return math.exp(found.x)


def score(logits: Tensor, labels: Tensor) -> Scores:
    """The scores of the probabilities of logits (N, classes)."""
    stacked = logits.mT[None]
    ece, brier = (
        values(name, tally(name, stacked, labels), len(labels))[0] for name in ("ece", "brier")
    )
    return Scores(ece, brier, F.cross_entropy(logits.double(), labels).item())


def bins(logits: Tensor, labels: Tensor) -> Bins:
    """The samples by their highest probability, as `calibration_tally` divides them."""
    counts, hits, sums = calibration_tally(probabilities(logits.mT[None]), labels)[0]
    filled = counts.clamp(min=1)
    return Bins(
        tuple(counts.tolist()),
        tuple((sums * UNIT / filled).tolist()),
        tuple((hits / filled).tolist()),
    )


def report(
    path: Path,
    data: str | None,
    top_k: int | None,
    copies: int,
    *,
    calibrated: bool,
    as_json: bool,
) -> str:
    """What `python -m src.evaluate` prints about the model of a run folder or checkpoint file, on
    the test set of the data set `data`, by default that of its training, with `copies` augmented
    copies of each sample."""
    trained = open_trained(path)
    tested = source_of(trained, data)
    found = evaluation.evaluate(trained, tested, top_k, copies)
    calibration = None
    if calibrated:
        own = trained.digest is not None and tested.digest == trained.digest
        source = tested if data is None or own else source_of(trained)
        calibration = calibrate(trained, source, tested.test, copies)
    if as_json:
        more = {} if calibration is None else {"calibration": calibration.to_primitives()}
        return json.dumps(found.to_primitives() | more)
    told = evaluation.describe(found)
    return told if calibration is None else f"{told}\n\n{describe(calibration, copies)}"


def describe(calibration: Calibration, copies: int = 0) -> str:
    """The scores as a table for people; `copies` as `calibrate`."""
    found = calibration
    rows = [
        [name, *(format_metric(key, getattr(scores, key)) for key in ("ece", "brier", "loss"))]
        for name, scores in (
            ("mean over copies" if copies else "as trained", found.before),
            (f"temperature {format_metric('temperature', found.temperature)}", found.after),
        )
    ]
    table = tabulate(
        rows, ["calibration", "ECE", "Brier", "loss"], disable_numparse=True,
        colalign=("left", "right", "right", "right"),
    )  # fmt: skip
    return f"{table}\nthe temperature was fitted on {found.fitted_on:,} validation samples"
