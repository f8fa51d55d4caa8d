"""The cost of a trial in a sweep: steps of stacks of growing size, and whole commands."""

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median

from matplotlib.figure import Figure

from benchmarks.contenders import bare
from benchmarks.measure import Seconds, Spread, few_ticks, interleave, ratio, report, time_command
from benchmarks.peak import large_products, operations, take_peak
from benchmarks.products import BATCH, CLASSES, HIDDEN, products
from benchmarks.settings import Settings
from benchmarks.stacks import ON_CPU, configure, stack, trials
from kindling.config.schema import Config
from kindling.data.module import DataModule
from kindling.data.sources.source import as_float
from kindling.plots.style import COLOURS, FAINT, save_png
from kindling.system import machine

PICTURE = Path("sweep.png")
WIDTHS, RATE_COUNT = (4, 8, 16, 32), 16  # 4 widths and 16 learning rates: 64 trials of a command
EPOCHS = 3
# A stack too large for all samples: an epoch of 64 trials is measured on the same part of them.
MANY, PART = 1000, 0.05


def run(settings: Settings) -> tuple[str, str]:
    """Times stacks, as users get them, against a plain torch loop (`bare`) and matrix products
    alone (`products`). The trials of `fused` share their batches, those of `fused_own_seeds` do
    not. Writes sweep.png."""
    machine.keep_freed_memory()
    config, data = configure(ON_CPU, f"data={settings.data}")
    part_config, part = configure(ON_CPU, f"data={settings.data}", f"data.val_fraction={1 - PART}")
    source, train = data.source, data.train
    sizes = [1, 4, 16, 64, *([256] if settings.full else [])]
    contenders: dict[str, Callable[[], float]] = {
        "bare": bare(as_float(train.features).flatten(1), train.labels).train
    }
    for size in sizes:
        contenders[f"products@{size}"] = products(len(train), trials=size)
        contenders[f"fused@{size}"] = fused(config, data, [0] * size)
        contenders[f"fused_own_seeds@{size}"] = fused(config, data, list(range(size)))
    few, many = (f"fused@{size}, {len(part.train)} samples" for size in (64, MANY))
    contenders[few] = fused(part_config, part, [0] * 64)
    contenders[many] = fused(part_config, part, [0] * MANY)
    seconds = interleave({**contenders, **large_products()}, settings.rounds)
    peak = take_peak(seconds)
    ratios = {
        "bare*64/fused@64": _times(64, ratio(seconds, "bare", "fused@64")),
        "fused/products@64": ratio(seconds, "fused@64", "products@64"),
        "fused_own_seeds/fused@64": ratio(seconds, "fused_own_seeds@64", "fused@64"),
        f"a trial of {MANY:,}/of 64": _times(64 / MANY, ratio(seconds, many, few)),
    }
    needed = operations((784, HIDDEN, CLASSES), len(train))
    for kind, size in product(("fused", "fused_own_seeds"), sizes):
        name = f"{kind}@{size}"
        ratios[f"share of the peak, {name}"] = peak.share(size * needed, seconds[name])
    if settings.commands:
        of_commands = interleave_commands(settings.rounds, settings.data)
        ratios["basic/fused"] = ratio(of_commands, "basic", "fused")
        ratios["joblib/fused"] = ratio(of_commands, "joblib", "fused")
        seconds |= {f"command {name}": values for name, values in of_commands.items()}
    save_png(partial(draw, seconds, sizes), PICTURE)
    note = (
        f"seconds per epoch of 784-32-10, {len(train)} samples of {source.name}, batch {BATCH}; "
        f"commands: seconds of 64 trials, {EPOCHS} epochs each, start-up and folders included; "
        f"{settings.rounds} rounds\npicture: {PICTURE}\n{peak}"
    )
    table, line = report(
        "sweep", seconds, ratios, data=source.name, instead_of=source.instead_of,
        peak=peak._asdict(),
    )  # fmt: skip
    return f"{note}\n\n{table}", line


def _times(factor: float, spread: Spread) -> Spread:
    return Spread(*(factor * each for each in spread))


def fused(config: Config, data: DataModule, seeds: Sequence[int]) -> Callable[[], float]:
    """Times an epoch of a stack with one trial per seed: loading batches and steps."""
    rates = [0.05 + 0.4 * trial / len(seeds) for trial in range(len(seeds))]
    return stack(data, trials(config, rates, seeds)).train


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
