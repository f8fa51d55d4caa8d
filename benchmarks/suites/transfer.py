"""An epoch by the way of the data to the device: resident, or through workers."""

import time
from collections.abc import Callable
from functools import partial

import torch

from benchmarks.products import BATCH
from benchmarks.questions import SMALL, Question, answer, devices, epoch, on
from benchmarks.settings import Settings
from kindling.data.loader import BlockSampler, ResidentLoader, SeededOrder, batches_per_block
from kindling.data.sources.source import Split


def run(settings: Settings) -> tuple[str, str]:
    contenders: dict[str, Callable[[], float]] = {}
    for device in devices(settings.accelerators):
        ways = {"resident": ("data.loader=resident",)}
        for workers in (0, 1, 2, 4):
            kept = ("data.persistent_workers=true",) if workers else ()
            base = ("data.loader=workers", f"data.num_workers={workers}", *kept)
            ways[f"{workers} workers, pageable"] = base
            if device == "cuda":
                ways[f"{workers} workers, pinned, non-blocking"] = (*base, "data.pin_memory=true")
        for name, overrides in ways.items():
            contenders[f"{name}, {device}"] = partial(epoch, on(device), *SMALL, *overrides)
    ratios = {
        f"{name}/resident": (name, f"resident, {name.rpartition(' ')[2]}")
        for name in contenders
        if not name.startswith("resident")
    }
    for device in devices(settings.accelerators):
        for name, dtype in (("bytes", torch.uint8), ("floats", torch.float32)):
            contenders[f"blocks from {name} alone, {device}"] = gathering(dtype, device)
        ratios[f"bytes/floats, {device}"] = (
            f"blocks from bytes alone, {device}",
            f"blocks from floats alone, {device}",
        )
    return answer(settings, Question("way to the device, 784-32-10", contenders, ratios))


def gathering(dtype: torch.dtype, device: str) -> Callable[[], float]:
    """Times gathering the blocks of an epoch from data of this type on the device."""
    samples = 20_000
    split = Split(torch.ones(samples, 784, dtype=dtype), torch.zeros(samples, dtype=torch.long))
    where = torch.device(device)
    size = batches_per_block(BATCH * 784 * 4, where)
    loader = ResidentLoader(split, BlockSampler(samples, [SeededOrder(0)], BATCH, size), where)

    def epoch() -> float:
        began = time.perf_counter()
        for block in loader:
            last = block.features
        last[0, 0, 0, 0].item()  # waits for the device
        return time.perf_counter() - began

    return epoch
