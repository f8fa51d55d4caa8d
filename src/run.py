"""A run folder: its files, its result, and how it is opened again.

Everything that reads or writes a run does it through this module.
"""

import csv
import json
import math
import os
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import nn

from src import composition
from src import config as schema
from src.config import Config
from src.errors import InputError
from src.models import build_model

HISTORY = ("epoch", "step", "seconds", "lr", "train/loss", "train/acc", "val/loss", "val/acc")

Row = dict[str, float | int | None]


class Run:
    """The files of one run folder; nothing need be there yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config_file = folder / ".hydra" / "config.yaml"
        self.overrides_file = folder / ".hydra" / "overrides.yaml"
        self.history_file = folder / "history.csv"
        self.result_file = folder / "result.json"
        self.log_file = folder / "train.log"
        self.checkpoints = folder / "checkpoints"
        self.best_checkpoint = self.checkpoints / "best.ckpt"
        self.last_checkpoint = self.checkpoints / "last.ckpt"

    # --- reading ---

    @property
    def config(self) -> Config:
        return composition.load(self.config_file)

    @property
    def overrides(self) -> dict[str, str]:
        """What the command line set, key → value as typed; empty for a run without Hydra."""
        if not self.overrides_file.exists():
            return {}
        pairs = (text.partition("=") for text in yaml.safe_load(self.overrides_file.read_text()))
        return {key.lstrip("+"): value for key, _, value in pairs}

    @property
    def history(self) -> list[Row]:
        """A row per epoch, row 0 before training; what was not measured is None."""
        with self.history_file.open(newline="") as file:
            return [_parse(row) for row in csv.DictReader(file)]

    @property
    def result(self) -> dict[str, Any]:
        """result.json, or {} where it is not written yet."""
        if not self.result_file.exists():
            return {}
        result: dict[str, Any] = json.loads(self.result_file.read_text())
        return result

    @property
    def ended(self) -> bool:
        """Whether there is nothing left to train: it finished or diverged."""
        return self.result.get("status") in ("finished", "diverged")

    @property
    def monitored(self) -> float:
        """The best value of checkpoint.monitor, for a sweeper; NaN where there is none."""
        result = self.result
        value = result.get("best", {}).get(result.get("monitor"))
        return math.nan if value is None else float(value)

    # --- writing ---

    def write_config(self, config: Config) -> None:
        """Writes the configuration unless Hydra did."""
        if not self.config_file.exists():
            self.config_file.parent.mkdir(parents=True, exist_ok=True)
            self.config_file.write_text(yaml.safe_dump(config.to_primitives(), sort_keys=False))

    def append_history(self, row: Row) -> None:
        """Adds a row and hands it to the system at once."""
        new = not self.history_file.exists()
        with self.history_file.open("a", newline="") as file:
            writer = csv.DictWriter(file, HISTORY, lineterminator="\n")
            if new:
                writer.writeheader()
            writer.writerow(row)

    def forget(self) -> None:
        """Removes what a trial left that came to no checkpoint; its configuration stays."""
        for path in (self.history_file, self.result_file):
            path.unlink(missing_ok=True)

    def cut_history(self, epoch: int) -> None:
        """Leaves out the rows after `epoch`."""
        if not self.history_file.exists():
            return
        lines = self.history_file.read_text().splitlines(keepends=True)
        kept = [line for line in lines[1:] if int(line.partition(",")[0]) <= epoch]
        if len(kept) < len(lines) - 1:
            write_atomically(self.history_file, "".join([lines[0], *kept]))

    def write_result(self, result: Mapping[str, Any]) -> None:
        write_atomically(self.result_file, json.dumps(_finite(result), indent=2) + "\n")


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _parse(row: Mapping[str, str]) -> Row:
    whole = ("epoch", "step")
    return {
        key: None if text == "" else int(text) if key in whole else float(text)
        for key, text in row.items()
    }


def write_atomically(path: Path, text: str) -> None:
    """The file is the old one or the new one at every instant."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with beside.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


# --- opening a trained model -----------------------------------------------------------------


@dataclass(frozen=True)
class Trained:
    """A model as a checkpoint holds it, with what it was trained on."""

    checkpoint: Path
    config: Config
    model: nn.Module
    data: str  # the data set really used
    shape: tuple[int, ...]
    classes: int


def open_trained(path: Path) -> Trained:
    """The model of a run folder (its best checkpoint) or of a checkpoint file, in eval mode.

    Raises InputError when the path is neither, and when the checkpoint is damaged or another
    program's.
    """
    checkpoint = path
    if path.is_dir():
        checkpoint = Run(path).best_checkpoint
        if not checkpoint.exists():
            raise InputError(
                f"{path}: is no run folder, it has no checkpoints/best.ckpt; name a folder that "
                "`python -m src.train` wrote (runs/<date>/<time>) or a .ckpt file"
            )
    content = _load(checkpoint)
    try:
        saved = content["kindling"]
        config = schema.check(saved["config"])
        shape, classes = tuple(saved["shape"]), saved["classes"]
        with torch.random.fork_rng(devices=[]):
            model = build_model(config.model, shape, classes)
        prefix = "model."
        weights = {
            name.removeprefix(prefix): weight
            for name, weight in content["state_dict"].items()
            if name.startswith(prefix)
        }
        model.load_state_dict(weights)
    except (KeyError, TypeError, RuntimeError) as error:
        raise InputError(
            f"{checkpoint}: is not a checkpoint of this project ({_first_line(error)})"
        ) from None
    model.to(next(iter(weights.values())).dtype)
    return Trained(checkpoint, config, model.eval(), saved["data"], shape, classes)


def _load(checkpoint: Path) -> Any:
    try:
        return torch.load(checkpoint, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise InputError(f"{checkpoint}: there is no such file or folder") from None
    except (
        OSError,
        RuntimeError,
        EOFError,
        ValueError,
        pickle.UnpicklingError,
        zipfile.BadZipFile,
    ) as error:
        raise InputError(
            f"{checkpoint}: is damaged or no checkpoint ({_first_line(error)})"
        ) from None


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
