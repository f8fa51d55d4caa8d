"""An epoch by one size: samples per batch, training samples, or hidden units.

Of `hidden_size` the matrix products are measured alone too: a device that only multiplies faster
saves at most their part. On the CPU, the training steps are measured alone as well, and the table
gives the share of the peak.
"""

from collections.abc import Callable
from functools import partial

from benchmarks.peak import operations
from benchmarks.products import CLASSES, products
from benchmarks.questions import SMALL, Question, answer, devices, epoch, on, random_data
from benchmarks.settings import Settings
from benchmarks.stacks import ON_CPU, configure, stack

SAMPLES = 5000  # of the suite `hidden_size`
AXES: dict[str, tuple[str, tuple[int, ...]]] = {
    "batch_size": ("samples per batch, 784-32-10", (32, 128, 512, 2048)),
    "dataset_size": ("training samples, 784-32-10", (1_000, 10_000, 100_000)),
    "hidden_size": ("hidden units, 784-n-10", (32, 128, 512, 2048)),
}


def run(settings: Settings) -> tuple[str, str]:
    axis, sizes = AXES[settings.suite]
    contenders = {
        f"{size} on {device}": _measure(settings.suite, size, on(device))
        for device in devices(settings.accelerators)
        for size in sizes
    }
    first, last = sizes[0], sizes[-1]
    ratios = {
        f"{last}/{first} on {device}": (f"{last} on {device}", f"{first} on {device}")
        for device in devices(settings.accelerators)
    }
    needed: dict[str, int] = {}
    if settings.suite == "hidden_size":
        for size in sizes if "cpu" in devices(settings.accelerators) else ():
            config, data = configure(ON_CPU, *random_data(SAMPLES), f"model.hidden_sizes=[{size}]")
            whole, steps = f"{size} on cpu", f"{size} on cpu, steps alone"
            contenders[steps] = stack(data, [config], loading=False).train
            needed |= dict.fromkeys(
                (whole, steps), operations((784, size, CLASSES), len(data.train))
            )
        for device in devices(settings.accelerators):
            for size in sizes:
                whole, part = f"{size} on {device}", f"{size} on {device}, products alone"
                contenders[part] = products(SAMPLES, hidden=size, device=device)
                ratios[f"whole/products, {whole}"] = (whole, part)
    return answer(settings, Question(axis, contenders, ratios, numeric=True, operations=needed))


def _measure(suite: str, size: int, device: str) -> Callable[[], float]:
    if suite == "batch_size":
        return partial(epoch, device, *SMALL, f"data.batch_size={size}")
    if suite == "dataset_size":
        return partial(epoch, device, *SMALL, samples=size)
    return partial(epoch, device, f"model.hidden_sizes=[{size}]", samples=SAMPLES)
