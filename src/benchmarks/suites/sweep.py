"""The cost of a trial in a sweep: steps of stacks of growing size, and whole commands."""

import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import torch
from matplotlib.figure import Figure
from torch import nn

from src.benchmarks.measure import (
    Seconds,
    Spread,
    few_ticks,
    interleave,
    ratio,
    report,
    time_command,
)
from src.benchmarks.products import BATCH, CLASSES, HIDDEN, products
from src.benchmarks.settings import Settings
from src.benchmarks.suites.loops import bare
from src.config import schema
from src.config.compose import compose
from src.data.loader import BlockSampler, ResidentLoader, SeededOrder, batches_per_block
from src.data.sources.catalogue import open_source
from src.data.sources.source import Split, as_float, split_off_validation
from src.models.mlp import Mlp
from src.models.stack import Stack
from src.plots.style import COLOURS, FAINT, save_png
from src.system import machine
from src.training.lanes import Lanes, available, threads_for
from src.training.optimizers import build_stacked_optimizer
from src.training.schedule import Schedule
from src.training.steps import ClosedFormSteps, StepPlan

PICTURE = Path("sweep.png")
WIDTHS, RATE_COUNT = (4, 8, 16, 32), 16  # 4 widths and 16 learning rates: 64 trials of a command
EPOCHS = 3


def run(settings: Settings) -> tuple[str, str]:
    """Times stacks against a plain torch loop (`bare`) and matrix products alone (`products`). The
    trials of `fused` share their batches, those of `fused_own_seeds` do not. Writes sweep.png."""
    machine.keep_freed_memory()
    config = compose(f"data={settings.data}").data
    source = open_source(config)
    train, _ = split_off_validation(source.train, config.val_fraction, config.split_seed)
    sizes = [1, 4, 16, 64, *([256] if settings.full else [])]
    contenders: dict[str, Callable[[], float]] = {
        "bare": bare(as_float(train.features).flatten(1), train.labels)
    }
    for size in sizes:
        contenders[f"products@{size}"] = products(len(train), trials=size)
        contenders[f"fused@{size}"] = fused(train, [0] * size)
        contenders[f"fused_own_seeds@{size}"] = fused(train, list(range(size)))
    seconds = interleave(contenders, settings.rounds)
    ratios = {
        "bare*64/fused@64": Spread(*(64 * each for each in ratio(seconds, "bare", "fused@64"))),
        "fused/products@64": ratio(seconds, "fused@64", "products@64"),
        "fused_own_seeds/fused@64": ratio(seconds, "fused_own_seeds@64", "fused@64"),
    }
    if settings.commands:
        of_commands = interleave_commands(settings.rounds, settings.data)
        ratios["basic/fused"] = ratio(of_commands, "basic", "fused")
        ratios["joblib/fused"] = ratio(of_commands, "joblib", "fused")
        seconds |= {f"command {name}": values for name, values in of_commands.items()}
    save_png(partial(draw, seconds, sizes), PICTURE)
    note = (
        f"seconds per epoch of 784-32-10, {len(train)} samples of {source.name}, batch {BATCH}; "
        f"commands: seconds of 64 trials, {EPOCHS} epochs each, start-up and folders included; "
        f"{settings.rounds} rounds\npicture: {PICTURE}"
    )
    table, line = report("sweep", seconds, ratios, data=source.name, instead_of=source.instead_of)
    return f"{note}\n\n{table}", line


def fused(train: Split, seeds: Sequence[int]) -> Callable[[], float]:
    """Times an epoch of a stack of 784-32-10, one trial per seed: gathering batches and steps."""
    distinct = list(dict.fromkeys(seeds))
    models: list[nn.Module] = [Mlp(784, [HIDDEN], CLASSES) for _ in seeds]
    threads = threads_for(models, BATCH, available())
    stack = Stack(models, [distinct.index(seed) for seed in seeds], threads)
    lanes = Lanes(threads)
    rates = [0.05 + 0.4 * trial / len(seeds) for trial in range(len(seeds))]
    sgd = [
        schema.Sgd(name="sgd", lr=rate, weight_decay=0.0, momentum=0.0, nesterov=False)
        for rate in rates
    ]
    cpu = torch.device("cpu")
    # As DataModule computes it: the features and the logits of a batch, as float32.
    batch_bytes = 4 * BATCH * (784 * len(distinct) + CLASSES * len(seeds))
    orders = [SeededOrder(seed) for seed in distinct]
    sampler = BlockSampler(len(train), orders, BATCH, batches_per_block(batch_bytes, cpu))
    loader = ResidentLoader(train, sampler, cpu)
    none = schema.NoScheduler(name="none", warmup_epochs=0.0)
    schedules = [Schedule(none, rate, 100, sampler.batches) for rate in rates]
    optimizer = build_stacked_optimizer(sgd, stack)
    steps = ClosedFormSteps(stack, optimizer, schedules, StepPlan(sampler.batches), lanes=lanes)

    def epoch() -> float:
        with lanes.running():
            began, batch = time.perf_counter(), 0
            for block in loader:
                steps(block, 0, batch)
                batch += len(block.labels)
            return time.perf_counter() - began

    return epoch


def interleave_commands(rounds: int, data: str) -> Seconds:
    """Seconds of the command that trains the same 64 trials, for each launcher."""
    rates = ",".join(f"{0.03 * 1.2**k:.3f}" for k in range(RATE_COUNT))
    overrides = (
        f"model.hidden_sizes={','.join(map(str, WIDTHS))}", f"optimizer.lr={rates}",
        f"trainer.max_epochs={EPOCHS}", f"data={data}", "trainer=cpu",
    )  # fmt: skip
    launchers = {
        "fused": ["hydra/launcher=fused"],
        "basic": ["hydra/launcher=basic"],
        "joblib": ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"],
    }

    def time_launcher(*launcher: str) -> float:
        with tempfile.TemporaryDirectory() as folder:
            return time_command(Path(folder), "src.train", "-m", *launcher, *overrides)

    contenders = {name: partial(time_launcher, *texts) for name, texts in launchers.items()}
    return interleave(contenders, rounds, warm_up=False)


def draw(seconds: Seconds, sizes: Sequence[int]) -> Figure:
    """Seconds per trial by the number of trials, on logarithmic axes."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axis = figure.subplots()
    lines = {
        "fused, shared batches": "fused@",
        "fused, own seeds": "fused_own_seeds@",
        "matrix products alone": "products@",
    }
    for colour, (label, prefix) in zip(COLOURS, lines.items(), strict=False):
        values = [median(seconds[f"{prefix}{size}"]) / size for size in sizes]
        axis.plot(sizes, values, "o-", color=colour, label=label)
    axis.axhline(median(seconds["bare"]), ls="--", color=FAINT, label="bare torch loop")
    axis.set(xscale="log", yscale="log", title="784-32-10, batch 100")
    axis.set(xlabel="trials trained together", ylabel="seconds per epoch and trial")
    axis.set_xticks(sizes, [str(size) for size in sizes])
    few_ticks(axis)
    axis.grid()
    axis.legend(loc="upper right", bbox_to_anchor=(1, 0.92))
    return figure
