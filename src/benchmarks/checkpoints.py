"""What checkpoints cost: 784-32-10 without them, with one a second, with one an epoch."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer

from src.benchmarks.measure import Spread, interleave, quiet, ratio, report
from src.config import compose as composition
from src.training.fit import fit

EPOCHS = 30
NEVER = ("checkpoint.every_n_epochs=1000", "checkpoint.every_seconds=null")
CONTENDERS = {
    "none": NEVER,
    "every second": (*NEVER, "checkpoint.every_seconds=1"),
    "every epoch": ("checkpoint.every_n_epochs=1", "checkpoint.every_seconds=null"),
}


@contextmanager
def _timed_writes(seconds: list[float]) -> Iterator[None]:
    """Notes how long training stands still for each checkpoint."""
    save = Trainer.save_checkpoint

    def timed(self: Trainer, *given: Any, **named: Any) -> None:
        began = time.perf_counter()
        save(self, *given, **named)
        seconds.append(time.perf_counter() - began)

    Trainer.save_checkpoint = timed  # type: ignore[method-assign]
    try:
        yield
    finally:
        Trainer.save_checkpoint = save  # type: ignore[method-assign]


def _epoch(data: str, overrides: tuple[str, ...], writes: list[float]) -> Callable[[], float]:
    """Seconds per epoch by the run's own history, the first left out."""
    config = composition.compose(
        f"data={data}", "trainer.accelerator=cpu", f"trainer.max_epochs={EPOCHS}", *overrides
    )

    def measure() -> float:
        with quiet(), tempfile.TemporaryDirectory() as folder, _timed_writes(writes):
            rows = fit(config, Path(folder)).history
        return (float(rows[-1]["seconds"] or 0) - float(rows[1]["seconds"] or 0)) / (EPOCHS - 1)

    return measure


def run(rounds: int, data: str) -> tuple[str, str]:
    """`write/second` is the share of the time that a checkpoint every second takes."""
    writes: list[float] = []
    seconds = interleave(
        {name: _epoch(data, overrides, writes) for name, overrides in CONTENDERS.items()}, rounds
    )
    seconds["one write"] = writes
    ratios = {
        "every second/none": ratio(seconds, "every second", "none"),
        "every epoch/none": ratio(seconds, "every epoch", "none"),
        "write/second": Spread.of(writes),
    }
    return report("checkpoints", seconds, ratios, data=data, epochs=EPOCHS)
