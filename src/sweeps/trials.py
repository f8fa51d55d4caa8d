"""Trains the trials of a sweep as stacks.

The folder of stacks in a running sweep says which trials form a stack, and holds the common
checkpoint of each stack. It is deleted when all trials have ended.
"""

import hashlib
import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from src.config.schema import Config
from src.runs.folder import Run
from src.runs.sweep_folder import Sweep
from src.system.errors import InputError
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

    Trials that have ended are left as they are. When a stack fails, its trials get the status
    `failed` and the other stacks train. `halving`: see src/training/stopping.py.
    """
    runs, kept = [Run(folder) for folder in folders], sweep.stacks / f"{_digest(configs)}.json"
    groups = _groups(configs, max_trials, kept)
    stacked = [len(group.trials) for group in groups if len(group.trials) > 1]
    log.info("%d trials: %s", len(configs), _overview(stacked, len(groups) - len(stacked)))
    for reason in dict.fromkeys(group.alone for group in groups if group.alone):
        alone = [str(trial) for group in groups if group.alone == reason for trial in group.trials]
        name, verb = ("trials", "train") if len(alone) > 1 else ("trial", "trains")
        log.info("%s %s %s alone: %s", name, ", ".join(alone), verb, reason)
    for group in groups:
        chosen = [configs[trial] for trial in group.trials]
        try:
            own = [folders[trial] for trial in group.trials]
            fit_stack(chosen, own, sweep.stacks / _digest(chosen), halving)
        except InputError as error:
            log.error("error: %s", error)
        except Exception:
            log.exception("trials %s failed", ", ".join(map(str, group.trials)))
        finally:
            sweep.write_results()
    if all(run.ended for run in runs):
        kept.unlink(missing_ok=True)
        with suppress(OSError):
            sweep.stacks.rmdir()
    return [run.monitored for run in runs]


def _groups(configs: Sequence[Config], max_trials: int | None, kept: Path) -> list[Group]:
    """The trials that train together: the plan in `kept`, whatever memory is free, or a new one."""
    if kept.exists():
        try:
            groups = _GROUPS.validate_json(read_bounded(kept, MIB), strict=True)
        except ValidationError as error:
            reason = error.errors(include_url=False, include_input=False)[0]["msg"]
            raise InputError(f"{kept}: cannot be read ({reason})") from None
        if sorted(t for group in groups for t in group.trials) == list(range(len(configs))):
            return groups
    groups = plan(configs, max_trials)
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_durably(kept, json.dumps([asdict(group) for group in groups]))
    return groups


def _digest(configs: Sequence[Config]) -> str:
    joined = "".join(config.hash() for config in configs)
    return hashlib.sha256(joined.encode()).hexdigest()[:12]


def _overview(stacked: Sequence[int], alone: int) -> str:
    parts = [f"{len(stacked)} stack{'s'[: len(stacked) > 1]} of {', '.join(map(str, stacked))}"]
    return " and ".join([*(parts if stacked else []), *([f"{alone} alone"] if alone else [])])
