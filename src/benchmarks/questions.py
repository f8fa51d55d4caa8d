"""The tutorials' questions, each answered by whole runs on every device that there is.

How long does an epoch take, by device, precision, batch size, hidden size, size of the data set,
way of the data to the device, augmentation, number of ranks, and kind of step?
"""

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import matplotlib as mpl
import torch
from torchvision.transforms import v2

from src.benchmarks.measure import Seconds, Spread, few_ticks, interleave, quiet, ratio, report
from src.benchmarks.products import BATCH, products
from src.config import compose as composition
from src.data.augmentation import Augmentation
from src.data.loader import Block, BlockSampler, ResidentLoader, SeededOrder, batches_per_block
from src.data.sources.source import Split
from src.system import machine
from src.system.files import replacing
from src.training.fit import fit

SMALL = ("model.hidden_sizes=[32]", "optimizer.lr=0.1")
# Large enough for its arithmetic to count, small enough for a CPU.
LARGE = ("model.hidden_sizes=[1024,1024]", "optimizer.lr=0.01")
SAMPLES = 5000  # of an epoch with augmentation
TUTORIAL = (  # the GPU guide's own network
    "model.hidden_sizes=[512,256]", "model.dropout=0.2", "optimizer=adam", "optimizer.lr=0.001",
    "data.batch_size=64",
)  # fmt: skip


@dataclass(frozen=True)
class Question:
    """Contenders by the label that stands in table and picture, and what is compared."""

    axis: str
    contenders: Mapping[str, Callable[[], float]]
    ratios: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    unit: str = "seconds per epoch"
    numeric: bool = False  # labels are `number on device`


def devices() -> list[str]:
    found = ["cpu"]
    found += ["cuda"] if torch.cuda.is_available() else []
    found += ["mps"] if torch.backends.mps.is_available() else []
    return found


def epoch(*overrides: str, samples: int = 20_000, epochs: int = 3, threads: int = 0) -> float:
    """Seconds per epoch of a run, by its own history; the first epoch is its warm-up."""
    config = composition.compose(
        "data=synthetic", f"data.samples={samples}", "data.test_samples=100", "data.shape=[784]",
        "data.val_fraction=0.01", "scheduler=none", f"trainer.max_epochs={epochs + 1}",
        "checkpoint.every_n_epochs=1000", *overrides,
    )  # fmt: skip
    before = torch.get_num_threads()
    if threads:
        torch.set_num_threads(threads)
    try:
        with quiet(), tempfile.TemporaryDirectory() as folder:
            rows = fit(config, Path(folder)).history
    finally:
        torch.set_num_threads(before)
    return (float(rows[-1]["seconds"] or 0) - float(rows[1]["seconds"] or 0)) / epochs


def _on(device: str) -> str:
    return f"trainer.accelerator={device}"


def _devices() -> Question:
    networks = {"784-32-10": SMALL, "784-512-256-10": TUTORIAL, "784-1024-1024-10": LARGE}
    contenders = {
        f"{name} on {device}": partial(epoch, _on(device), *overrides)
        for name, overrides in networks.items()
        for device in devices()
    }
    ratios = {
        f"cpu/{device}, {name}": (f"{name} on cpu", f"{name} on {device}")
        for name in networks
        for device in devices()[1:]
    }
    return Question("network and device", contenders, ratios)


def _precision() -> Question:
    contenders, ratios = {}, {}
    for device in devices():
        kinds = {"cpu": ("32", "64", "bf16-mixed"), "mps": ("32", "16-mixed")}.get(
            device, ("32", "64", "bf16-mixed", "16-mixed")
        )
        for kind in kinds:
            name = f"{kind} on {device}"
            contenders[name] = partial(
                epoch, _on(device), f"trainer.precision={kind}", *LARGE, samples=5000
            )
            if kind != "32":
                ratios[f"32/{name}"] = (f"32 on {device}", name)
    return Question("precision, 784-1024-1024-10", contenders, ratios)


def _sizes(
    axis: str, sizes: tuple[int, ...], measure: Callable[[int], Callable[..., float]]
) -> Question:
    """`measure(size)` is an epoch that lacks its device alone."""
    contenders = {
        f"{size} on {device}": partial(measure(size), _on(device))
        for device in devices()
        for size in sizes
    }
    first, last = sizes[0], sizes[-1]
    ratios = {
        f"{last}/{first} on {device}": (f"{last} on {device}", f"{first} on {device}")
        for device in devices()
    }
    return Question(axis, contenders, ratios, numeric=True)


