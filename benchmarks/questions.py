"""Suites that answer one question about the speed of training, by runs on all devices."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from benchmarks import measure
from benchmarks.measure import Seconds, Spread
from benchmarks.peak import large_products, take_peak
from benchmarks.settings import Settings
from kindling.config.compose import compose
from kindling.plots.style import COLOURS, save_png
from kindling.system import machine

SMALL = ("model.hidden_sizes=[32]", "optimizer.lr=0.1")
# Large enough for the arithmetic to dominate, small enough for a CPU.
LARGE = ("model.hidden_sizes=[1024,1024]", "optimizer.lr=0.01")


@dataclass(frozen=True)
class Question:
    """Contenders by their label in table and picture, and the pairs to compare. The contenders in
    `operations`, with the number of an epoch, are compared with the peak of the CPU."""

    axis: str
    contenders: Mapping[str, Callable[[], float]]
    ratios: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    unit: str = "seconds per epoch"
    numeric: bool = False  # whether the labels are `NUMBER on DEVICE`
    operations: Mapping[str, int] = field(default_factory=dict)


def answer(settings: Settings, question: Question) -> tuple[str, str]:
    """The suite's table and JSON line. Writes the picture SUITE.png."""
    machine.keep_freed_memory()
    of_peak = large_products() if question.operations else {}
    seconds = measure.interleave({**question.contenders, **of_peak}, settings.rounds)
    ratios = {name: measure.ratio(seconds, *pair) for name, pair in question.ratios.items()}
    note = f"{question.unit} by {question.axis}; {settings.rounds} rounds"
    facts: dict[str, Any] = {"devices": devices(settings.accelerators)}
    if question.operations:
        peak = take_peak(seconds)
        note, facts = f"{note}\n{peak}", {**facts, "peak": peak._asdict()}
        for name, number in question.operations.items():
            ratios[f"share of the peak, {name}"] = peak.share(number, seconds[name])
    picture = Path(f"{settings.suite}.png")
    save_png(partial(draw, question, seconds), picture)
    table, line = measure.report(settings.suite, seconds, ratios, **facts)
    return f"{note}\npicture: {picture}\n\n{table}", line


def devices(wanted: Sequence[str] | None = None) -> list[str]:
    """The accelerators of this machine, the CPU first; only those wanted, where some are named."""
    here = [name for name, count in machine.accelerators().items() if count]
    return [name for name in here if wanted is None or name in wanted]


def on(device: str) -> str:
    return f"trainer.accelerator={device}"


def random_data(samples: int) -> tuple[str, ...]:
    """The overrides for random data, of which a hundredth is for validation."""
    return (
        "data=synthetic", f"data.samples={samples}", "data.test_samples=100", "data.shape=[784]",
        "data.val_fraction=0.01",
    )  # fmt: skip


def epoch(*overrides: str, samples: int = 20_000, epochs: int = 3, threads: int = 0) -> float:
    """Seconds per epoch on random data, after a warm-up epoch. With `threads` 0 torch chooses."""
    config = compose(
        *random_data(samples), "scheduler=none", f"trainer.max_epochs={epochs + 1}",
        "checkpoint.every_n_epochs=1000", "trainer.devices=1", *overrides,
    )  # fmt: skip
    with machine.torch_threads(threads or torch.get_num_threads()):
        return measure.epoch_seconds(config)


def draw(question: Question, seconds: Seconds) -> Figure:
    """Numeric contenders as lines on logarithmic axes, others as bars; whiskers from min to max."""
    spreads = {name: measure.spread(values) for name, values in seconds.items()}
    height = 4 if question.numeric else 1.2 + 0.42 * len(spreads)
    figure = Figure(figsize=(7, height), layout="constrained")
    axis = figure.subplots()
    if question.numeric:
        lines: dict[str, dict[int, Spread]] = {}
        for name, spread in spreads.items():
            size, _, device = name.partition(" on ")
            lines.setdefault(device, {})[int(size)] = spread
        for colour, (device, points) in zip(cycle(COLOURS), lines.items(), strict=False):
            medians, whiskers = _whiskers([*points.values()])
            axis.errorbar(
                [*points], medians, yerr=whiskers,
                marker="o", capsize=3, color=colour, label=device,
            )  # fmt: skip
        axis.set(xscale="log", yscale="log", xlabel=question.axis, ylabel=question.unit)
        axis.set_xticks([*points], [f"{size:,}" for size in points])
        measure.few_ticks(axis)
        axis.legend()
    else:
        names = [*reversed(spreads)]
        medians, whiskers = _whiskers([spreads[name] for name in names])
        bars = axis.barh(names, medians, xerr=whiskers, capsize=3, color=COLOURS[0])
        axis.bar_label(bars, [f"{value:.3g}" for value in medians], padding=6)
        axis.margins(x=0.15)
        axis.set(xlabel=question.unit, title=question.axis)
    axis.grid()
    return figure


def _whiskers(spreads: Sequence[Spread]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Medians, and the distances to the least and the greatest values, (2, N)."""
    medians, least, greatest = map(np.array, zip(*spreads, strict=True))
    return medians, [medians - least, greatest - medians]
