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

from pydantic import TypeAdapter

from src.config.schema import Config, joint_hash
from src.config.written import counted
from src.runs.folder import Run
from src.runs.sweep_folder import Sweep
from src.sweeps.executors.base import Executor, InProcess
from src.sweeps.tasks import Task, numbered
from src.system.errors import parsing
from src.system.files import MIB, read_bounded, write_durably
from src.training.grouping import Group, plan

log = logging.getLogger(__name__)

_GROUPS = TypeAdapter(list[Group])


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
    and the other stacks train. `halving`: see src/training/stopping.py; it compares the trials of a
    stack, so stacks are then not divided among the slots of the executor. Without an executor, the
    stacks train here, one after the other.
    """
    runs, executor = [Run(folder) for folder in folders], executor or InProcess()
    plan_file = sweep.stacks / f"{joint_hash(configs)}.json"
    groups = _groups(configs, max_trials, plan_file, executor, halving)
    stacked = [len(group.trials) for group in groups if len(group.trials) > 1]
    overview = _overview(stacked, len(groups) - len(stacked))
    log.info("%s: %s", counted(len(configs), "trial"), overview)
    for reason in dict.fromkeys(group.alone for group in groups if group.alone):
        alone = [trial for group in groups if group.alone == reason for trial in group.trials]
        verb = "train" if len(alone) > 1 else "trains"
        log.info("%s %s alone: %s", numbered(alone), verb, reason)
    tasks = [_task(group.trials, configs, folders, sweep, halving) for group in groups]
    try:
        executor.run(tasks)
    finally:  # the last groups may have had no time for it
        sweep.write_results()
        if any(isinstance(config.checkpoint.keep, int) for config in configs):
            sweep.remove_surplus()
    if all(run.ended for run in runs):
        shutil.rmtree(sweep.stacks, ignore_errors=True)
    return [run.monitored for run in runs]


def _task(
    trials: Sequence[int],
    configs: Sequence[Config],
    folders: Sequence[Path],
    sweep: Sweep,
    halving: int | None,
) -> Task:
    group_configs = tuple(configs[trial] for trial in trials)
    state_folder = (sweep.stacks / joint_hash(group_configs)).absolute()
    return Task(
        sweep.folder.absolute(), tuple(trials), group_configs,
        tuple(folders[trial].absolute() for trial in trials), state_folder, halving,
    )  # fmt: skip


def _groups(
    configs: Sequence[Config],
    max_trials: int | None,
    plan_file: Path,
    executor: Executor,
    halving: int | None,
) -> list[Group]:
    """The trials that train together: the plan in the file, else a new plan. A plan in the file is
    used even if another amount of memory is free now."""
    if plan_file.exists():
        with parsing(f"{plan_file}: cannot be read"):
            groups = _GROUPS.validate_json(read_bounded(plan_file, MIB), strict=True)
        if sorted(t for group in groups for t in group.trials) == list(range(len(configs))):
            return groups
    slots = executor.slots if halving is None else 1
    groups = plan(configs, max_trials, slots, executor.place, compared=halving is not None)
    plan_file.parent.mkdir(parents=True, exist_ok=True)
    write_durably(plan_file, json.dumps([asdict(group) for group in groups]))
    return groups


def _overview(stacked: Sequence[int], alone: int) -> str:
    stacks = f"{len(stacked)} {'stacks' if len(stacked) > 1 else 'stack'} of "
    parts = [stacks + ", ".join(map(str, stacked))] if stacked else []
    return " and ".join([*parts, f"{alone} alone"] if alone else parts)
