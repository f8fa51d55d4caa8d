"""From the command line of `python -m src.confirm` to a checked confirmation, without torch."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kindling.config.measures import sort_key
from kindling.config.schema import Config
from kindling.config.written import counted, flat, written
from kindling.data.paths import path_faults
from kindling.records.confidence import fold_means
from kindling.records.confirm_record import (
    MOST_SEEDS,
    MOST_SETTINGS,
    Chosen,
    Record,
    read_record,
    value_of,
)
from kindling.records.folder import Run, is_confirmation, is_sweep, resume_command
from kindling.records.foreign import require_own_paths
from kindling.records.lookup import CONFIRM
from kindling.records.outcome import REPLICATED, Outcome, differing
from kindling.records.sweep_folder import Sweep
from kindling.sweeps.requirements import require_machine
from kindling.system.errors import InputError
from kindling.system.extras import missing_loggers
from kindling.system.files import require_contained
from kindling.system.launch import launch_info
from kindling.system.terminal import progress

TOP, SEEDS = 3, 20
LARGEST_SEED = 2**32 - 1


@dataclass(frozen=True)
class CheckedConfirmation:
    """`within`: the sweep or the confirmation that must still be there when the training begins."""

    folder: Path
    record: Record
    within: Path | None = field(default=None, compare=False)


def check_command_line(
    sweep: Path, top: int | None = None, seeds: int | None = None, output: Path | None = None
) -> CheckedConfirmation:
    """The confirmation of the best settings of a sweep, or the one in the folder `sweep`.

    Raises InputError for numbers out of range, a folder that is not a sweep, trials that cannot be
    compared or read, and a folder in use.
    """
    for option, value, least, most, usual in (
        ("--top", top, 1, MOST_SETTINGS, TOP),
        ("--seeds", seeds, 2, MOST_SEEDS, SEEDS),
    ):
        if value is not None and not least <= value <= most:
            raise InputError(
                f"{option} {value}: must be from {least} to {most:,}, for example {option} {usual}"
            )
    if is_confirmation(sweep):
        options = {"--top": top, "--seeds": seeds, "--output": output}
        typed = [option for option, value in options.items() if value is not None]
        if typed:
            raise InputError(
                f"{sweep}: is a confirmation, which continues as it was; leave out "
                f"{' '.join(typed)}, or name its sweep"
            )
        folder, record = sweep, read_record(sweep)
    else:
        folder = sweep / CONFIRM if output is None else output
        record = choose(sweep, top or TOP, seeds)
        _require_own(folder, record)
    require_contained(folder)
    _require_here(record, folder, folder.parent if is_confirmation(sweep) else sweep)
    within = sweep if sweep in (folder, *folder.parents) else None
    return CheckedConfirmation(folder, record, within)


def choose(sweep: Path, top: int, seeds: int | None) -> Record:
    """The `top` best settings of a sweep, or all if it has fewer, with fresh seeds, by default
    SEEDS, or one for each fold if there are more folds. If the trials have several folds, the seeds
    take turns on all folds.

    The value of a setting is the mean of its finished trials; of equal settings, the one of the
    earlier trial is better. A setting that lost a trial, or that lacks a fold, comes after all
    others, because the mean of the rest may be too good. Raises InputError when nothing can be
    chosen, and when there are fewer seeds than folds.
    """
    _require_sweep(sweep)
    folder = Sweep(sweep)
    outcomes = folder.outcomes()
    finished = [outcome for outcome in outcomes if value_of(outcome) is not None]
    if not finished:
        raise InputError(
            f"{sweep}: no trial has finished; type {resume_command(sweep)} to continue the sweep"
        )
    configs = _configs(folder.runs)
    trials = [(outcome, configs[outcome.run.folder]) for outcome in finished]
    used_folds = {config.data.fold for config in configs.values()}
    folds = _require_comparable(sweep, trials, folds=len(used_folds) > 1)
    count = max(SEEDS, folds or 0) if seeds is None else seeds
    if count < (folds or 0):
        raise InputError(
            f"--seeds {count}: the trials of {sweep} have data.folds={folds}, and each fold needs "
            f"a seed; type --seeds {folds} or more"
        )
    lost = {
        identity(configs[outcome.run.folder])
        for outcome in outcomes
        if outcome.status in ("failed", "diverged") and outcome.run.folder in configs
    }
    alike: dict[tuple[tuple[str, str], ...], list[tuple[Outcome, Config]]] = {}
    for outcome, config in trials:
        alike.setdefault(identity(config), []).append((outcome, config))
    settings = [_Setting(_furthest(own), key in lost) for key, own in alike.items()]
    ranked = sorted(settings, key=lambda setting: setting.rank(used_folds))
    repeated = ("seed",) if folds is None else REPLICATED
    return Record(
        sweep=str(sweep),
        found=len(ranked),
        keys=_varied(finished, [*alike]),
        seeds=fresh_seeds({config.seed for config in configs.values()}, count),
        settings=[setting.chosen(repeated) for setting in ranked[:top]],
        folds=folds,
    )


def identity(config: Config) -> tuple[tuple[str, str], ...]:
    """What trials of the same setting have in common: the keys and values but for REPLICATED."""
    values = flat(config.identity_values())
    return tuple((key, value) for key, value in values if key not in REPLICATED)


def fresh_seeds(used: set[int], count: int) -> list[int]:
    """The numbers after the largest used one; where they would be too large, the smallest numbers
    that are not used."""
    first = max(used) + 1
    if first + count - 1 <= LARGEST_SEED:
        return list(range(first, first + count))
    return [seed for seed in range(count + len(used)) if seed not in used][:count]


@dataclass(frozen=True)
class _Setting:
    """The finished trials of a setting."""

    trials: list[tuple[Outcome, Config]]
    lost: bool  # whether another of its trials failed or diverged

    @property
    def folds(self) -> list[int | None]:
        return [config.data.fold for _, config in self.trials]

    @property
    def value(self) -> float:
        """The mean over the folds, each of them the mean over its seeds."""
        values = [value_of(outcome) for outcome, _ in self.trials]
        known = [value for value in values if value is not None]
        return statistics.mean(fold_means(known, self.folds))

    def rank(self, folds: set[int | None]) -> tuple[bool, bool, int, float]:
        """`folds`: those that a setting without gaps has. Settings that halving dropped later, or
        not at all, come first."""
        gaps = self.lost or {*self.folds} < folds
        outcome, config = self.trials[0]
        whole, epochs = _reached(outcome)
        value = sort_key(config.checkpoint.monitor, self.value)
        return gaps, not whole, -epochs, value

    def chosen(self, repeated: Sequence[str]) -> Chosen:
        """`repeated`: the keys that the confirmation sets in each trial."""
        first, config = self.trials[0]
        return Chosen(
            config=config.unlabelled(),
            overrides={key: text for key, text in first.overrides.items() if key not in repeated},
            promised=self.value,
            trials=[int(outcome.run.folder.name) for outcome, _ in self.trials],
        )


def _furthest(trials: Sequence[tuple[Outcome, Config]]) -> list[tuple[Outcome, Config]]:
    """Leaves out the trials that halving dropped, if others of the setting got further."""
    furthest = max(_reached(outcome) for outcome, _ in trials)
    return [trial for trial in trials if _reached(trial[0]) == furthest]


def _reached(outcome: Outcome) -> tuple[bool, int]:
    """How far halving let a trial train: whether to its end, and else for how many epochs."""
    dropped = outcome.ending == "dropped"
    return not dropped, (outcome.epochs or 0) if dropped else 0


def _configs(runs: Sequence[Run]) -> dict[Path, Config]:
    """The configurations of all trials, also of those without a result: their seeds are used."""
    configs = {}
    for run in progress(runs, "trials read"):
        if run.config_file.exists() or run.result_file.exists():
            try:
                configs[run.folder] = run.config
            except InputError as error:
                fault = " ".join(str(error).split())
                raise InputError(
                    f"trial {run.folder.name} cannot be read; restore its file, or remove the "
                    f"folder of the trial ({fault})"
                ) from None
    return configs


def _varied(
    finished: Sequence[Outcome], identities: Sequence[tuple[tuple[str, str], ...]]
) -> list[str]:
    """The keys that the sweep varied, as typed; without the record of them, those that differ."""
    typed = differing([outcome.overrides for outcome in finished])
    keys = [key for key in typed if key not in REPLICATED]
    return keys or differing([dict(pairs) for pairs in identities])


# --- what is refused -----------------------------------------------------------------------------


def _require_sweep(folder: Path) -> None:
    if is_sweep(folder):
        return
    if not folder.exists():
        raise InputError(f"{folder}: there is no such folder; name a sweep, sweeps/DATE/TIME")
    if is_sweep(folder.parent) and folder.name.isdecimal():
        raise InputError(f"{folder}: is a trial; name its sweep, {folder.parent}")
    run = Run(folder)
    kind = "is one run" if run.config_file.exists() or run.started else "is not a sweep"
    raise InputError(
        f"{folder}: {kind}; name the folder of a sweep or a search, for example sweeps/DATE/TIME"
    )


def _require_comparable(
    sweep: Path, trials: Sequence[tuple[Outcome, Config]], *, folds: bool
) -> int | None:
    """Raises InputError unless the trials have the same monitored value on the same data, and with
    `folds` the same `data.folds`, which is returned."""
    compared = "their values cannot be compared; confirm sweeps"
    alike: dict[str, tuple[Sequence[Any], str]] = {
        "checkpoint.monitor": (
            [config.checkpoint.monitor for _, config in trials], f"{compared} with one monitor each"
        ),
        "data": ([outcome.data for outcome, _ in trials], f"{compared} on one data set each"),
    }  # fmt: skip
    if folds:
        alike["data.folds"] = (
            [config.data.folds for _, config in trials],
            "seeds cannot take turns on the folds; confirm sweeps with one data.folds each",
        )
    for key, (values, why) in alike.items():
        first: dict[Any, str] = {}
        for value, (outcome, _) in zip(values, trials, strict=True):
            first.setdefault(value, outcome.run.folder.name)
        if len(first) > 1:
            listed = ", ".join(f"{written(value)} in trial {name}" for value, name in first.items())
            raise InputError(f"{sweep}: its trials have different {key} ({listed}), so {why}")
    return trials[0][1].data.folds if folds else None


def _require_own(folder: Path, record: Record) -> None:
    """Raises InputError unless the folder is new, empty, or of this confirmation."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise InputError(f"{folder}: is not a folder; type --output FOLDER to name another one")
    if not folder.exists():
        return
    if is_confirmation(folder):
        other = read_record(folder)
        if other.plan != record.plan:
            sizes = [
                f"{counted(len(each.settings), 'setting')} with {len(each.seeds)} seeds"
                for each in (other, record)
            ]
            difference = "its sweep has changed since then"
            if sizes[0] != sizes[1]:
                difference = f"it confirms {sizes[0]}, not {sizes[1]}"
            raise InputError(
                f"{folder}: holds another confirmation ({difference}); type "
                f"{resume_command(folder)} to continue it, or --output FOLDER to begin a new one"
            )
        return
    visible = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    if visible:
        raise InputError(
            f"{folder}: holds {visible[0]}, not a confirmation; type --output FOLDER to name "
            "another folder"
        )


def _require_here(record: Record, folder: Path, sweep: Path) -> None:
    """Raises InputError with everything that this machine or process lacks, and for paths of a
    stranger's."""
    launched_by = launch_info().launched_by
    faults = []
    if launched_by is not None:
        faults.append(f"{launched_by} has started this process; start the confirmation alone")
    configs = [chosen.config for chosen in record.settings]
    for config in configs:
        faults += missing_loggers(config.logger.chosen)
        faults += config.only_from_python
        faults += path_faults(config.data.model_dump())
    if faults:
        raise InputError("\n  ".join([f"{folder}: cannot train here", *dict.fromkeys(faults)]))
    require_own_paths(configs, [folder, sweep])
    for config in configs:
        require_machine(config)
