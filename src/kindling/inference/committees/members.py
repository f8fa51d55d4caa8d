"""The arguments of `python -m src.committee`: which runs may become members of a committee.

All faults that the files of the runs show are found here, before torch is imported.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from kindling.config.measures import sort_key
from kindling.config.registry import is_lightning
from kindling.config.written import counted, flat
from kindling.records.folder import MOST_MEMBERS, Run, is_sweep
from kindling.records.lookup import COMMITTEE, checkpoint_of, timestamped
from kindling.records.outcome import Outcome, differing, read_outcome
from kindling.records.sweep_folder import Sweep
from kindling.system.errors import InputError, all_at_once
from kindling.system.installation import as_command

METRICS = ("val/acc", "val/r2", "val/loss")
PICKS = 50  # of --greedy without a number
MOST_PICKS = 1000
BEST_FIRST = 5  # of a pack: the best networks, which are members in any case
# Keys of the section `data` that do not change which samples are in the validation set.
LOADING = (
    "root", "batch_size", "drop_last", "order", "sampler", "loader", "num_workers", "pin_memory",
    "persistent_workers",
)  # fmt: skip


@dataclass(frozen=True)
class CommitteeRequest:
    """The checked arguments. `candidates` are sorted by their metric `by`, the best first; without
    `greedy`, they are the members. A candidate is one run, or the runs of all folds of one setting.
    `greedy` is the number of picks."""

    paths: Sequence[Path]
    candidates: Sequence[Sequence[Outcome]]
    by: str
    best: int | None
    greedy: int | None
    folder: Path
    start: int = 0  # so many of the best are picked first


def read_request(
    paths: Sequence[Path],
    best: int | None = None,
    greedy: int | None = None,
    by: str | None = None,
    folder: Path | None = None,
    *,
    start: int = 0,
) -> CommitteeRequest:
    """Checks the arguments; `paths` are one sweep, or several runs. Raises InputError with all
    faults: of the numbers, of the runs, and for a folder that exists."""
    first, swept = paths[0], len(paths) == 1 and is_sweep(paths[0])
    for option, number, most in (("--best", best, MOST_MEMBERS), ("--greedy", greedy, MOST_PICKS)):
        least = 1 if option == "--best" else 2  # of folds, a setting is a committee by itself
        if number is not None and not least <= number <= most:
            raise InputError(f"{option} {number}: must be from 2 to {most}")
    if start and not (greedy and 1 <= start <= greedy):
        raise InputError(f"--start {start}: must be from 1 to the number of --greedy, {greedy}")
    if swept:
        found = [outcome for outcome in Sweep(first).outcomes() if outcome.finished]
    else:
        found = _runs(paths)
    if greedy is not None:  # checkpoint.keep may have removed weights
        found = [outcome for outcome in found if outcome.run.best_checkpoint.exists()]
    if len(found) < 2:
        has = counted(len(found), "finished trial")
        weights = " with weights" if greedy else ""
        raise InputError(f"{first}: has {has}{weights}; a committee needs two or more")
    by = by or _monitor(found)
    score = found[0].score
    if by not in (f"val/{score}", "val/loss"):
        raise InputError(f"--by {by}: the runs have no such measure; type --by val/{score}")
    candidates = _settings(found, first if swept else None)
    folds = len(candidates[0])
    if swept and best is None and greedy is None and (folds == 1 or candidates[1:]):
        raise InputError(f"{first}: is a sweep; type --best N or --greedy too")
    if best == 1 and folds == 1:
        raise InputError(f"--best {best}: must be from 2 to {MOST_MEMBERS}")
    candidates.sort(key=lambda setting: sort_key(by, _mean(by, setting)))
    what = "setting" if folds > 1 else "trial" if swept else "run"
    has = counted(len(candidates), f"finished {what}") + " with all folds" * (folds > 1)
    most = min(len(candidates), MOST_MEMBERS // folds)
    if best is not None and best > most:
        raise InputError(
            f"--best {best}: {first if swept else 'the command'} has {has}; type --best {most} or "
            "less"
        )
    candidates = candidates[: best or most]
    _require_alike([outcome for setting in candidates for outcome in setting], greedy)
    folder = folder or (first / COMMITTEE if swept else timestamped("runs"))
    if folder.exists() or folder.is_symlink():
        raise InputError(f"{folder}: exists already; type --folder FOLDER with another name")
    return CommitteeRequest(paths, candidates, by, best, greedy, folder, start)


def _mean(by: str, setting: Sequence[Outcome]) -> float | None:
    values = [outcome.metric(by) for outcome in setting]
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


def _settings(found: Sequence[Outcome], sweep: Path | None) -> list[Sequence[Outcome]]:
    """Each run alone; of several folds of a cross-validation, the runs of all folds of a setting.
    Raises InputError for named runs without the other folds, and for a sweep without a setting
    whose folds are all finished."""
    if len({outcome.run.config.data.fold for outcome in found}) == 1:
        return [(outcome,) for outcome in found]
    complete, faults = list[Sequence[Outcome]](), list[str]()
    of_setting = dict[str, dict[int, list[Outcome]]]()
    for outcome in found:
        config = outcome.run.config
        if config.data.fold is None:
            faults.append(f"{outcome.run.folder}: is of no fold; name the runs of folds alone")
            continue
        values = config.identity_values()
        del values["data"]["fold"]
        of_fold = of_setting.setdefault(json.dumps(values, sort_keys=True), {})
        of_fold.setdefault(config.data.fold, []).append(outcome)
    for of_fold in of_setting.values():
        first = next(iter(of_fold.values()))[0].run
        count = first.config.data.folds or 0
        every = [of_fold.get(fold, []) for fold in range(count)]
        complete += zip(*every, strict=False)
        most = max(map(len, every))
        absent = [str(fold) for fold in range(count) if len(every[fold]) < most]
        if absent:
            told = f"fold {absent[0]} of {count} is"
            if absent[1:]:
                told = f"folds {', '.join(absent)} of {count} are"
            train = f"{first.command_without(['data.fold'])} data.fold={absent[0]}"
            faults.append(
                f"{first.folder}: of its setting, {told} not there, "
                f"which a committee of folds needs; type {train}"
            )
    if (sweep is None and faults) or not complete:
        raise all_at_once(faults, "no committee was made")
    return complete


def _runs(paths: Sequence[Path]) -> list[Outcome]:
    """The runs that were named. Raises InputError with a line for each that cannot be a member."""
    if len(paths) < 2:
        checkpoint_of(paths[0])
        raise InputError(f"{paths[0]}: is one run; name a sweep, or two runs or more")
    if len(paths) > MOST_MEMBERS:
        raise InputError(f"{len(paths)} runs were named; name {MOST_MEMBERS} or less")
    found, faults, seen = list[Outcome](), list[str](), set[Path]()
    for path in paths:
        try:
            found.append(_finished_run(path))
            if path.resolve() in seen:
                raise InputError(f"{path}: is named twice; name each run once")
            seen.add(path.resolve())
        except InputError as error:
            faults.append(str(error))
    if faults:
        raise all_at_once(faults, "no committee was made")
    return found


def _finished_run(path: Path) -> Outcome:
    if is_sweep(path):
        raise InputError(f"{path}: is a sweep; name it alone, or name its trials")
    if path.is_file():
        raise InputError(f"{path}: is a file; name the folder of the run")
    run = Run(path)
    if not run.config_file.exists():
        checkpoint_of(path)  # says what it is instead
    outcome = read_outcome(run)
    if is_lightning("model", name := run.config.model.name):
        raise InputError(
            f"{path}: model={name} is a LightningModule; a committee averages what Kindling's own "
            "tasks say"
        )
    if not outcome.result:
        raise InputError(
            f"{path}: is still running, or was killed; a member must be finished. Wait for it, or "
            f"type {as_command('train')} resume={run.resume_folder}"
        )
    if not outcome.finished:
        raise InputError(f"{path}: is {outcome.status}; name finished runs only")
    if "committee" in outcome.result:
        raise InputError(f"{path}: is a committee; name its members")
    checkpoint_of(path)
    return outcome


def _monitor(found: Sequence[Outcome]) -> str:
    """The metric that all runs monitored, to choose and sort by."""
    monitors = {outcome.monitor for outcome in found}
    if len(monitors) != 1 or not monitors <= {*METRICS}:
        listed, score = ", ".join(sorted(monitors)), found[0].score
        raise InputError(f"the runs monitored {listed}; type --by val/{score} or --by val/loss")
    return monitors.pop()


def _require_alike(found: Sequence[Outcome], greedy: int | None) -> None:
    """Raises InputError unless all runs have weights and the same validation set."""
    first, *others = found
    asked = _split(first.run)
    if greedy is not None and not first.run.config.data.holds_out_validation:
        raise InputError(
            f"--greedy: {first.run.folder} has no validation set of its own "
            "(data.val_fraction=null); type --best N"
        )
    faults = []
    for outcome in found:
        try:
            checkpoint_of(outcome.run.folder)
        except InputError as error:
            faults.append(str(error))
    for other in others:
        split = _split(other.run)
        keys = [key for key in {**asked, **split} if asked.get(key) != split.get(key)]
        # Whether a run from before data.empty read its table alike is seen from its columns.
        keys = [key for key in keys if key != "empty" or None not in (asked[key], split[key])]
        if keys:
            told = ", ".join(
                f"data.{key}={split.get(key)} (there {asked.get(key)})" for key in keys[:3]
            )
            faults.append(
                f"{other.run.folder}: has other data than {first.run.folder}: {told}; name runs "
                "with the same data and the same validation set"
            )
    if faults:
        raise all_at_once(faults, "no committee was made")


def _split(run: Run) -> dict[str, Any]:
    """What decides the samples of the validation set: keys of `data`, and the data set used."""
    section = run.config.data.model_dump(mode="json")
    if section.get("kind", "auto") is None:  # the arrays that a run from before this key could take
        section["kind"] = "auto"  # are read alike by this
    unused = LOADING if section["folds"] is None else (*LOADING, "val_fraction", "fold")
    kept = {key: value for key, value in section.items() if key not in unused}
    return kept | {"name": run.result.get("data", {}).get("name", section["name"])}


def differing_keys(runs: Sequence[Run]) -> list[str]:
    """The keys in which the configurations of the runs differ."""
    return differing([dict(flat(run.config.identity_values())) for run in runs])
