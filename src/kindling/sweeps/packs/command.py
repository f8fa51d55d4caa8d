"""From the command line of `python -m src.tables` to a checked pack, without torch."""

import hashlib
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kindling.config.drawn import batch_size, draw_settings
from kindling.config.faults import config_error
from kindling.config.measures import CLASSIFICATION, REGRESSION
from kindling.config.overrides import key_of, override_fault, override_text, parse
from kindling.config.schema import Csv
from kindling.config.written import printable
from kindling.data.tables.columns import is_quantity
from kindling.data.tables.reading import read_table
from kindling.data.tables.table import Table
from kindling.records.folder import MOST_MEMBERS
from kindling.sweeps.command_line import Command
from kindling.sweeps.run_command import checked_sweep
from kindling.system.errors import InputError
from kindling.system.files import sha256
from kindling.system.installation import as_command

NETWORKS = 64
# Networks that train between two lines of progress, for tables with at least so many rows.
BATCHES = {0: 32, 5_000: 16, 50_000: 4}
SHOWN = 15  # names of columns
SETTLED = ("data", "data.path", "data.target", "resume", "hydra.sweep.dir", "hydra/launcher")
LARGEST_SEED = 2**31 - 1


@dataclass(frozen=True)
class CheckedPack:
    """A checked pack, whose networks are the trials of a sweep in `folder`."""

    folder: Path
    sweep: Command
    minutes: float | None
    typed: Sequence[str]  # the arguments that make or continue it
    told: str  # about numbers to predict; "" for texts, and where the task was typed

    @property
    def command(self) -> str:
        return " ".join([as_command("tables"), *map(shlex.quote, self.typed)])


def check_command_line(
    path: Path,
    target: str | None = None,
    overrides: Sequence[str] = (),
    *,
    networks: int = NETWORKS,
    seed: int = 0,
    minutes: float | None = None,
    folder: Path | None = None,
) -> CheckedPack:
    """Raises InputError with all faults: of the numbers, of the overrides, and of the file."""
    faults = []
    if not 2 <= networks <= MOST_MEMBERS:
        faults.append(f"--networks {networks}: must be from 2 to {MOST_MEMBERS}")
    if not 0 <= seed <= LARGEST_SEED:
        faults.append(f"--seed {seed}: must be from 0 to {LARGEST_SEED}")
    if minutes is not None and not 0 < minutes < float("inf"):
        faults.append(f"--minutes {minutes:g}: must be above 0")
    faults += _override_faults(overrides)
    if faults:
        raise config_error(faults)
    table = read_table(path)
    if target is None:
        raise InputError(f"--target: is missing; {path} has {_listed(table.names)}")
    table.require([target], "--target")
    keys = {key_of(text): text for text in overrides}
    texts = [
        "experiment=pack", "data=csv", override_text("data.path", str(path)),
        override_text("data.target", target), "trainer.progress_bar=false",
    ]  # fmt: skip
    task, told = _task_of(table, target)
    if "task" in keys:
        told = ""
    else:
        texts.append(f"task={task}")
    if "data.batch_size" not in keys:
        texts.append(f"data.batch_size={batch_size(len(table.lines))}")
    drawn = {key: drawn for key, drawn in draw_settings(networks, seed).items() if key not in keys}
    if not drawn:
        raise InputError(f"{' '.join(overrides)}: nothing is left to draw; leave seed out")
    texts += [f"{key}=zip({','.join(values)})" for key, values in drawn.items()]
    texts += overrides
    if folder is None:
        identity = [*texts, networks, seed, sha256(path)]
        digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:8]
        name = "".join(each if each.isalnum() else "-" for each in f"{path.stem}-{target}")[:60]
        folder = Path("sweeps", f"{name}-{digest}")
    resumed = ["resume=auto"] if folder.exists() else []
    batch = max((least, size) for least, size in BATCHES.items() if len(table.lines) >= least)[1]
    of_hydra = [f"hydra.sweeper.max_batch_size={batch}", *resumed]
    sweep = checked_sweep([*texts, *of_hydra], folder)
    options = {"--networks": networks, "--seed": seed, "--minutes": minutes}
    typed = [str(path), f"--target={target}", *overrides]  # a name may begin with -
    for option, value in options.items():
        if value is not None and (option, value) not in (("--networks", NETWORKS), ("--seed", 0)):
            typed += [option, f"{value}"]
    return CheckedPack(folder, sweep, minutes, [*typed, f"--folder={folder}"], told)


def _listed(names: Sequence[str]) -> str:
    """The first names and the last: there the column to predict often is."""
    shown = [*map(printable, names)]
    if len(shown) > SHOWN:
        shown = [*shown[: SHOWN - 2], "…", shown[-1]]
    return ", ".join(shown)


def _override_faults(overrides: Sequence[str]) -> list[str]:
    faults: list[str] = []
    for text in overrides:
        override = parse(text, faults)
        key = key_of(text)
        if override is None:
            continue
        if key in SETTLED:
            faults.append(f"{text}: {as_command('tables')} sets this key; leave it out")
        elif override.is_sweep_override():
            faults.append(f"{text}: networks differ in drawn settings; type one value")
        elif fault := override_fault(override):
            faults.append(fault)
    return faults


def _task_of(table: Table, target: str) -> tuple[str, str]:
    """By the column of labels: numbers that are fractions, or too many to be classes, are a
    regression's. With a text about what numbers are taken for."""
    cells = table.cells(target, Csv.model_fields["empty"].get_default(call_default_factory=True))
    if is_quantity(cells):
        told = "numbers to predict; to learn each as a class, type task=classification"
        return REGRESSION, f"column {target}: is taken for {told}"
    classes = len(np.unique(cells.numbers[~cells.gaps]))
    if cells.strange.any() or classes <= 2:
        return CLASSIFICATION, ""
    told = f"{classes:,} classes; to predict the number, type task=regression"
    return CLASSIFICATION, f"column {target}: its numbers are taken for {told}"