def _hidden_size() -> Question:
    """And what of it is arithmetic: a device that only multiplies faster saves no more."""
    sizes, samples = (32, 128, 512, 2048), 5000
    question = _sizes(
        "hidden units, 784-n-10",
        sizes,
        lambda size: partial(epoch, f"model.hidden_sizes=[{size}]", samples=samples),
    )
    contenders, ratios = dict(question.contenders), dict(question.ratios)
    for device in devices():
        for size in sizes:
            whole, part = f"{size} on {device}", f"{size} on {device}, products alone"
            contenders[part] = products(samples, hidden=size, device=device)
            ratios[f"whole/products, {whole}"] = (whole, part)
    return replace(question, contenders=contenders, ratios=ratios)


def _transfer() -> Question:
    contenders: dict[str, Callable[[], float]] = {}
    for device in devices():
        ways = {"resident": ("data.loader=resident",)}
        for workers in (0, 1, 2, 4):
            kept = ("data.persistent_workers=true",) if workers else ()
            base = ("data.loader=workers", f"data.num_workers={workers}", *kept)
            ways[f"{workers} workers, pageable"] = base
            if device == "cuda":
                ways[f"{workers} workers, pinned, non-blocking"] = (*base, "data.pin_memory=true")
        for name, overrides in ways.items():
            contenders[f"{name}, {device}"] = partial(epoch, _on(device), *SMALL, *overrides)
    ratios = {
        f"{name}/resident": (name, f"resident, {name.rpartition(' ')[2]}")
        for name in contenders
        if not name.startswith("resident")
    }
    for device in devices():
        for name, dtype in (("bytes", torch.uint8), ("floats", torch.float32)):
            contenders[f"blocks from {name} alone, {device}"] = gathering(dtype, device)
        ratios[f"bytes/floats, {device}"] = (
            f"blocks from bytes alone, {device}",
            f"blocks from floats alone, {device}",
        )
    return Question("way to the device, 784-32-10", contenders, ratios)


def gathering(dtype: torch.dtype, device: str, samples: int = 20_000) -> Callable[[], float]:
    """Seconds in which an epoch's blocks are gathered from data of this type on the device."""
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


