"""A run folder: its files and its result, written and read again.

Checkpoints are read and written by src/runs/checkpoint.py. A file may be hostile: its size is
limited, and every fault raises an InputError that names the file.
"""

import csv
import io
import json
import math
import os
import re
import shlex
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic needs it before Python 3.12

from src.config.faults import read_config
from src.config.schema import MAX_EPOCHS, MEASURES, UNTRAINED, Config, Monitor
from src.system.errors import InputError, first_line
from src.system.files import (
    MIB,
    append_text,
    read_bounded,
    read_yaml,
    sync,
    temporary_path,
    write_durably,
)

HISTORY = ("epoch", "step", "seconds", "lr", "train/loss", "train/acc", "val/loss", "val/acc")
ROW_LIMIT = 256  # bytes; nine numbers in full precision take about 190
HISTORY_LIMIT = 192 * MIB  # bytes of MAX_EPOCHS rows
RESULT_LIMIT = MIB  # a result has about 3 KB
MOST_MEMBERS = 256  # of a committee
SEARCH = "search.yaml"  # in the folder of a search: the command that was typed
RANGE_TEST = "lr_find.yaml"  # in the folder of a learning-rate range test: what was typed
CONFIRMATION = "confirm.yaml"  # in the folder of a confirmation: its settings and seeds

Row = dict[str, float | int | None]

Count = Annotated[int, Field(ge=0, lt=2**63)]
Size = Annotated[int, Field(gt=0, lt=2**31)]  # of a sample along one axis
Number = Annotated[float, Field(allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1 + 1e-6)]  # a mean over batches may be rounded up
Brier = Annotated[float, Field(ge=0, le=2 + 1e-6)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]

Values = TypedDict(
    "Values",
    {
        "epoch": Count | None,
        "train/loss": Number | None,
        "train/acc": Fraction | None,
        "val/loss": Number | None,
        "val/acc": Fraction | None,
        "val/f1": Fraction | None,
        "val/precision": Fraction | None,
        "val/recall": Fraction | None,
        "val/auroc": Fraction | None,
        "val/top5": Fraction | None,
        "val/brier": Brier | None,
        "val/ece": Fraction | None,
    },
    total=False,
)  # of one epoch


def columns(monitor: str) -> tuple[str, ...]:
    """The columns of the history of a run with this checkpoint.monitor."""
    return HISTORY if monitor in HISTORY else (*HISTORY, monitor)


class DataUsed(TypedDict, total=False):
    name: str
    instead_of: str | None
    train: Count
    val: Count
    test: Count
    skipped: Count
    val_most_frequent_class: Fraction


Votes = Annotated[int, Field(gt=0, lt=2**31)]


class Member(BaseModel):
    """A member of a committee in a checkpoint or an exported model: its configuration, and its
    weight in the mean of the probabilities before division by the sum of all."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    config: dict[str, Any]
    votes: Votes


Members = Annotated[list[Member], Field(min_length=2, max_length=MOST_MEMBERS)]

MemberUsed = TypedDict(
    "MemberUsed",
    {
        "folder": str,  # from the folder of the committee
        "votes": Votes,
        "val/loss": Number | None,
        "val/acc": Fraction | None,
    },
)


class CommitteeUsed(TypedDict):
    """The members of a committee and how they were chosen. src/inference/committee_run.py writes
    them."""

    paths: Annotated[list[str], Field(max_length=MOST_MEMBERS)]  # as named, from the folder
    by: Literal["val/acc", "val/loss"]
    best: Count | None  # of the command's --best
    greedy: Count | None
    differing: Annotated[
        list[str], Field(max_length=1000)
    ]  # keys whose values the members differ in
    members: Annotated[list[MemberUsed], Field(min_length=2, max_length=MOST_MEMBERS)]


_Tested = TypedDict(
    "_Tested",
    {
        "test/loss": Number | None,
        "test/acc": Fraction | None,
        "test/f1": Fraction | None,
        "test/precision": Fraction | None,
        "test/recall": Fraction | None,
        "test/auroc": Fraction | None,
        "test/top5": Fraction | None,
        "test/brier": Brier | None,
        "test/ece": Fraction | None,
    },
    total=False,
)


class Result(_Tested, total=False):
    """result.json, as src/training/result.py and src/training/fit.py write it. Only the status is
    always there: the result of an interrupted or failed run has only a few of these fields."""

    status: Literal["finished", "diverged", "interrupted", "failed"]
    error: str
    signal: str
    resume: str
    before: "Result"  # the result that the run had before it was trained for more epochs
    diverged_step: Count | None
    stopped: str | None
    monitor: Monitor
    best: Values
    last: Values
    epochs: Count
    steps: Count
    samples_per_second: Seconds
    parameters: Count
    config_hash: str
    committee: CommitteeUsed
    seconds: dict[str, Seconds]
    stacked: Annotated[int, Field(ge=1, lt=2**63)]
    step: str
    step_reason: str | None
    data: DataUsed
    ranks: Annotated[int, Field(ge=1, lt=2**63)]
    effective_batch_size: Count
    hardware: dict[str, str | int]
    peak_memory_bytes: Count
    peak_gpu_allocated_bytes: Count
    peak_gpu_reserved_bytes: Count
    gpu_utilisation: Number | None
    versions: dict[str, str]
    commit: str | None


_RESULT: TypeAdapter[Result] = TypeAdapter(Result)


class _File:
    """The path of a file in a run folder. Made when it is asked for: a sweep has many runs."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, run: "Run", kind: type) -> Path:
        return run.folder / self.name


