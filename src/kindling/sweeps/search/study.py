"""The study of a search: Optuna's database, the file study.db. Nothing here imports torch.

A batch of trials is a function of the seed, the number of the batch and the trials before it: each
batch has a new sampler, which works on a copy of the study in memory. Each write is one
transaction. Therefore a process may be killed between any two writes.
"""

import math
import sqlite3
import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import yaml
from optuna import distributions
from optuna.exceptions import ExperimentalWarning, OptunaError
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool, StaticPool

from kindling.records.confidence import LEVEL
from kindling.records.folder import SEARCH
from kindling.records.lookup import date_last
from kindling.records.sweep_folder import KeyImportance, Sweep
from kindling.sweeps.search.command import CheckedSearch
from kindling.sweeps.search.space import Numbers, Parameter
from kindling.system.errors import InputError, first_line
from kindling.system.files import make_folder, require_contained, write_durably
from kindling.system.units import MIB

NAME = "kindling"  # of the only study in the file
LIMIT = 256 * MIB  # of the file; a trial takes a few KB
ROWS = 10**6  # of all tables together; a trial has about ten
TREES, FITTED_TRIALS = 64, 200  # for the importances; of more trials some, evenly by rank
LEAST_UNIT = 1e-12  # of the largest distance from the best value: nearer ones are of rounding
WAIT = 60  # seconds, while another program writes the file
QUIET = partial(warnings.catch_warnings, action="ignore", category=ExperimentalWarning)


def open_study(command: CheckedSearch) -> "Study":
    """The study in the folder of a search, which is made if needed, with a record of the command.
    Raises InputError when the folder holds anything else, and when it cannot be written."""
    folder = command.folder
    try:
        names = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
        visible = [name for name in names if not name.startswith(".")]
        if visible and "study.db" not in visible:
            raise InputError(
                f"{folder}: holds {visible[0]}, not a search; name a new folder by "
                "search.folder=FOLDER"
            )
        require_contained(folder)
        make_folder(folder, command.within)
        with Sweep(folder).locked():
            study = Study(command)
            write_durably(folder / SEARCH, yaml.safe_dump(list(command.typed)))
            date_last(folder / SEARCH)
        return study
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"{folder}: cannot be used as the folder of a search ({reason})") from None


@dataclass(frozen=True)
class TrialBatch:
    """The trials that Optuna proposed together, in order of their numbers."""

    number: int
    size: int
    trials: list[FrozenTrial]

    @property
    def told(self) -> bool:
        return len(self.trials) == self.size and all(t.state.is_finished() for t in self.trials)


