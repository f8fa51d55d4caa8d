"""The cost of checkpoints: 784-32-10 without checkpoints, with the default number, and with one a
second or an epoch."""

import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from lightning.pytorch import Trainer

from benchmarks.measure import epoch_seconds, interleave, ratio, report, spread
from benchmarks.settings import Settings
from kindling.config.compose import compose

EPOCHS = 30
NEVER = ("checkpoint.every_n_epochs=1000", "checkpoint.every_seconds=null")
CONTENDERS = {
    "none": NEVER,
    "every second": (*NEVER, "checkpoint.every_seconds=1"),
    "default": ("checkpoint.every_seconds=null",),
    "every epoch": ("checkpoint.every_n_epochs=1", "checkpoint.every_seconds=null"),
}


def run(settings: Settings) -> tuple[str, str]:
    """The ratio `write/second` is the share of the time that a checkpoint every second takes."""
    writes: list[float] = []
    contenders = {
        name: _epoch(settings.data, overrides, writes) for name, overrides in CONTENDERS.items()
    }
    seconds = interleave(contenders, settings.rounds)
    seconds["one write"] = writes
    ratios = {
        **{f"{name}/none": ratio(seconds, name, "none") for name in CONTENDERS if name != "none"},
        "write/second": spread(writes),
    }
    return report("checkpoints", seconds, ratios, data=settings.data, epochs=EPOCHS)


def _epoch(data: str, overrides: tuple[str, ...], writes: list[float]) -> Callable[[], float]:
    config = compose(
        f"data={data}", "trainer.accelerator=cpu", f"trainer.max_epochs={EPOCHS}", *overrides
    )

    save = Trainer.save_checkpoint

    def timed(*given: Any, **named: Any) -> None:
        """Notes how long training stands still for a checkpoint."""
        began = time.perf_counter()
        save(*given, **named)
        writes.append(time.perf_counter() - began)

    def measure() -> float:
        with patch.object(Trainer, "save_checkpoint", timed):
            return epoch_seconds(config)

    return measure
