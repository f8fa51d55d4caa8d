"""Trains the trials of a sweep as stacks.

While a sweep runs, its folder `.stacks` holds the plan, which says which trials form a stack, and
the common checkpoint of each stack. The folder is deleted when all trials have ended.
"""

import hashlib
import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter

from src.config.schema import Config
from src.runs.folder import Run
from src.runs.sweep_folder import Sweep
from src.system.errors import InputError, parsing
from src.system.files import MIB, read_bounded, write_durably
from src.training.fit import fit_stack
from src.training.grouping import Group, plan

log = logging.getLogger(__name__)

_GROUPS = TypeAdapter(list[Group])


def train_trials(
    configs: Sequence[Config],
    folders: Sequence[Path],
    sweep: Sweep,
    max_trials: int | None,
    halving: int | None = None,
) -> list[float]:
    """Trains every trial into its folder, in stacks where possible; returns the monitored values.

    Trials that have ended are not changed. When a stack fails, its trials get the status `failed`
    and the other stacks train. `halving`: see src/training/stopping.py.
    """
    runs = [Run(folder) for folder in folders]
    plan_file = sweep.stacks / f"{_digest(configs)}.json"
    groups = _groups(configs, max_trials, plan_file)
    stacked = [len(group.trials) for group in groups if len(group.trials) > 1]
    log.info("%d trials: %s", len(configs), _overview(stacked, len(groups) - len(stacked)))
    for reason in dict.fromkeys(group.alone for group in groups if group.alone):
        alone = [trial for group in groups if group.alone == reason for trial in group.trials]
        verb = "train" if len(alone) > 1 else "trains"
        log.info("%s %s alone: %s", _numbered(alone), verb, reason)
    for group in groups:
        group_configs = [configs[trial] for trial in group.trials]
        group_folders = [folders[trial] for trial in group.trials]
        try:
            fit_stack(group_configs, group_folders, sweep.stacks / _digest(group_configs), halving)
        except InputError as error:
            log.error("error: %s: %s", _numbered(group.trials), error)
        except Exception:
            log.exception("%s failed", _numbered(group.trials))
        finally:
            sweep.write_results()
    if all(run.ended for run in runs):
        plan_file.unlink(missing_ok=True)
        with suppress(OSError):
            sweep.stacks.rmdir()
    return [run.monitored for run in runs]


def _groups(configs: Sequence[Config], max_trials: int | None, plan_file: Path) -> list[Group]:
    """The trials that train together: the plan in the file, else a new plan. A plan in the file is
    used even if another amount of memory is free now."""
    if plan_file.exists():
        with parsing(f"{plan_file}: cannot be read"):
            groups = _GROUPS.validate_json(read_bounded(plan_file, MIB), strict=True)
        if sorted(t for group in groups for t in group.trials) == list(range(len(configs))):
            return groups
    groups = plan(configs, max_trials)
    plan_file.parent.mkdir(parents=True, exist_ok=True)
    write_durably(plan_file, json.dumps([asdict(group) for group in groups]))
    return groups


def _digest(configs: Sequence[Config]) -> str:
    joined = "".join(config.hash() for config in configs)
    return hashlib.sha256(joined.encode()).hexdigest()[:12]


def _numbered(trials: Sequence[int]) -> str:
    return f"{'trials' if len(trials) > 1 else 'trial'} {', '.join(map(str, trials))}"


def _overview(stacked: Sequence[int], alone: int) -> str:
    stacks = f"{len(stacked)} {'stacks' if len(stacked) > 1 else 'stack'} of "
    parts = [stacks + ", ".join(map(str, stacked))] if stacked else []
    return " and ".join([*parts, f"{alone} alone"] if alone else parts)
