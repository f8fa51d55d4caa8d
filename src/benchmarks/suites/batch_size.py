"""An epoch by batch size."""

from functools import partial

from src.benchmarks.questions import SMALL, answer, by_size, epoch
from src.benchmarks.settings import Settings


def run(settings: Settings) -> tuple[str, str]:
    question = by_size(
        "samples per batch, 784-32-10",
        (32, 128, 512, 2048),
        lambda size: partial(epoch, *SMALL, f"data.batch_size={size}"),
    )
    return answer(settings, question)
