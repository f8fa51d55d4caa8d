"""A run folder: its files, its result, and how they are read again.

Everything that reads or writes a run does it through this module; its checkpoints through
src/checkpoint.py. What it reads may come from a stranger: sizes are bounded, and whatever is not
as it should be is an InputError that names the file.
"""

import csv
import io
import json
import math
import re
import shlex
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from src import composition
from src.config import Config
from src.errors import InputError
from src.files import MIB, append_line, read_bounded, read_yaml, write_durably

HISTORY = ("epoch", "step", "seconds", "lr", "train/loss", "train/acc", "val/loss", "val/acc")
HISTORY_LIMIT = 256 * MIB
RESULT_LIMIT = 16 * MIB
SEARCH = "search.yaml"  # in the folder of a search: what was typed

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
        self.identity_file = folder / ".identity"
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
        texts = read_yaml(self.overrides_file)
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise InputError(f"{self.overrides_file}: is no list of overrides")
        pairs = (text.partition("=") for text in texts)
        return {key.lstrip("+"): value for key, _, value in pairs}

    @property
    def command(self) -> str:
        """What to type, quoted for a shell, to train it once more."""
        chosen = (shlex.quote(f"{key}={value}") for key, value in self.overrides.items())
        return " ".join(["python -m src.train", *chosen])

    @property
    def history(self) -> list[Row]:
        """A row per epoch, row 0 before training; what was not measured is None.

        A last row that a crash cut in half is left out.
        """
        content = read_bounded(self.history_file, HISTORY_LIMIT)
        try:
            text = content[: content.rfind(b"\n") + 1].decode()
            rows = list(csv.reader(io.StringIO(text), strict=True))
        except (ValueError, csv.Error) as error:
            raise InputError(f"{self.history_file}: cannot be read ({error})") from None
        if rows and tuple(rows[0]) != HISTORY:
            raise InputError(f"{self.history_file}: its columns are not {','.join(HISTORY)}")
        return [self._parse(number, row) for number, row in enumerate(rows[1:], 2)]

    def _parse(self, number: int, row: Sequence[str]) -> Row:
        try:
            epoch, step = int(row[0]), int(row[1])
            measured = {
                name: float(text) if text else None
                for name, text in zip(HISTORY[2:], row[2:], strict=True)
            }
        except (ValueError, IndexError):
            raise InputError(
                f"{self.history_file}: line {number} is no row of a history: {str(row)[:100]}"
            ) from None
        return {"epoch": epoch, "step": step, **measured}

    @property
    def result(self) -> dict[str, Any]:
        """result.json, or {} where it is not written yet."""
        if not self.result_file.exists():
            return {}
        try:
            result = json.loads(read_bounded(self.result_file, RESULT_LIMIT))
        except (ValueError, RecursionError) as error:
            raise InputError(f"{self.result_file}: is not JSON ({error})") from None
        if not isinstance(result, dict):
            raise InputError(f"{self.result_file}: holds no result of a run")
        return result

    @property
    def started(self) -> bool:
        """Whether the folder holds anything of a run beyond its configuration."""
        return any(
            path.exists() for path in (self.history_file, self.result_file, self.last_checkpoint)
        )

    @property
    def ended(self) -> bool:
        """Whether its configuration has nothing left to train: it finished or diverged."""
        result = self.result
        if result.get("status") not in ("finished", "diverged"):
            return False
        return bool(result.get("config_hash") == self.config.hash())

    @property
    def resume_folder(self) -> Path:
        """What to name to go on with it: of a trial the sweep, which Hydra marks."""
        return self.folder.parent if is_sweep(self.folder.parent) else self.folder

    @property
    def monitored(self) -> float:
        """The best value of checkpoint.monitor, for a sweeper; NaN where there is none."""
        result = self.result
        value = result.get("best", {}).get(result.get("monitor"))
        return math.nan if value is None else float(value)

    # --- writing ---

    def identity(self) -> str:
        """32 hex digits by which loggers know this run, whatever its folder is called; they are
        made when first asked for, and go with the folder."""
        if not self.identity_file.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            write_durably(self.identity_file, uuid.uuid4().hex)
        text = read_bounded(self.identity_file, 100).decode(errors="replace")
        if not re.fullmatch("[0-9a-f]{32}", text):
            raise InputError(f"{self.identity_file}: is no run's identity; delete it")
        return text

    def replace_config(self, config: Config) -> None:
        """Writes the configuration, also in place of Hydra's own file of it."""
        self.config_file.parent.mkdir(parents=True, exist_ok=True)
        write_durably(self.config_file, yaml.safe_dump(config.to_primitives(), sort_keys=False))

    def write_overrides(self, texts: Sequence[str]) -> None:
        self.overrides_file.parent.mkdir(parents=True, exist_ok=True)
        write_durably(self.overrides_file, yaml.safe_dump(list(texts)))

    def write_history(self, rows: Sequence[Row]) -> None:
        """The whole history, in place of what is there."""
        text = io.StringIO()
        writer = csv.DictWriter(text, HISTORY, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_durably(self.history_file, text.getvalue())

    def append_history(self, row: Row) -> None:
        """Adds a row and hands it to the system at once."""
        if not self.history_file.exists():
            self.write_history([row])
            return
        text = io.StringIO()
        csv.DictWriter(text, HISTORY, lineterminator="\n").writerow(row)
        append_line(self.history_file, text.getvalue())

    def forget(self) -> None:
        """Removes what a trial left that came to no checkpoint; its configuration stays."""
        for path in (self.history_file, self.result_file):
            path.unlink(missing_ok=True)

    def write_result(self, result: Mapping[str, Any]) -> None:
        write_durably(self.result_file, json.dumps(_finite(result), indent=2) + "\n")


def is_sweep(folder: Path) -> bool:
    """Whether trials lie in it, of a multirun or of a search."""
    return (folder / "multirun.yaml").exists() or is_search(folder)


def is_search(folder: Path) -> bool:
    return (folder / SEARCH).exists()


def resume_command(folder: Path) -> str:
    """What to type to go on with a run, a sweep or a search."""
    return f"python -m src.{'search' if is_search(folder) else 'train'} resume={folder}"


def checkpoint_of(path: Path) -> Path:
    """The best checkpoint of a run folder; any other path is a checkpoint itself.

    Raises InputError when there is no such file, told before anything that opens it is imported.
    """
    try:
        if path.is_file():
            return path
        file = Run(path).best_checkpoint
        if file.exists():
            return file
        known = path.exists()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    if not known:
        raise InputError(f"{path}: there is no such file or folder")
    raise InputError(
        f"{path}: is no run folder, it has no checkpoints/best.ckpt; name a folder that "
        "`python -m src.train` wrote (runs/<date>/<time>) or a .ckpt file"
    )


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
