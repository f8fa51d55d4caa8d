"""An epoch with and without augmentation, and this project's augmentation against torchvision's."""

import time
from collections.abc import Callable
from functools import partial

import torch
from torchvision.transforms import v2

from benchmarks.products import BATCH
from benchmarks.questions import LARGE, SMALL, Question, answer, devices, epoch, on
from benchmarks.settings import Settings
from kindling.config.compose import compose
from kindling.data.augmentation import Augmentation
from kindling.data.loader import Block

SAMPLES = 5000  # of an epoch


def run(settings: Settings) -> tuple[str, str]:
    """All changes but the flip are on. Torchvision's transforms are applied to each sample, or to a
    whole batch, whose samples then all change alike."""
    contenders: dict[str, Callable[[], float]] = {}
    ratios: dict[str, tuple[str, str]] = {}
    networks = {"784-32-10": SMALL, "784-1024-1024-10": LARGE}
    for device in devices(settings.accelerators):
        for name, overrides in networks.items():
            for choice in ("none", "digits"):
                contenders[f"{choice}, {name}, {device}"] = partial(
                    epoch, on(device), "data.shape=[1,28,28]", f"augmentation={choice}",
                    *overrides, samples=SAMPLES,
                )  # fmt: skip
            both = (f"digits, {name}, {device}", f"none, {name}, {device}")
            ratios[f"digits/none, {name}, {device}"] = both
        ours = f"alone, {device}"
        contenders[ours] = augmenting("ours", device)
        for way in ("sample", "batch"):
            contenders[f"torchvision by {way}, {device}"] = augmenting(way, device)
            ratios[f"torchvision by {way}/ours, {device}"] = (
                f"torchvision by {way}, {device}",
                ours,
            )
    return answer(settings, Question(f"augmentation of {SAMPLES:,} samples", contenders, ratios))


def augmenting(way: str, device: str) -> Callable[[], float]:
    """Times the augmentation of an epoch: by this project (`ours`), or by torchvision's transforms
    of the same strengths for each `sample` (measured on one batch) or each `batch`."""
    config = compose("augmentation=digits").augmentation
    ours = Augmentation(config, (1, 28, 28), [0], BATCH)
    theirs = v2.Compose([
        v2.RandomAffine(
            config.rotate, (config.shift / 28,) * 2, (1 - config.scale, 1 + config.scale),
            config.shear,
        ),
        v2.ElasticTransform(37.0, config.elastic_sigma),
    ])  # fmt: skip
    pictures = torch.rand(BATCH, 1, 28, 28, device=device)
    labels = torch.zeros(1, 1, BATCH, dtype=torch.long, device=device)
    batches = 1 if way == "sample" else SAMPLES // BATCH

    def epoch() -> float:
        began = time.perf_counter()
        for number in range(batches):
            if way == "ours":
                ours(Block(pictures[None, None].clone(), labels), 0, number)
            elif way == "batch":
                theirs(pictures)
            else:
                torch.stack([theirs(picture) for picture in pictures])
        pictures[0, 0, 0, 0].item()  # waits for the device
        return (time.perf_counter() - began) * SAMPLES / (batches * BATCH)

    return epoch
