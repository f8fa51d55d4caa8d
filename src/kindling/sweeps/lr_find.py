"""A learning-rate range test: many rates train as one stack, and the loss tells which are good.

Smith, "Cyclical Learning Rates for Training Neural Networks" (2017), raises the rate within one
run. Here each rate begins anew, which a stack makes cheap, and no rate sees weights that another
one has spoilt.
"""

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from kindling.config.overrides import key_of
from kindling.config.registry import is_lightning
from kindling.config.schema import MAX_EPOCHS
from kindling.plots.style import COLOURS, FAINT, save_png
from kindling.records.folder import RANGE_TEST, Run
from kindling.records.lookup import timestamped
from kindling.records.outcome import format_metric
from kindling.sweeps.run_command import checked_sweep, train_sweep
from kindling.system.errors import InputError
from kindling.system.files import write_into_folder

NEAR = 1.05  # of the lowest loss
OWN = ("optimizer.lr", "scheduler", "trainer.max_epochs", "checkpoint.keep", "resume")
MOST_RATES = 1000


@dataclass(frozen=True)
class Point:
    """A rate, and its validation loss after the last epoch; None if it diverged."""

    rate: float
    loss: float | None


@dataclass(frozen=True)
class Found:
    """The points by ascending rate. `untrained` is the validation loss before training."""

    points: Sequence[Point]
    untrained: float
    epochs: int
    folder: Path

    @cached_property
    def best(self) -> Point:
        return min(self.points, key=lambda point: math.inf if point.loss is None else point.loss)

    @property
    def near(self) -> tuple[float, float]:
        """The lowest and the highest rate of those around the best whose loss is at most NEAR times
        the lowest one."""
        place = self.points.index(self.best)
        below = itertools.takewhile(self._is_near, reversed(self.points[:place]))
        above = itertools.takewhile(self._is_near, self.points[place + 1 :])
        rates = [point.rate for point in (self.best, *below, *above)]
        return min(rates), max(rates)

    def _is_near(self, point: Point) -> bool:
        lowest = self.best.loss
        return point.loss is not None and lowest is not None and point.loss <= NEAR * lowest


def lr_find(
    overrides: Sequence[str],
    lowest: float = 1e-4,
    highest: float = 10.0,
    count: int = 32,
    epochs: int = 1,
) -> Found:
    """Trains `count` rates from `lowest` to `highest` in equal ratios, each for so many epochs at a
    constant rate. The overrides are those of a single run. Writes the picture lr_find.png into the
    folder of the sweep. Raises InputError for other overrides and numbers, and when no rate gave a
    loss."""
    faults = [
        f"{text}: lr_find sets this key itself; leave it out"
        for text in overrides
        if key_of(text) in OWN or key_of(text).startswith("scheduler.")
    ]
    if not 1e-12 <= lowest < highest <= 1e12:
        faults.append(f"--from {lowest:g} --to {highest:g}: must ascend, from 1e-12 to 1e12")
    if not 2 <= count <= MOST_RATES:
        faults.append(f"--rates {count}: must be from 2 to {MOST_RATES:,}")
    if not 1 <= epochs <= MAX_EPOCHS:
        faults.append(f"--epochs {epochs}: must be from 1 to {MAX_EPOCHS:,}")
    if faults:
        raise InputError("\n  ".join(faults))
    rates = [float(f"{rate:.4g}") for rate in np.geomspace(lowest, highest, count)]
    typed = [*overrides, f"trainer.max_epochs={epochs}"]
    swept = ("scheduler=none", "checkpoint.keep=best", f"optimizer.lr={','.join(map(str, rates))}")
    folder = timestamped("sweeps")
    command = checked_sweep([*typed, *swept], folder)
    if is_lightning("model", name := command.points[0].model.name):
        raise InputError(
            f"model={name}: is a LightningModule, which may set its rates itself; sweep its own "
            "key in place of optimizer.lr"
        )
    # Marks the folder from the beginning: no command takes it for a sweep of the user.
    mark = json.dumps([*typed, f"optimizer.lr=interval({lowest:g},{highest:g})"])
    write_into_folder({folder / RANGE_TEST: mark})
    trials = train_sweep(command, folder)
    runs = {int(row["trial"]): Run(row["folder"]) for row in trials}
    failed = next((row["error"] for row in trials if row["status"] == "failed"), None)
    if failed:
        raise InputError(f"{folder}: a trial failed: {failed}")
    points = [Point(rate, _loss(runs[number])) for number, rate in enumerate(rates)]
    untrained = runs[0].history[0]["val/loss"]
    if untrained is None or not math.isfinite(untrained):
        raise InputError(f"{folder}: the loss before training is no finite number; scale the data")
    found = Found(points, untrained, epochs, folder)
    if found.best.loss is None:
        raise InputError(f"{folder}: every rate diverged; type a lower --from")
    save_png(lambda: draw(found), folder / "lr_find.png")
    return found


def _loss(run: Run) -> float | None:
    result = run.result
    loss = result["last"]["val/loss"] if result["status"] == "finished" else None
    return loss if loss is not None and math.isfinite(loss) else None


def draw(found: Found) -> Figure:
    """The loss by the rate; losses far above that before training are cut off."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axis = figure.subplots()
    top = 1.15 * found.untrained
    known = [(point.rate, min(point.loss, top)) for point in found.points if point.loss is not None]
    half = math.sqrt(found.points[1].rate / found.points[0].rate)  # to the middle between points
    low, high = found.near
    near = "within 5% of the lowest"
    axis.axvspan(low / half, high * half, color=COLOURS[2], alpha=0.15, lw=0, label=near)
    axis.plot(*np.array(known).T, "o-", ms=4, color=COLOURS[0])
    best, lowest = found.best.rate, found.best.loss or 0.0
    axis.plot(
        best, lowest, "o", ms=9, mfc="none", mew=2, color=COLOURS[1],
        label=f"lowest, optimizer.lr={best:g}",
    )  # fmt: skip
    axis.axhline(found.untrained, color=FAINT, ls="--", lw=1, label="before training")
    diverged = [point.rate for point in found.points if point.loss is None]
    if diverged:
        axis.plot(diverged, [top] * len(diverged), "x", color=COLOURS[1], label="diverged")
    epochs = "one epoch" if found.epochs == 1 else f"{found.epochs} epochs"
    axis.set(xscale="log", xlabel="learning rate", ylabel=f"validation loss after {epochs}")
    axis.set_ylim(0, 1.25 * found.untrained)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:g}"))
    axis.grid(alpha=0.5)
    axis.legend()
    return figure


def advice(found: Found) -> str:
    """What to type, and what the losses say."""
    low, high = found.near
    best, loss = found.best, found.best.loss
    lines = [
        f"lowest validation loss: {format_metric('loss', loss)} at optimizer.lr={best.rate:g}; "
        f"before training {format_metric('loss', found.untrained)}",
        f"within 5% of it: optimizer.lr from {low:g} to {high:g}"
        if low < high
        else "no neighbouring rate is within 5% of it; for a finer search, type more --rates",
    ]
    worse = [
        point.rate
        for point in found.points
        if point.rate > best.rate and (point.loss is None or point.loss > found.untrained)
    ]
    if worse:
        lines.append(f"worse than no training: from optimizer.lr={worse[0]:g} on")
    if best in (found.points[0], found.points[-1]):
        end = "--from" if best is found.points[0] else "--to"
        lines.append(f"the best rate is the last one at this end; type another {end}")
    lines.append(f"type optimizer.lr={best.rate:g}; picture: {found.folder / 'lr_find.png'}")
    return "\n".join(lines)
