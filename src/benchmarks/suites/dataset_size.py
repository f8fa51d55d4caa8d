"""An epoch by the number of training samples."""

from functools import partial

from src.benchmarks.questions import SMALL, answer, by_size, epoch
from src.benchmarks.settings import Settings


def run(settings: Settings) -> tuple[str, str]:
    question = by_size(
        "training samples, 784-32-10",
        (1_000, 10_000, 100_000),
        lambda size: partial(epoch, *SMALL, samples=size),
    )
    return answer(settings, question)
