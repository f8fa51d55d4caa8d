"""Pictures of a trained model: its mistakes, its first layer, and its augmented samples."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from src.config.schema import Config
from src.data.augmentation import build_augmentation
from src.data.loader import Block
from src.data.sources.source import Source, Split, as_float
from src.inference import measures
from src.inference.calibration import bins, calibrate, score
from src.inference.evaluation import Evaluation, compute_logits, evaluate, source_of
from src.plots.confusion import confusion, noun
from src.plots.reliability import reliability
from src.reports.collect import Entry
from src.reports.figures import Picture
from src.runs.loading import Trained, open_trained
from src.runs.outcome import format_metric
from src.training.tallies import BINS

MISTAKES, UNITS, SEEN = 24, 32, 8
MOST_ROWS = 200  # of a table of classes
GAP = 0.12  # between pictures of a montage, as a share of their width or height


@dataclass(frozen=True)
class Evaluated:
    """The best model of a run, and how it does on the test set of its data."""

    trained: Trained
    source: Source
    evaluation: Evaluation


def evaluated(entry: Entry) -> Evaluated:
    """Raises InputError when the run has no model, or its data are not on this machine."""
    trained = open_trained(entry.run.folder)
    source = source_of(trained)
    return Evaluated(trained, source, evaluate(trained, source))


def measure_table(model: Evaluated) -> list[list[str]]:
    """Precision, recall, F1 and AUROC as texts: a header, a row for each class if there are not too
    many, and the averages."""
    found = measures.rows(model.evaluation.measures, model.source.labels)
    return [measures.HEADER, *(found if len(found) <= MOST_ROWS else found[-2:])]


def pictures(model: Evaluated, name: str) -> Iterator[Picture]:
    """The confusion matrix and the reliability of the best model. For grey pictures also the most
    confident mistakes, the weights of the first layer, and augmented samples."""
    trained, source, found = model.trained, model.source, model.evaluation
    right, kind = found.accuracy, noun(source.labels)
    yield Picture(
        f"{name}-confusion",
        f"{right:.2%} of {len(source.test):,} test samples are right. Rows: the true {kind}; "
        f"columns: the predicted {kind}",
        partial(confusion, found.confusion.numpy(), source.labels),
    )
    yield _reliability(trained, source, name)
    if len(source.shape) != 3 or source.shape[0] != 1:
        return
    wrong, titles = most_confident_mistakes(
        compute_logits(trained, source.test), source.test, source.labels
    )
    if titles:
        shown = as_float(source.test.take(wrong).features)[:, 0]
        yield Picture(
            f"{name}-mistakes",
            f"The most confident mistakes: true {kind} → predicted {kind}, and its probability",
            partial(mistakes, shown.numpy(), titles),
        )
    if trained.members:  # each has weights and augmentation of its own
        return
    first = _as_pictures(next(trained.model.parameters()).detach(), source.shape[1:])
    if first is not None:
        yield Picture(
            f"{name}-weights",
            f"Weights of the first layer, {min(UNITS, len(first))} of {len(first)} units: "
            "red is positive, blue negative",
            partial(first_layer, first[:UNITS].float().numpy()),
        )
    seen = augmented_samples(trained.config, source)
    if seen is not None:
        yield Picture(
            f"{name}-augmented",
            "Augmentation: each row shows one sample, first unchanged",
            partial(augmented, seen[:, :, 0].numpy()),
        )


def _as_pictures(weight: torch.Tensor, size: Sequence[int]) -> torch.Tensor | None:
    """The weights (units, height, width) of a linear layer for pictures of this size, or of a
    convolution of one channel; None for other layers."""
    if weight.dim() == 2 and weight.shape[1] == math.prod(size):
        return weight.view(-1, *size)
    return weight[:, 0] if weight.dim() == 4 and weight.shape[1] == 1 else None


def _reliability(trained: Trained, source: Source, name: str) -> Picture:
    logits, labels = compute_logits(trained, source.test), source.test.labels
    found = bins(logits, labels)
    caption = (
        "Reliability: accuracy over confidence on the test set; on the diagonal both are equal. "
        f"Expected calibration error {score(logits, labels).ece:.2%} ({BINS} bins)"
    )
    if trained.config.data.holds_out_validation:
        calibrated = calibrate(trained, source, source.test)
        temperature = format_metric("temperature", calibrated.temperature)
        caption += (
            f"; with the temperature {temperature}, fitted on the validation set, "
            f"{calibrated.after.ece:.2%}"
        )
    draw = partial(reliability, found.counts, found.confidence, found.accuracy)
    return Picture(f"{name}-reliability", caption, draw)


def augmented_samples(config: Config, source: Source) -> torch.Tensor | None:
    """Training samples and augmented ones, (SEEN, 1 + SEEN, C, H, W). None without augmentation."""
    first = source.train.take(slice(SEEN))
    samples = as_float(first.features)
    augmentation = build_augmentation(config.augmentation, source, [config.seed], len(samples), 1)
    if augmentation is None:
        return None
    changed = samples.repeat(SEEN, 1, 1, 1, 1, 1)  # a block of SEEN batches
    augmentation(Block(changed, first.labels), 0, 0)
    return torch.cat([samples[:, None], changed[:, 0].transpose(0, 1)], 1)


def most_confident_mistakes(
    logits: torch.Tensor, split: Split, labels: Sequence[str], most: int = MISTAKES
) -> tuple[torch.Tensor, list[str]]:
    """Indices of the wrong samples with the highest probabilities, the highest first, and a title
    `true → predicted, probability` for each. `logits` are (N, classes)."""
    probabilities, predicted = logits.double().softmax(-1).max(-1)
    wrong = (predicted != split.labels).nonzero().squeeze(1)
    chosen = wrong[probabilities[wrong].argsort(descending=True, stable=True)[:most]]
    titles = [
        f"{labels[int(split.labels[i])]} → {labels[int(predicted[i])]}, {probabilities[i]:.0%}"
        for i in chosen.tolist()
    ]
    return chosen, titles


def mistakes(pictures: np.ndarray, titles: Sequence[str]) -> Figure:
    """Grey pictures (N, H, W) in [0, 1], dark on light, each under its title."""
    figure, axis, places = _montage(
        1 - pictures, 4, inches=4.5, above=0.45, cmap="gray", clim=(0, 1)
    )
    for (x, y), title in zip(places, titles, strict=True):
        axis.text(x + pictures.shape[2] / 2, y - 2, title, ha="center", fontsize=9)
    return figure


def augmented(pictures: np.ndarray) -> Figure:
    """Grey pictures (rows, columns, H, W) in [0, 1], dark on light."""
    every = 1 - pictures.reshape(-1, *pictures.shape[2:])
    return _montage(every, pictures.shape[1], cmap="gray", clim=(0, 1))[0]


def first_layer(weights: np.ndarray) -> Figure:
    """Weights (units, H, W) of the first layer, each unit on its own scale."""
    bounds = np.abs(weights).max((1, 2), keepdims=True)
    scaled = weights / np.where(bounds, bounds, 1)
    return _montage(scaled, 8, cmap="RdBu_r", clim=(-1, 1))[0]


def _montage(
    pictures: np.ndarray, columns: int, *, inches: float = 7, above: float = GAP, **colours: Any
) -> tuple[Figure, Axes, list[tuple[float, float]]]:
    """One image of all pictures (N, H, W), and the upper left corner (x, y) of each; an axis for
    each would take a second. The figure is `inches` wide: the fewer, the larger are texts in the
    page. `above` is the space above a picture, as a share of its height."""
    count, height, width = pictures.shape
    columns = min(columns, count)
    rows = -(-count // columns)
    step = height + round(above * height), width + round(GAP * width)
    whole = np.full((rows * step[0], columns * step[1]), np.nan)
    places = []
    for number, picture in enumerate(pictures):
        row, column = divmod(number, columns)
        bottom, left = (row + 1) * step[0], column * step[1]
        whole[bottom - height : bottom, left : left + width] = picture
        places.append((left - 0.5, bottom - height - 0.5))
    figure = Figure(
        figsize=(inches, inches * whole.shape[0] / whole.shape[1]), layout="constrained"
    )
    axis = figure.subplots()
    axis.imshow(whole, interpolation="nearest", **colours)
    axis.set_axis_off()
    return figure, axis, places
