"""What a trained model gets wrong, what its first layer looks at, and what it was shown."""

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from src.config.schema import Config
from src.data.augmentation import build_augmentation
from src.data.loader import Block
from src.data.sources.source import Source, Split, as_float
from src.inference.evaluation import evaluate, predict, source_of
from src.plots.confusion import confusion
from src.reports import figures
from src.reports.collect import Entry
from src.reports.figures import Picture
from src.runs.loading import open_trained

MISTAKES, UNITS, SEEN = 24, 32, 8


def pictures(entry: Entry, name: str) -> Iterator[Picture]:
    """Confusion matrix; of models of grey pictures most confident mistakes, weights of the first
    layer, and samples as augmentation changed them, where it did.

    Raises InputError when the run has no model, or its data cannot be had here.
    """
    trained = open_trained(entry.run.folder)
    source = source_of(trained)
    found = evaluate(trained, source)
    right = found.accuracy
    yield Picture(
        f"{name}-confusion",
        f"Test set of {len(source.test):,}, {right:.2%} right: rows are what a sample is, "
        "columns what it was taken for",
        partial(confusion, found.confusion.numpy(), source.labels),
    )
    if len(source.shape) != 3 or source.shape[0] != 1:
        return
    wrong, titles = most_confident_mistakes(
        predict(trained, source.test), source.test, source.labels
    )
    if titles:
        shown = as_float(source.test.take(wrong).features)[:, 0]
        yield Picture(
            f"{name}-mistakes",
            "The most confident mistakes: what it is → what it was taken for, and how surely",
            partial(figures.mistakes, shown.numpy(), titles),
        )
    first = next(trained.model.parameters()).detach()
    height, width = source.shape[1:]
    yield Picture(
        f"{name}-weights",
        f"Weights of the first layer, {min(UNITS, len(first))} of {len(first)} units: "
        "red pixels excite, blue ones inhibit",
        partial(figures.first_layer, first[:UNITS].float().view(-1, height, width).numpy()),
    )
    seen = augmented_samples(trained.config, source)
    if seen is not None:
        yield Picture(
            f"{name}-augmented",
            "What augmentation does: each row a sample, first as it is",
            partial(figures.augmented, seen[:, :, 0].numpy()),
        )


def augmented_samples(config: Config, source: Source) -> torch.Tensor | None:
    """The training set's first samples, each as it is and then as augmentation may change it,
    (SEEN, 1 + SEEN, C, H, W); None where nothing is on."""
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
    """Indices of the samples whose wrong class got the highest probability, the surest first,
    and for each `label → predicted, probability`."""
    probabilities, predicted = logits.double().softmax(-1).max(-1)
    wrong = (predicted != split.labels).nonzero().squeeze(1)
    chosen = wrong[probabilities[wrong].argsort(descending=True, stable=True)[:most]]
    titles = [
        f"{labels[int(split.labels[i])]} → {labels[int(predicted[i])]}, {probabilities[i]:.0%}"
        for i in chosen.tolist()
    ]
    return chosen, titles
