"""Trains the trials of a sweep as stacks.

While a sweep runs, its folder `.stacks` holds the plan, which says which trials form a stack, and
the common checkpoint of each stack. The folder is deleted when all trials have ended.
"""

import json
import logging
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from pkgutil import resolve_name

from pydantic import TypeAdapter

from kindling.config.executors import EXECUTORS
from kindling.config.schema import Config, Execution, joint_hash
from kindling.config.written import counted
from kindling.records.folder import Run
from kindling.records.sweep_folder import Sweep
from kindling.sweeps.executors.base import Executor
from kindling.sweeps.tasks import GroupTask, numbered
from kindling.system.errors import parsing
from kindling.system.files import read_bounded, write_into_folder
from kindling.system.units import MIB
from kindling.training.grouping import Group, group_trials

log = logging.getLogger(__name__)

_GROUPS = TypeAdapter(list[Group])


def build_executor(execution: Execution, configs: Sequence[Config]) -> Executor:
    """The executor that the keys choose, for trials with these configurations."""
    if execution.executor is None:
        return Executor()
    built: Executor = resolve_name(EXECUTORS[execution.executor].build)(execution, configs)
    return built


def train_trials(
    configs: Sequence[Config],
    folders: Sequence[Path],
    sweep: Sweep,
    max_trials: int | None,
    halving: int | None = None,
    executor: Executor | None = None,
) -> list[float]:
    """Trains every trial into its folder, in stacks where possible; returns the monitored values.

    Trials that have ended are not changed. When a stack fails, its trials get the status `failed`
    and the other stacks train. `halving`: see training/stopping.py; it compares the trials of a
    stack, so stacks are then not divided among the slots of the executor. Without an executor, the
    stacks train here, one after the other.
    """
    runs, executor = [Run(folder) for folder in folders], executor or Executor()
    groups = _groups(configs, max_trials, sweep, executor, halving)
    _tell(groups)
    tasks, here = [], Path.cwd()  # an executor may train elsewhere
    for trials in [tuple(group.trials) for group in groups]:
        own = tuple(configs[trial] for trial in trials)
        own_folders = tuple(here / folders[trial] for trial in trials)
        state_folder = here / sweep.stacks / joint_hash(own)
        tasks.append(
            GroupTask(sweep.folder.absolute(), trials, own, own_folders, state_folder, halving)
        )
    try:
        executor.run(tasks)
    finally:  # the last groups may have had no time for it
        sweep.write_results()
        if any(isinstance(config.checkpoint.keep, int) for config in configs):
            sweep.remove_surplus()
    if all(run.ended for run in runs):
        shutil.rmtree(sweep.stacks, ignore_errors=True)
    return [run.monitored for run in runs]


def _groups(
    configs: Sequence[Config],
    max_trials: int | None,
    sweep: Sweep,
    executor: Executor,
    halving: int | None,
) -> list[Group]:
    """The trials that train together: the plan in the folder of the stacks, else a new plan. A plan
    in a file is used even if another amount of memory is free now."""
    plan_file = sweep.stacks / f"{joint_hash(configs)}.json"
    if plan_file.exists():
        with parsing(f"{plan_file}: cannot be read"):
            groups = _GROUPS.validate_json(read_bounded(plan_file, MIB), strict=True)
        if sorted(t for group in groups for t in group.trials) == list(range(len(configs))):
            return groups
    slots = executor.slots if halving is None else 1
    groups = group_trials(configs, max_trials, slots, executor.place, compared=halving is not None)
    write_into_folder({plan_file: json.dumps([asdict(group) for group in groups])})
    return groups


def _tell(groups: Sequence[Group]) -> None:
    """Logs the sizes of the stacks, and why which trials train alone."""
    sizes = [len(group.trials) for group in groups]
    log.info("%s: %s", counted(sum(sizes), "trial"), _overview(sizes))
    for reason in dict.fromkeys(group.alone for group in groups if group.alone):
        trials = [trial for group in groups if group.alone == reason for trial in group.trials]
        verb = "train" if len(trials) > 1 else "trains"
        log.info("%s %s alone: %s", numbered(trials), verb, reason)


def _overview(sizes: Sequence[int]) -> str:
    stacked, alone = [str(size) for size in sizes if size > 1], sizes.count(1)
    parts = [f"{counted(len(stacked), 'stack')} of {', '.join(stacked)}"] if stacked else []
    return " and ".join([*parts, f"{alone} alone"] if alone else parts)