class Study:
    """Open a study, and call `ask` and `tell`, only with the lock of the folder: `Sweep.locked`."""

    def __init__(self, command: CheckedSearch) -> None:
        self.settings, self.space = command.settings, command.space
        self.distributions = {each.key: _distribution(each) for each in self.space}
        best = command.corner.checkpoint.mode
        self.direction = {"max": StudyDirection.MAXIMIZE, "min": StudyDirection.MINIMIZE}[best]
        self.file = command.folder / "study.db"
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        if not self.file.exists():
            with self._written():
                write_durably(self.file, _new_study(self.direction, command.identity))
        with self._read():
            _check_database(self.file)
            self.study = optuna.load_study(study_name=NAME, storage=_storage(self.file))
            if self.study.directions != [self.direction]:
                raise ValueError("it has another direction")
            identity = self.study.user_attrs.get("search")
            if not isinstance(identity, dict):
                raise ValueError("it belongs to another program")
        before, now = identity, command.identity
        differences = [
            f"{key}: it was {before.get(key, 'absent')}, now {now.get(key, 'absent')}"
            for key in dict.fromkeys([*now, *before])
            if before.get(key) != now.get(key)
        ]
        if differences:
            refusal = "holds another search; name a new one by search.folder=FOLDER"
            raise InputError("\n  ".join([f"{command.folder}: {refusal}", *differences]))
        self.batches()

    @property
    def trials(self) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False)

    def batches(self) -> list[TrialBatch]:
        """The batches so far, in their order."""
        batches: dict[int, TrialBatch] = {}
        with self._read():
            for number, trial in enumerate(self.trials):
                if trial.number != number or trial.distributions != self.distributions:
                    raise ValueError(f"trial {number} is not of this search")
                values = trial.values or [math.nan]
                done = trial.state == TrialState.COMPLETE
                if done and not (len(values) == 1 and math.isfinite(values[0])):
                    raise ValueError(f"trial {number} is complete and has no value")
                batch, size = (int(trial.user_attrs[name]) for name in ("batch", "size"))
                batches.setdefault(batch, TrialBatch(batch, size, [])).trials.append(trial)
            if sorted(batches) != list(range(len(batches))):
                raise ValueError("a batch is missing")
            for number, found in batches.items():
                if not len(found.trials) <= found.size <= self.settings.batch:
                    raise ValueError(f"batch {number} is of {found.size} trials")
        return [batches[number] for number in range(len(batches))]

    def ask(self, number: int, size: int) -> TrialBatch:
        """Adds a batch to the study, or those of its trials that a killed process did not add."""
        trials = self.trials
        added = [trial for trial in trials if trial.user_attrs["batch"] == number]
        past = trials[: added[0].number] if added else trials
        with self._read():
            proposed = self._proposed(number, size, past)[len(added) :]
        for trial in proposed:
            written = create_trial(
                state=TrialState.RUNNING,
                params=trial.params,
                distributions=self.distributions,
                user_attrs={"batch": number, "size": size},
            )
            with self._written():
                self.study.add_trial(written)
        return self.batches()[number]

    def _proposed(self, number: int, size: int, past: Sequence[FrozenTrial]) -> list[FrozenTrial]:
        seed = int(np.random.SeedSequence([self.settings.seed, number]).generate_state(1)[0])
        with QUIET():
            sampler = SAMPLERS[self.settings.sampler](seed=seed)
            memory = optuna.create_study(sampler=sampler, direction=self.direction)
            memory.add_trials(past)
            for _ in range(size):
                memory.ask(self.distributions)
        return memory.get_trials(deepcopy=False)[len(past) :]

    def point(self, trial: FrozenTrial) -> list[str]:
        """The parameters of a trial as overrides."""
        return [text for each in self.space for text in each.overrides(trial.params[each.key])]

    def tell(self, trial: FrozenTrial, value: float | None, *, diverged: bool) -> None:
        """Stores the first value of a trial, None when it failed. Diverged trials rank last."""
        state = TrialState.COMPLETE
        if diverged:
            state, value = TrialState.PRUNED, None
        elif value is None or not math.isfinite(value):
            state, value = TrialState.FAIL, None
        with self._written():
            self.study.tell(trial.number, value, state, skip_if_finished=True)

    def best(self) -> FrozenTrial | None:
        done = [trial for trial in self.trials if trial.state == TrialState.COMPLETE]
        sign = -1 if self.direction == StudyDirection.MAXIMIZE else 1
        return min(done, key=lambda trial: sign * (trial.value or 0.0), default=None)

    def importances(self) -> dict[str, KeyImportance]:
        """The share of the differences between trials that each parameter explains alone, the
        largest first (fANOVA, Hutter et al., 2014), with an interval over trees, each fitted to
        trials drawn with replacement. Empty where all trials have one value, or one point.

        The distance from the best value is compressed, linear near the best and logarithmic far
        from it: else trials that failed to learn would be all that counts. PED-ANOVA, which asks
        how the good trials differ from all, cannot see what a sampler has learnt: of a choice that
        changed the loss by half, and that TPE therefore nearly always took, it said 1 to 3%.

        Numbers that are drawn on a logarithmic scale are told as logarithms. Optuna's evaluator
        draws all numbers evenly: nine tenths of the rates from 0.001 to 1 would be above 0.1.
        """
        from optuna.importance import FanovaImportanceEvaluator, get_param_importances  # 1 s

        done = [trial for trial in self.trials if trial.state == TrialState.COMPLETE]
        higher = self.direction == StudyDirection.MAXIMIZE
        ranked = sorted(done, key=lambda trial: trial.value or 0.0, reverse=higher)
        places = np.linspace(0, len(done) - 1, min(len(done), FITTED_TRIALS)).round().astype(int)
        fitted = [ranked[place] for place in places]
        halves = [(trial.value or 0.0) / 2 for trial in fitted]  # whose differences are finite
        distances = [abs(half - halves[0]) for half in halves]
        if not any(distances):
            return {}
        most = max(distances)
        unit = max(statistics.median_low(distances) or most, LEAST_UNIT * most)
        memory = optuna.create_study(sampler=RandomSampler(), direction=self.direction)
        logarithms = {
            each.key: distributions.FloatDistribution(math.log(each.low), math.log(each.high))
            for each in self.space
            if isinstance(each, Numbers) and each.log
        }
        for trial in fitted:
            params = trial.params | {key: math.log(trial.params[key]) for key in logarithms}
            drawn = self.distributions | logarithms
            memory.add_trial(create_trial(value=trial.value, params=params, distributions=drawn))

        def compressed(trial: FrozenTrial) -> float:
            return math.log1p(distances[trial.number] / unit)

        trees = []
        for tree in range(TREES):
            evaluator = FanovaImportanceEvaluator(n_trees=1, seed=self.settings.seed + tree)
            with QUIET(), suppress(RuntimeError):  # the trials that were drawn are all alike
                shares = get_param_importances(
                    memory, evaluator=evaluator, target=compressed, normalize=False
                )
                if whole := sum(shares.values()):
                    trees.append({key: float(share / whole) for key, share in shares.items()})
        if not trees:
            return {}
        found = dict[str, KeyImportance]()
        for key in self.distributions:
            each = [tree.get(key, 0.0) for tree in trees]
            low, high = np.quantile(each, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
            share = statistics.fmean(each)
            found[key] = KeyImportance(share, min(low, share), max(high, share))
        return dict(sorted(found.items(), key=lambda pair: -pair[1].share))

    @contextmanager
    def _read(self) -> Iterator[None]:
        """The file may come from a stranger: any exception becomes one line."""
        try:
            yield
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"{self.file}: is not the study of a search ({_reason(error)})"
            ) from error

    @contextmanager
    def _written(self) -> Iterator[None]:
        try:
            yield
        except (OSError, OptunaError, SQLAlchemyError, sqlite3.Error) as error:
            raise InputError(
                f"{self.file}: cannot be written ({_reason(error)}); no trained trial is lost; "
                "type the same command again when the cause is removed"
            ) from error


