"""The reliability diagram: how often a model is right, by its confidence."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from src.plots.style import COLOURS, FAINT


def reliability(
    counts: Sequence[int], confidence: Sequence[float], accuracy: Sequence[float]
) -> Figure:
    """Equal bins of confidence from 0 to 1: a bar for the accuracy in each bin that has samples, a
    dot at the mean confidence and accuracy, and below the share of samples. On the diagonal,
    accuracy and confidence are equal."""
    figure = Figure(figsize=(4.4, 4.8), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    places = (np.arange(len(counts)) + 0.5) / len(counts)
    held = np.asarray(counts) > 0
    known, width = np.asarray(accuracy)[held], 0.9 / len(counts)
    above.plot([0, 1], [0, 1], ":", color=FAINT, lw=1.2)
    above.bar(places[held], known, width, color=COLOURS[0], alpha=0.35)
    above.plot(np.asarray(confidence)[held], known, "o", color=COLOURS[1], ms=4, clip_on=False)
    above.set(ylabel="accuracy", xlim=(0, 1), ylim=(0, 1))
    below.bar(places, np.asarray(counts) / max(1, sum(counts)), width, color=FAINT)
    below.set(xlabel="confidence: the highest probability", ylabel="samples")
    for axis in (above, below):
        axis.grid(axis="y")
        axis.set_axisbelow(True)
        axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    below.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    return figure