class Run:
    """The files of one run folder. None of them needs to exist yet."""

    config_file = _File(".hydra/config.yaml")
    overrides_file = _File(".hydra/overrides.yaml")
    history_file = _File("history.csv")
    result_file = _File("result.json")
    log_file = _File("train.log")
    identity_file = _File(".identity")
    checkpoints = _File("checkpoints")
    best_checkpoint = _File("checkpoints/best.ckpt")
    last_checkpoint = _File("checkpoints/last.ckpt")
    previous_checkpoint = _File("checkpoints/previous.ckpt")

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def config(self) -> Config:
        return read_config(self.config_file)

    @property
    def overrides(self) -> dict[str, str]:
        """The keys that the command line set, with their values as typed; of a run that was made
        from Python, the keys whose values differ from the defaults. Those of UNTRAINED are left
        out: they are not part of a run."""
        pairs = (text.partition("=") for text in self.override_texts())
        values = {key.lstrip("+"): value for key, _, value in pairs}
        return {key: value for key, value in values.items() if key not in UNTRAINED}

    def override_texts(self) -> list[str]:
        """The overrides in the folder, KEY=VALUE; none for a committee."""
        if not self.overrides_file.exists():
            return []
        texts = read_yaml(self.overrides_file)
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise InputError(f"{self.overrides_file}: is not a list of overrides")
        return texts

    @property
    def command(self) -> str:
        """The command that trains this configuration again, or makes this committee again, quoted
        for a shell."""
        if made := self.result.get("committee"):
            return self._committee_command(made)
        return self.command_without(())

    def command_without(self, keys: Sequence[str]) -> str:
        """The command that trains this configuration again, but without these keys."""
        chosen = {key: value for key, value in self.overrides.items() if key not in keys}
        quoted = (shlex.quote(f"{key}={value}") for key, value in chosen.items())
        return " ".join(["python -m src.train", *quoted])

    def _committee_command(self, made: CommitteeUsed) -> str:
        paths = [shlex.quote(os.path.normpath(self.folder / path)) for path in made["paths"]]
        numbers = [f"--{key} {made[key]}" for key in ("best", "greedy") if made[key] is not None]
        return " ".join(["python -m src.committee", *paths, *numbers, f"--by {made['by']}"])

    @property
    def history(self) -> list[Row]:
        """One row per epoch, 0 before training. None: not measured. Leaves out half a last row.
        The columns are those of any monitor."""
        known = {",".join(names).encode(): names for names in map(columns, get_args(Monitor))}
        content = read_bounded(self.history_file, HISTORY_LIMIT)
        names, rows = columns("val/acc"), list[Row]()
        for number, line in enumerate(io.BytesIO(content), 1):
            if not line.endswith(b"\n"):
                break
            if number == 1:
                header = line.rstrip(b"\r\n")
                if header not in known:
                    measures = ", ".join(f"val/{name}" for name in MEASURES)
                    raise InputError(
                        f"{self.history_file}: its columns are not {','.join(HISTORY)}, or these "
                        f"and one of {measures}"
                    )
                names = known[header]
            elif number > MAX_EPOCHS + 2:
                raise InputError(f"{self.history_file}: has more than {MAX_EPOCHS:,} epochs")
            else:
                rows.append(self._parse(number, line, names))
        return rows

    def _parse(self, number: int, line: bytes, names: Sequence[str]) -> Row:
        try:
            epoch, step, *cells = line[: ROW_LIMIT + 1].decode("ascii").rstrip("\r\n").split(",")
            measured = {
                name: float(text) if text else None
                for name, text in zip(names[2:], cells, strict=True)
            }
            row: Row = {"epoch": int(epoch), "step": int(step), **measured}
            if len(line) <= ROW_LIMIT and all(0 <= int(text) < 2**63 for text in (epoch, step)):
                return row
        except ValueError:
            pass
        raise InputError(
            f"{self.history_file}: line {number} is not a row of a history: {str(line[:100])[1:]}"
        )

    @property
    def result(self) -> Result:
        """The content of result.json, or {} while there is none."""
        if not self.result_file.exists():
            return {}
        return parse_result(read_bounded(self.result_file, RESULT_LIMIT), self.result_file)

    @property
    def started(self) -> bool:
        """Whether the folder contains a history, a result or a checkpoint."""
        files = (self.history_file, self.result_file, self.last_checkpoint)
        return any(file.exists() for file in files)

    @property
    def checkpoint_exists(self) -> bool:
        """Whether there is a state to go on from, or weights to use."""
        files = (self.last_checkpoint, self.previous_checkpoint, self.best_checkpoint)
        return any(file.exists() for file in files)

    @property
    def ended(self) -> bool:
        """Whether the run finished or diverged with the configuration that the folder holds now."""
        result = self.result
        trained = result.get("status") in ("finished", "diverged")
        return trained and result.get("config_hash") == self.config.hash()

    @property
    def why_no_weights(self) -> str | None:
        """Why the folder of a run has no best weights, and what to do instead; None if it has."""
        if self.best_checkpoint.exists():
            return None
        keep = self.config.checkpoint.keep if self.ended else "all"
        if not isinstance(keep, int):
            return f"{self.folder}: {self._before_weights()}"
        which = "best trial" if keep == 1 else f"{keep} best trials"
        return (
            f"{self.folder}: has no weights, because checkpoint.keep={keep} keeps those of the "
            f"{which}; name a trial that has checkpoints/best.ckpt, or train this one again: "
            f"{self.command}"
        )

    def _before_weights(self) -> str:
        """Why there are no weights, in a folder that should have them one day, and what to type."""
        result = self.result
        resume = f"type {resume_command(self.resume_folder)}"
        match result.get("status"):
            case "failed":
                error = next(iter(result.get("error", "").splitlines()), "")
                error = error.removeprefix("InputError: ")
                reason = f" ({error[:200]}{'…' * (len(error) > 200)})" if error else ""
                return (
                    f"has no weights yet: it failed before its first checkpoint{reason}; correct "
                    f"that and {resume}, or name another run"
                )
            case "interrupted":
                return (
                    "has no weights yet: it was interrupted before its first checkpoint; "
                    f"{resume}, or name another run"
                )
            case None:
                return (
                    "has no weights yet: it has not come to its first checkpoint; wait for it, or, "
                    f"if it was killed, {resume}"
                )
            case "diverged":
                return "has no weights: it diverged before its first checkpoint; name another run"
        return (
            "has lost its weights, checkpoints/best.ckpt; name another run, or train this one "
            f"again: {self.command}"
        )

    def require_single(self) -> None:
        """Raises InputError for a committee: its members were trained, the committee was not."""
        if "committee" in self.result:
            raise InputError(
                f"{self.folder}: is a committee, which cannot be trained; train its members, or "
                "type another folder"
            )

    def require_state(self, advice: str) -> None:
        """Raises InputError, with `advice` at its end, if the run has ended and checkpoint.keep has
        removed the state to train on from."""
        ended = self.result.get("status") in ("finished", "diverged")
        keep = self.config.checkpoint.keep if ended else "all"
        if keep != "all" and not (
            self.last_checkpoint.exists() or self.previous_checkpoint.exists()
        ):
            raise InputError(
                f"{self.folder}: cannot be trained on, because checkpoint.keep={keep} has kept "
                f"{'only its best weights' if keep == 'best' else 'only better trials'}; {advice}"
            )

    def remove_checkpoints(self, *, but_best: bool) -> None:
        """Removes the states of training, and without `but_best` the best weights too. A link in
        place of a folder is left alone: the files behind the link are not this run's."""
        if self.folder.is_symlink() or self.checkpoints.is_symlink():
            return
        paths = [self.previous_checkpoint, self.last_checkpoint]
        for path in [*paths, *([] if but_best else [self.best_checkpoint])]:
            path.unlink(missing_ok=True)
            temporary_path(path).unlink(missing_ok=True)
        if not but_best:
            with suppress(OSError):
                self.checkpoints.rmdir()

    @property
    def resume_folder(self) -> Path:
        """The folder to type to resume this run: its own, or, for a trial, that of its sweep."""
        return self.folder.parent if is_sweep(self.folder.parent) else self.folder

    @property
    def monitored(self) -> float:
        """The best value of checkpoint.monitor; NaN where there is none."""
        result = self.result
        value = result.get("best", {}).get(result.get("monitor", "val/acc"))
        return math.nan if value is None else value

    def identity(self) -> str:
        """32 hex digits, an identifier that loggers use, even when the folder is renamed or moved.
        The digits are drawn at the first call and kept in the folder."""
        if not self.identity_file.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            write_durably(self.identity_file, uuid.uuid4().hex)
        text = read_bounded(self.identity_file, 100).decode(errors="replace")
        if not re.fullmatch("[0-9a-f]{32}", text):
            raise InputError(f"{self.identity_file}: is not a run's identity; delete it")
        return text

    def write_history(self, rows: Sequence[Row]) -> None:
        """Writes the whole history anew. Each row has all columns, in their order."""
        write_durably(self.history_file, csv_text([*rows[0]], rows))

    def append_history(self, rows: Sequence[Row]) -> None:
        """Appends rows, which have all columns in their order, and hands them to the operating
        system at once. `write_result` makes the rows durable: until then, a resumed run has them in
        its checkpoint."""
        header, _, lines = csv_text([*rows[0]], rows).partition("\n")
        begins = not self.history_file.exists()
        append_text(self.history_file, f"{header}\n{lines}" if begins else lines)

    def forget(self) -> None:
        """Removes history and result of a run; its configuration stays."""
        for path in (self.history_file, self.result_file):
            path.unlink(missing_ok=True)

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Writes result.json, and before it makes the history durable."""
        self.write_result_text(result_text(result))

    def write_result_text(self, text: str) -> None:
        if self.history_file.exists():
            sync(self.history_file)
        write_durably(self.result_file, text)


def parse_result(content: bytes, name: object) -> Result:
    """The result in the content of a result.json. Raises InputError, which begins with `name`."""
    try:
        result = _RESULT.validate_json(content, strict=True)
        reason = "" if "status" in result else "it has no status"
    except ValidationError as error:
        reason = first_line(error)
    if reason:
        raise InputError(f"{name}: is not the result of a run ({reason})")
    return result


def result_text(result: Mapping[str, Any]) -> str:
    """The content of result.json."""
    return json.dumps(_finite(result), indent=2) + "\n"


def csv_text(header: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, header, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def is_sweep(folder: Path) -> bool:
    """Whether the folder belongs to a multirun, a search or a confirmation."""
    records = ("multirun.yaml", SEARCH, CONFIRMATION)
    return any((folder / name).exists() for name in records)


def is_search(folder: Path) -> bool:
    return (folder / SEARCH).exists()


def is_range_test(folder: Path) -> bool:
    return (folder / RANGE_TEST).exists()


def is_confirmation(folder: Path) -> bool:
    return (folder / CONFIRMATION).exists()


def resume_command(folder: Path) -> str:
    """The command that resumes a run, a sweep, a search or a confirmation."""
    if is_confirmation(folder):
        return f"python -m src.confirm {folder}"
    return f"python -m src.{'search' if is_search(folder) else 'train'} resume={folder}"


def timestamped(base: str) -> Path:
    """A folder of its own for a run or sweep that begins now: base/<date>/<time to the µs>."""
    now = datetime.now()
    return Path(base, f"{now:%Y-%m-%d}", f"{now:%H-%M-%S.%f}")


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