def _augmentation() -> Question:
    """Everything but the flip is on. Torchvision's own transforms do it sample by sample, or once
    for a whole batch, which then shares one map."""
    contenders: dict[str, Callable[[], float]] = {}
    ratios: dict[str, tuple[str, str]] = {}
    networks = {"784-32-10": SMALL, "784-1024-1024-10": LARGE}
    for device in devices():
        for name, overrides in networks.items():
            for choice in ("none", "digits"):
                contenders[f"{choice}, {name}, {device}"] = partial(
                    epoch, _on(device), "data.shape=[1,28,28]", f"augmentation={choice}",
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
    return Question(f"augmentation of {SAMPLES:,} samples", contenders, ratios)


def augmenting(way: str, device: str) -> Callable[[], float]:
    """Seconds in which an epoch is augmented: by `ours`, or by torchvision's transforms of the
    same strengths, once for each `sample` (measured on one batch of them) or each `batch`."""
    config = composition.compose("augmentation=digits").augmentation
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


RANKS = ("model.hidden_sizes=[2048,2048]", "optimizer.lr=0.01", "trainer.accelerator=cpu")


def _ranks() -> Question:
    """784-2048-2048-10 at batch 512: one rank held to one thread, and two of one thread each."""
    both = ("trainer.devices=2", "trainer.strategy=ddp", "data.batch_size=256")
    samples = 10_240

    def imports() -> float:
        began = time.perf_counter()
        root = Path(__file__).parent.parent.parent
        subprocess.run([sys.executable, "-c", "import src.training.fit"], check=True, cwd=root)
        return time.perf_counter() - began

    def start() -> float:
        """Of a run on two ranks that trains next to nothing, what lies before its training."""
        config = composition.compose(
            "data=toy", "trainer.accelerator=cpu", *both[:2], "trainer.max_epochs=1"
        )
        began = time.perf_counter()
        with quiet(), tempfile.TemporaryDirectory() as folder:
            seconds = fit(config, Path(folder)).result["seconds"]
        trained: float = seconds["fit"] + seconds["test"]
        return time.perf_counter() - began - trained

    contenders: dict[str, Callable[[], float]] = {
        "1 rank": partial(
            epoch, *RANKS, "data.batch_size=512", samples=samples, epochs=2, threads=1
        ),
        "2 ranks": partial(epoch, *RANKS, *both, samples=samples, epochs=2),
        "imports": imports,
        "start of 2 ranks": start,
    }
    ratios = {
        "1 rank/2 ranks": ("1 rank", "2 ranks"),
        "start/imports": ("start of 2 ranks", "imports"),
    }
    return Question("ranks, 784-2048-2048-10, batch 512", contenders, ratios, "seconds")


def _graph() -> Question:
    contenders, ratios = {}, {}
    for device in devices():
        ways = {"autograd": "trainer.step=autograd", "closed_form": "trainer.step=closed_form"}
        if device == "cuda" or any(map(shutil.which, ("c++", "g++", "clang++"))):
            ways["compiled autograd"] = "trainer.compile=true"
        for kind, override in ways.items():
            contenders[f"{kind} on {device}"] = partial(epoch, _on(device), *SMALL, override)
        if device == "cuda":
            eager = "closed_form without graph on cuda"
            contenders[eager] = partial(epoch, _on(device), *SMALL, "trainer.cuda_graph=false")
            ratios["without graph/with graph"] = (eager, "closed_form on cuda")
        for kind in list(ways)[1:]:
            name = f"{kind} on {device}"
            ratios[f"autograd/{name}"] = (f"autograd on {device}", name)
    return Question("kind of step, 784-32-10", contenders, ratios)


QUESTIONS: dict[str, Callable[[], Question]] = {
    "devices": _devices,
    "precision": _precision,
    "batch_size": lambda: _sizes(
        "samples per batch, 784-32-10",
        (32, 128, 512, 2048),
        lambda size: partial(epoch, *SMALL, f"data.batch_size={size}"),
    ),
    "hidden_size": _hidden_size,
    "dataset_size": lambda: _sizes(
        "training samples, 784-32-10",
        (1_000, 10_000, 100_000),
        lambda size: partial(epoch, *SMALL, samples=size),
    ),
    "transfer": _transfer,
    "augmentation": _augmentation,
    "ranks": _ranks,
    "graph": _graph,
}


def run(suite: str, rounds: int) -> tuple[str, str]:
    """The suite's table and JSON line. Writes the picture SUITE.png."""
    machine.keep_freed_memory()
    question = QUESTIONS[suite]()
    seconds = interleave(question.contenders, rounds)
    ratios = {name: ratio(seconds, *pair) for name, pair in question.ratios.items()}
    picture = Path(f"{suite}.png")
    draw(question, seconds, picture)
    table, line = report(suite, seconds, ratios, devices=devices())
    return (
        f"{question.unit} by {question.axis}; {rounds} rounds\npicture: {picture}\n\n{table}",
        line,
    )


def draw(question: Question, seconds: Seconds, path: Path) -> None:
    """Numbers as lines over logarithmic axes, names as bars; whiskers from least to greatest."""
    mpl.use("agg")
    from matplotlib import pyplot as plt

    spreads = {name: Spread.of(values) for name, values in seconds.items()}
    lines: dict[str, list[tuple[int, Spread]]] = {}
    parts = [name.partition(" on ") for name in spreads]
    if question.numeric:
        for (size, _, device), spread in zip(parts, spreads.values(), strict=True):
            lines.setdefault(device, []).append((int(size), spread))
    figure, axis = plt.subplots(
        figsize=(7, 4 if lines else 1.2 + 0.42 * len(spreads)), layout="constrained"
    )
    if lines:
        for device, points in lines.items():
            sizes = [size for size, _ in points]
            medians = [spread.median for _, spread in points]
            low = [spread.median - spread.least for _, spread in points]
            high = [spread.greatest - spread.median for _, spread in points]
            axis.errorbar(sizes, medians, yerr=[low, high], marker="o", capsize=3, label=device)
        axis.set(xscale="log", yscale="log", xlabel=question.axis, ylabel=question.unit)
        axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
        few_ticks(axis)
        axis.legend()
    else:
        names = list(reversed(spreads))
        medians = [spreads[name].median for name in names]
        low = [spreads[name].median - spreads[name].least for name in names]
        high = [spreads[name].greatest - spreads[name].median for name in names]
        bars = axis.barh(names, medians, xerr=[low, high], capsize=3, color="tab:blue")
        axis.bar_label(bars, [f"{value:.3g}" for value in medians], padding=6)
        axis.margins(x=0.15)
        axis.set(xlabel=question.unit, title=question.axis)
    axis.grid(alpha=0.3)
    with replacing(path) as part:
        figure.savefig(part, format="png", dpi=150)
    plt.close(figure)
