"""A run folder: its files and its result, written and read again.

Checkpoints are read and written by records/checkpoint.py. A file may be hostile: its size is
limited, and every fault raises an InputError that names the file.
"""

import csv
import functools
import io
import json
import math
import os
import re
import shlex
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NotRequired,  # pydantic needs it before Python 3.12
    TypeVar,
    cast,
)

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter
from typing_extensions import TypedDict  # pydantic needs it before Python 3.12

from kindling.config.faults import EXTENSIONS, absent, read_config
from kindling.config.measures import LOGGED_NAME, SCORES, tallied
from kindling.config.schema import MAX_EPOCHS, UNTRAINED, Config, Monitor, with_batch_size
from kindling.config.written import cell
from kindling.system.arguments import as_path
from kindling.system.colour import note_name
from kindling.system.errors import InputError, parsing
from kindling.system.files import (
    FileIdentity,
    append_text,
    identity_of,
    make_folder,
    read_bounded,
    read_yaml,
    sync,
    temporary_path,
    write_durably,
)
from kindling.system.installation import as_command
from kindling.system.recent import Recent
from kindling.system.units import MIB

ALWAYS = ("epoch", "step", "seconds", "lr")  # the columns of every history
OF_SCORE = {  # the first columns of a history, by the score of the task
    score: (*ALWAYS, "train/loss", f"train/{score}", "val/loss", f"val/{score}")
    for score in SCORES.values()
}
WIDTH = len(ALWAYS) + 4
OWN_COLUMNS = {  # of any task and monitor
    *(name for names in OF_SCORE.values() for name in names),
    *(f"val/{name}" for name in tallied()),
}
MOST_LOGGED = 64  # columns of values that callbacks of the user have logged
LINE_LIMIT = 64 * (WIDTH + 1 + MOST_LOGGED)  # bytes; a number takes 26 with its comma
HISTORY_LIMIT = 192 * MIB  # bytes of MAX_EPOCHS rows
RESULT_LIMIT = MIB  # a result has about 3 KB
MOST_MEMBERS = 256  # of a committee
MULTIRUN = "multirun.yaml"  # in the folder of a sweep: Hydra's configuration
SEARCH = "search.yaml"  # in the folder of a search: the command that was typed
RANGE_TEST = "lr_find.yaml"  # in the folder of a learning-rate range test: what was typed
CONFIRMATION = "confirm.yaml"  # in the folder of a confirmation: its settings and seeds

Row = dict[str, float | int | None]

Count = Annotated[int, Field(ge=0, lt=2**63)]
Size = Annotated[int, Field(gt=0, lt=2**31)]  # of a sample along one axis
Number = Annotated[float, Field(allow_inf_nan=False)]
Proportion = Annotated[float, Field(ge=0, le=1 + 1e-6)]  # a mean over batches may be rounded up
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]

# Of one epoch. A LightningModule logs other names too.
Values = TypedDict(
    "Values",
    {
        "epoch": Count | None,
        "train/loss": Number | None,
        "train/acc": Number | None,
        "train/r2": Number | None,
        "val/loss": Number | None,
        "val/acc": Number | None,
        "val/r2": Number | None,
    },
    total=False,
)
_Tested = TypedDict("_Tested", {"test/loss": Number | None, "test/acc": Number | None}, total=False)
if not TYPE_CHECKING:  # mypy knows no keys that are computed
    for name in tallied():
        Values.__annotations__[f"val/{name}"] = Number | None
        _Tested.__annotations__[f"test/{name}"] = Number | None


def _keep_logged(values: dict[str, Any], known: Any = None, begins: str = "") -> dict[str, Any]:
    """Without keys that are neither known nor numbers that a LightningModule may have logged."""
    for key in values.keys() - (known or Values).__annotations__.keys():
        value = values[key]
        number = value is None or (type(value) in (int, float) and math.isfinite(value))
        if not (number and key.startswith(begins) and LOGGED_NAME.fullmatch(key)):
            del values[key]
    return values


def columns(task: str, monitor: str) -> tuple[str, ...]:
    """The columns of the history of a run of this task with this checkpoint.monitor."""
    names = OF_SCORE[SCORES[task]]
    return names if monitor in names else (*names, monitor)


def _are_columns(names: Sequence[str]) -> bool:
    """Whether these can be the columns of a history: the known ones, then what was logged. That of
    a LightningModule has only what the module logs."""
    first, logged, own = tuple(names[:WIDTH]), names[WIDTH:], names[len(ALWAYS) :]
    if tuple(names[: len(ALWAYS)]) == ALWAYS and first not in OF_SCORE.values():
        return len({*own} - {*ALWAYS}) == len(own) <= MOST_LOGGED and all(
            map(LOGGED_NAME.fullmatch, own)
        )
    if logged and logged[0] in OWN_COLUMNS - {*first}:  # the measure that is monitored
        logged = logged[1:]
    return (
        first in OF_SCORE.values()
        and len(set(logged) - OWN_COLUMNS) == len(logged) <= MOST_LOGGED
        and all(map(LOGGED_NAME.fullmatch, logged))
    )