SAMPLERS: dict[str, Callable[..., BaseSampler]] = {
    "tpe": partial(TPESampler, multivariate=True, constant_liar=True),
    "random": RandomSampler,
}


def _distribution(parameter: Parameter) -> distributions.BaseDistribution:
    if not isinstance(parameter, Numbers):
        return distributions.CategoricalDistribution(parameter.extremes)
    low, high, log, step = parameter.low, parameter.high, parameter.log, parameter.step
    if parameter.integer:
        return distributions.IntDistribution(int(low), int(high), log=log, step=int(step or 1))
    return distributions.FloatDistribution(low, high, log=log, step=step)


def _storage(file: Path) -> RDBStorage:
    """With its own connection, because a path may have characters with a meaning in a URL."""
    connect = partial(
        sqlite3.connect, f"{file.absolute().as_uri()}?mode=rw", timeout=WAIT, uri=True,
        check_same_thread=False,
    )  # fmt: skip
    engine = {"creator": connect, "poolclass": NullPool}
    return RDBStorage("sqlite://", engine, skip_table_creation=True)


def _new_study(direction: StudyDirection, identity: Mapping[str, Any]) -> bytes:
    """The file of a study without trials. In a file, SQLite would sync each of Optuna's tables."""
    with closing(_in_memory()) as database:
        made = optuna.create_study(
            storage=_storage_in(database, new=False), study_name=NAME, direction=direction
        )
        made.set_user_attr("search", identity)
        return database.serialize()


@cache
def _tables() -> bytes:
    """A database with Optuna's tables, which are empty."""
    with closing(sqlite3.connect(":memory:", check_same_thread=False)) as database:
        _storage_in(database, new=True)
        return database.serialize()


def _in_memory() -> sqlite3.Connection:
    """A copy of `_tables`."""
    database = sqlite3.connect(":memory:", check_same_thread=False)
    database.deserialize(_tables())
    return database


def _storage_in(database: sqlite3.Connection, *, new: bool) -> RDBStorage:
    engine = {"creator": lambda: database, "poolclass": StaticPool}
    return RDBStorage("sqlite://", engine, skip_table_creation=not new)


def _check_database(file: Path) -> None:
    """Raises ValueError or sqlite3.Error for damaged files and databases of other programs."""
    if file.stat().st_size > LIMIT:
        raise ValueError(f"it has more than {LIMIT:,} bytes")
    with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=rw", uri=True)) as database:
        actual, expected = _schema(database), _schema_of_optuna()
        if {name for _, name, _ in actual} - {name for _, name, _ in expected}:
            raise ValueError("it has tables, views or triggers that are not Optuna's")
        if actual != expected:
            raise ValueError("its tables are not Optuna's")
        (answer,) = database.execute("PRAGMA quick_check(1)").fetchone()
        if answer != "ok":
            raise ValueError(f"it is damaged: {answer}")
        tables = [name for kind, name, _ in actual if kind == "table"]
        counts = [database.execute(f"SELECT count(*) FROM {name}").fetchone() for name in tables]
        if sum(count for (count,) in counts) > ROWS:
            raise ValueError(f"it has more than {ROWS:,} rows")


def _schema(database: sqlite3.Connection) -> set[tuple[str, str, str]]:
    """Kind, name and definition of everything in a database."""
    rows = database.execute("SELECT type, name, coalesce(sql, '') FROM sqlite_master")
    return {(kind, name, " ".join(sql.split())) for kind, name, sql in rows}


@cache
def _schema_of_optuna() -> set[tuple[str, str, str]]:
    """Everything that a study may have. A trigger, a view in place of a table, or an expression in
    an index or a column could do any work whenever the file is read or written."""
    with closing(_in_memory()) as database:
        return _schema(database)


def _reason(error: BaseException) -> str:
    """The innermost cause, in one line. Optuna wraps SQLAlchemy's errors, which wrap SQLite's."""
    while error.__cause__ is not None:
        error = error.__cause__
    return first_line(error)