def _parse(names: Sequence[str], cells: Sequence[str]) -> Row | None:
    """A row of a history; None for texts that are none."""
    with suppress(ValueError):
        epoch, step = (int(text) for text in cells[:2])
        numbers = [float(text) if text else None for text in cells[2:]]
        row: Row = dict(zip(names, [epoch, step, *numbers], strict=True))
        return row if 0 <= min(epoch, step) <= max(epoch, step) < 2**63 else None
    return None


class DataUsed(TypedDict, total=False):
    name: str
    instead_of: str | None
    train: Count
    val: Count
    test: Count
    skipped: Count
    val_most_frequent_class: Proportion | None
    test_most_frequent_class: Proportion | None
    test_in_training: Count | None  # test samples with the features of a training sample


Votes = Annotated[int, Field(gt=0, lt=2**31)]


class Member(BaseModel):
    """A member of a committee in a checkpoint or an exported model: its configuration, its weight
    in the mean of the probabilities before division by the sum of all, and where these are its
    own, the places of its columns among those of the committee, and its scaling of numbers."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    config: dict[str, Any]
    votes: Votes
    columns: list[Count] | None = None
    targets: dict[str, list[float] | bool] | None = None


Members = Annotated[list[Member], Field(min_length=1, max_length=MOST_MEMBERS)]

MemberUsed = TypedDict(
    "MemberUsed",
    {
        "folder": str,  # from the folder of the committee
        "votes": Votes,
        "val/loss": Number | None,
        "val/acc": NotRequired[Proportion | None],
        "val/r2": NotRequired[Number | None],
    },
)


class CommitteeUsed(TypedDict):
    """The members of a committee and how they were chosen. inference/committees/making.py writes
    them."""

    paths: Annotated[list[str], Field(max_length=MOST_MEMBERS)]  # as named, from the folder
    by: Literal["val/acc", "val/r2", "val/loss"]
    best: Count | None  # of the command's --best
    greedy: Count | None
    start: NotRequired[Count]  # so many of the best were picked first
    folds: NotRequired[Count]  # of a cross-validation, each with a member of each setting
    differing: Annotated[
        list[str], Field(max_length=1000)
    ]  # keys whose values the members differ in
    members: Annotated[list[MemberUsed], Field(min_length=1, max_length=MOST_MEMBERS)]


class ComparedUsed(TypedDict):
    """A model beside others on the test rows; inference/baselines.py writes and explains it."""

    name: str
    score: Number
    low: Number
    high: Number
    less: Annotated[list[Number], Field(min_length=3, max_length=3)] | None


class Result(_Tested, total=False):
    """result.json, as training/result.py and training/fit.py write it. Only the status is
    always there: the result of an interrupted or failed run has only a few of these fields."""

    status: Literal["finished", "diverged", "interrupted", "failed"]
    error: str
    signal: str
    resume: str
    before: "Result"  # the result that the run had before it was trained for more epochs
    diverged_step: Count | None
    stopped: str | None
    task: str
    monitor: Monitor
    best: "Annotated[Values, AfterValidator(_keep_logged)]"
    last: "Annotated[Values, AfterValidator(_keep_logged)]"
    epochs: Count
    steps: Count
    samples_per_second: Seconds
    parameters: Count
    config_hash: str
    committee: CommitteeUsed
    compared: Annotated[list[ComparedUsed], Field(max_length=20)]
    seconds: dict[str, Seconds]
    stacked: Annotated[int, Field(ge=1, lt=2**63)]
    step: str
    step_reason: str | None
    resumes_from: Literal["epoch"]  # of a LightningModule: not from a batch within an epoch
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


if not TYPE_CHECKING:
    Values.__pydantic_config__ = Result.__pydantic_config__ = ConfigDict(extra="allow")
_RESULT: TypeAdapter[Result] = TypeAdapter(
    Annotated[Result, AfterValidator(functools.partial(_keep_logged, known=Result, begins="test"))]
)


def best_value(result: Result) -> float | None:
    """The best value of checkpoint.monitor."""
    best: Mapping[str, Any] = result.get("best", {})
    value: float | None = best.get(result.get("monitor", "val/acc"))
    return value


def why_no_best(result: Result) -> str:
    """Why a run that has finished has no best epoch, and what to type; else ""."""
    best: Mapping[str, Any] = result.get("best", {})
    none = "epoch" in best and best["epoch"] is None and "committee" not in result
    if not none or result.get("status") != "finished":
        return ""
    measured: Mapping[str, Any] = result.get("last", {})
    others = [name for name, value in measured.items() if name[:3] == "val" and value is not None]
    such = f", such as {others[0]}" if others else ""
    return (
        f"{result.get('monitor')} was no number in any epoch, so no epoch is the best, and none "
        f"was tested; train with another checkpoint.monitor{such}"
    )


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
        self.folder = folder if isinstance(folder, Path) else as_path(folder, "Run(folder)")
        note_name(self.folder)

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
        made = self.result.get("committee")
        if made is None:
            return self.command_without(())
        paths = [shlex.quote(os.path.normpath(self.folder / path)) for path in made["paths"]]
        chosen = {key: made.get(key) for key in ("best", "greedy", "start")}
        numbers = [f"--{key} {value}" for key, value in chosen.items() if value]
        return " ".join([as_command("committee"), *paths, *numbers, f"--by {made['by']}"])

    def command_without(self, keys: Sequence[str]) -> str:
        """The command that trains this configuration again, but without these keys."""
        chosen = {key: value for key, value in self.overrides.items() if key not in keys}
        quoted = (shlex.quote(f"{key}={value}") for key, value in chosen.items())
        return " ".join([as_command("train"), *quoted])

    @property
    def history(self) -> list[Row]:
        """One row per epoch, 0 before training. None: not measured. Leaves out half a last row.
        The columns are those of any monitor, and what callbacks have logged."""
        content = read_bounded(self.history_file, HISTORY_LIMIT)
        names, rows = list[str](), list[Row]()
        for number, line in enumerate(io.BytesIO(content), 1):
            if not line.endswith(b"\n"):
                break
            cells = line[:LINE_LIMIT].decode("ascii", "replace").rstrip("\r\n").split(",")
            whole = len(line) <= LINE_LIMIT
            if number == 1:
                names = cells
                if not whole or not _are_columns(names):
                    measures = ", ".join(f"val/{name}" for name in tallied())
                    known = ", or ".join(map(",".join, OF_SCORE.values()))
                    raise InputError(
                        f"{self.history_file}: its columns are not {known}, or these "
                        f"and one of {measures}, or names that callbacks have logged"
                    )
            elif number > MAX_EPOCHS + 2:
                raise InputError(f"{self.history_file}: has more than {MAX_EPOCHS:,} epochs")
            elif whole and (row := _parse(names, cells)):
                rows.append(row)
            else:
                start = str(line[:100])[1:]
                raise InputError(
                    f"{self.history_file}: line {number} is not a row of a history: {start}"
                )
        return rows

    @property
    def result(self) -> Result:
        """The content of result.json, or {} while there is none. Do not change it: the file is read
        once in a process, until it is replaced."""
        identity = identity_of(self.result_file)
        if identity is None:
            return {}
        if (known := _READ.get(identity)) is not None:
            return known
        content = read_bounded(self.result_file, RESULT_LIMIT)
        try:
            result = parse_result(content, self.result_file)
        except InputError as error:  # perhaps a measure of an extension that is not installed
            needed = absent(self.config_file.with_name(EXTENSIONS))
            raise InputError("\n  ".join([str(error), *needed])) from None
        if identity.settled:
            _remember(identity, result)
        return result

    @property
    def started(self) -> bool:
        """Whether the folder contains a history, a result or a checkpoint."""
        files = (self.history_file, self.result_file, self.last_checkpoint)
        return any(file.exists() for file in files)

    @property
    def ended(self) -> bool:
        """Whether the run finished or diverged with the configuration that the folder holds now."""
        return self.ended_as(None)

    def ended_as(self, config: Config | None) -> bool:
        """Whether the run finished or diverged with this configuration; None: that in its folder.
        `auto` as batch size is the number in the folder."""
        result = self.result
        if result.get("status") not in ("finished", "diverged"):
            return False
        if config is None:
            config = self.config
        elif config.data.batch_size == "auto":
            config = with_batch_size(config, self.config.data.batch)
        return result.get("config_hash") == config.hash()

    @property
    def why_no_weights(self) -> str | None:
        """Why the folder of a run has no best weights, and what to do instead; None if it has."""
        if self.best_checkpoint.exists():
            return None
        if told := why_no_best(self.result):
            return f"{self.folder}: has no weights: {told}"
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
        result, before = self.result, "before its first checkpoint"
        resume = f"type {resume_command(self.resume_folder)}"
        error = next(iter(result.get("error", "").splitlines()), "").removeprefix("InputError: ")
        reason = f" ({error[:200]}{'…' * (len(error) > 200)})" if error else ""
        match result.get("status"):
            case "failed":
                why = f"failed {before}{reason}; correct that and {resume}, or name another run"
            case "interrupted":
                why = f"was interrupted {before}; {resume}, or name another run"
            case None:
                why = "has not come to its first checkpoint; wait for it, or, if it was killed, "
                why += resume
            case "diverged":
                return f"has no weights: it diverged {before}; name another run"
            case _:
                return (
                    "has lost its weights, checkpoints/best.ckpt; name another run, or train this "
                    f"one again: {self.command}"
                )
        return f"has no weights yet: it {why}"

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
        value = best_value(self.result)
        return math.nan if value is None else value

    def identity(self) -> str:
        """32 hex digits, an identifier that loggers use, even when the folder is renamed or moved.
        The digits are drawn at the first call and kept in the folder."""
        if not self.identity_file.exists():
            make_folder(self.folder)
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
            sync(self.folder)  # else a file system could keep the name of the result alone
        write_durably(self.result_file, text)


MOST_READ = 10_000  # results that are kept; a sweep has no more trials
SHARED = ("hardware", "versions", "data")  # of a result: most of its memory
_READ = Recent[FileIdentity, Result](MOST_READ)
_LATEST: dict[str, Any] = {}  # what may be shared of the result that was read last


def _remember(identity: FileIdentity, result: Result) -> None:
    """Trials of one sweep share what takes most of the memory of a result. Other threads may read
    results at the same time."""
    own = cast(dict[str, Any], result)
    for key in SHARED:
        if key in own:
            latest = _LATEST.get(key)
            own[key] = _LATEST[key] = latest if latest == own[key] else own[key]
    _READ[identity] = result


def parse_result(content: bytes, name: object) -> Result:
    """The result in the content of a result.json. Raises InputError, which begins with `name`."""
    with parsing(f"{name}: is not the result of a run"):
        result = _RESULT.validate_json(content, strict=True)
        if "status" not in result:
            raise ValueError("it has no status")
        return result


def result_text(result: Mapping[str, Any]) -> str:
    """The content of result.json."""
    return json.dumps(_finite(result), indent=2) + "\n"


Content = TypeVar("Content")


def read_json(
    file: Path, limit: int, parse: Callable[[bytes], Content], what: str, remedy: str = ""
) -> Content | None:
    """The content of a file of at most `limit` bytes; None without a file. Raises InputError for
    bytes that `parse` refuses: the file is not `what`."""
    try:
        content = read_bounded(file, limit)
    except InputError:
        if not file.exists():
            return None
        raise
    with parsing(f"{file}: is not {what}", remedy):
        return parse(content)


def csv_text(header: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """The content of a CSV file. All that is written to one goes through `cell`."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(cell, header))
    writer.writerows([cell(row.get(name)) for name in header] for row in rows)
    return text.getvalue()


def is_sweep(folder: Path) -> bool:
    """Whether the folder belongs to a multirun, a search or a confirmation."""
    return any((folder / name).exists() for name in (MULTIRUN, SEARCH, CONFIRMATION))


def is_search(folder: Path) -> bool:
    return (folder / SEARCH).exists()


def is_confirmation(folder: Path) -> bool:
    return (folder / CONFIRMATION).exists()


def runs_of(folder: Path) -> list[Run]:
    """The run; or all trials of a sweep, also those without a result, sorted by number."""
    return trials_of(folder) if is_sweep(folder) else [Run(folder)]


def trials_of(sweep: Path) -> list[Run]:
    with os.scandir(sweep) as entries:
        numbers = sorted(int(entry.name) for entry in entries if entry.name.isdecimal())
    return [Run(sweep / str(number)) for number in numbers]


def has_checkpoint(folder: Path) -> bool:
    """Whether the run or the sweep has weights to use, or a state to go on from."""
    places = [*(run.checkpoints for run in runs_of(folder)), *(folder / ".stacks").glob("**")]
    return any(True for place in places for _ in place.glob("*.ckpt"))


def configured(folder: Path) -> Run | None:
    """The run, or the first trial of a sweep; None without a configuration."""
    runs = (Run(folder), Run(folder / "0"))
    return next((run for run in runs if run.config_file.exists()), None)


def resume_command(folder: Path) -> str:
    """The command that resumes a run, a sweep, a search or a confirmation."""
    if is_confirmation(folder):
        return f"{as_command('confirm')} {shlex.quote(str(folder))}"
    name = as_command("search" if is_search(folder) else "train")
    return f"{name} {shlex.quote(f'resume={folder}')}"


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
