"""Finds and checks the checkpoint from which a run is resumed."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import AfterValidator, Field, FiniteFloat, ValidationError, model_validator
from torch import Tensor
from typing_extensions import TypeAliasType

from kindling.config import registry
from kindling.config.measures import LOGGED_NAME
from kindling.config.schema import MAX_EPOCHS, Config
from kindling.ranks import processes as ranks
from kindling.records.checkpoint import CheckpointPair, CheckpointPart, require_format, wrong_fields
from kindling.records.config_files import require_same, require_same_digest
from kindling.records.folder import ALWAYS, MOST_LOGGED, WIDTH, Count, Run, columns
from kindling.records.groups import Epoch
from kindling.steps import base as ways
from kindling.steps.base import StepChoice
from kindling.system.errors import InputError
from kindling.training.checkpoints import Best
from kindling.training.lightning_module import LightningRun
from kindling.training.module import StackModule

log = logging.getLogger(__name__)

# Lightning's progress counters: nested dictionaries, one level per loop.
Loops = TypeAliasType("Loops", "Count | bool | dict[str, Loops]")


def _check_counts(row: list[float | int | None]) -> list[float | int | None]:
    if not all(isinstance(value, int) and 0 <= value < 2**63 for value in row[:2]):
        raise ValueError("epoch and step must be numbers")
    return row


SavedRow = Annotated[
    list[float | int | None],
    Field(min_length=len(ALWAYS), max_length=WIDTH + 1 + MOST_LOGGED),
    AfterValidator(_check_counts),
]


class _History(CheckpointPart):
    seconds: Annotated[FiniteFloat, Field(ge=0)]
    rows: list[Annotated[list[SavedRow], Field(max_length=MAX_EPOCHS + 1)]]
    logged: list[Annotated[str, Field(pattern=f"^{LOGGED_NAME.pattern}$")]] = Field(
        default_factory=list
    )


class _BestWeights(CheckpointPart):
    best: list[Best | None]


class _Callbacks(CheckpointPart):  # Lightning's keys are the names of the callbacks' classes
    History: _History
    Checkpoints: _BestWeights


class _Position(CheckpointPart):
    epoch: Epoch
    batch: Count


class _Random(CheckpointPart):
    python: Annotated[list[int | Tensor | float | None], Field(min_length=3, max_length=3)]
    numpy: Annotated[list[Tensor | int | float], Field(min_length=4, max_length=4)]
    torch: Tensor
    cuda: list[Tensor]
    mps: Tensor | None


class _Rank(CheckpointPart):
    random: _Random
    # The arguments of EpochMetrics.update. None at the end of an epoch.
    metrics: tuple[Tensor, Tensor, Annotated[int, Field(gt=0, lt=2**63)]] | None
    gradients: list[Tensor]
    measures: dict[str, dict[str, Any]] = Field(default_factory=dict)  # of a LightningModule


class _Logged(CheckpointPart):
    names: list[str]
    sums: dict[str, tuple[float, float]]
    values: dict[str, float]


class State(CheckpointPart):
    """The fields of a checkpoint that Kindling adds, and the fields of Lightning that Kindling
    reads. `History.rows`, `best` and `average` have an element per trial. The keys of `diverged`
    and `stopped` are trials; see `TrialStatuses` for the values."""

    state_dict: dict[str, Any]  # tensors; of a LightningModule also what get_extra_state returns
    optimizer_states: list[dict[str, Any]]
    loops: dict[str, Loops]
    callbacks: _Callbacks
    diverged: dict[int, Annotated[int, Field(gt=0, lt=2**63)]]
    stopped: dict[int, str]
    stacked: Annotated[list[int], Field(min_length=1)]
    threads: Annotated[int, Field(gt=0, le=4096)]
    step: Literal["native", "kernel", "closed_form", "vmap", "autograd", "lightning"] | None = (
        None  # None: before there were several
    )
    step_reason: Annotated[str, Field(max_length=ways.LONGEST_REASON)] = ""  # why not a faster way
    average: list[dict[str, Tensor]]
    measures: dict[str, dict[str, Any]] = Field(default_factory=dict)  # before each rank had them
    position: _Position
    ranks: list[_Rank]
    logged: _Logged | None = None
    user_callbacks: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_trials(self) -> Self:
        history, best = self.callbacks.History, self.callbacks.Checkpoints.best
        trials = range(len(history.rows))
        values = self.state_dict.values()
        if self.step != ways.LIGHTNING and not all(isinstance(each, Tensor) for each in values):
            raise ValueError("state_dict holds what is not a tensor")
        for name in ("stacked", "diverged", "stopped"):
            if not all(number in trials for number in getattr(self, name)):
                raise ValueError(f"{name} names a trial that is not one of {len(trials)}")
        if self.stacked != sorted(set(self.stacked)):
            raise ValueError("stacked is not a sorted list of different trials")
        if len(best) != len(trials) or len(self.average) not in (0, len(trials)):
            raise ValueError(f"not every one of {len(trials)} trials has its weights")
        for rank in self.ranks:
            shapes = {tuple(values.shape[1:]) for values in (rank.metrics or ())[:2]}
            if not shapes <= {(len(self.stacked),)}:
                raise ValueError("ranks.metrics are not those of the stacked trials")
        return self


class Resumed(NamedTuple):
    """A checkpoint to resume from: its path, its content, and the checked fields of the content."""

    path: Path
    content: dict[str, Any]
    state: State


def find_state(
    pair: CheckpointPair, module: StackModule | LightningRun, world_size: int
) -> Resumed | None:
    """The newest undamaged checkpoint, or None if there is no checkpoint. The module gets the kind
    of step and the trials of the checkpoint. Raises InputError if all are damaged, or if another
    run, another number of devices or another kind of machine wrote the checkpoint."""
    newest = pair.read()
    if newest is None:
        return None
    content, path = newest
    batches = module.step_plan.batches_per_epoch
    state = check_state(content, path, module.metadata, world_size, batches)
    if (state.step == ways.LIGHTNING) != (module.step.kind == ways.LIGHTNING):
        raise InputError(f"{path}: cannot be resumed: another run wrote it")
    if ranks.is_rank_zero():
        log.info("going on from epoch %d, batch %d", state.position.epoch, state.position.batch)
        _warn_of_new_schedule(module.configs[0], content["kindling"])
    module.step = _same_step(module.step, state, path)
    module.set_stacked_trials(state.stacked, state.threads)
    return Resumed(path, content, state)


def _same_step(choice: StepChoice, state: State, path: Path) -> StepChoice:
    """The kind of step that the run was trained with: another would give other last bits. Raises
    InputError if that was the engine, and this machine has none."""
    trained_by, reason = state.step or ways.CLOSED_FORM, "the checkpoint was trained in this way"
    if choice.kind == trained_by:
        return choice
    if trained_by == ways.VMAP:
        return StepChoice(ways.VMAP, reason)
    if ways.AUTOGRAD in (choice.kind, trained_by):
        return choice
    if trained_by == ways.NATIVE:
        raise InputError(
            f"{path}: was trained by the engine, which cannot train here: {choice.reason}"
        )
    if trained_by == ways.KERNEL:
        return StepChoice(ways.CLOSED_FORM, choice.reason or "the checkpoint was trained on a GPU")
    return StepChoice(ways.CLOSED_FORM, state.step_reason or reason)


def clear(runs: Sequence[Run], configs: Sequence[Config], *, stacked: bool, compared: bool) -> None:
    """Deletes the histories and results of runs that were killed before their first checkpoint.
    Raises InputError if the history shows that there was a checkpoint. That of a trial of a stack
    does not show it, because a large stack may have no checkpoint for some epochs. A trial that has
    ended stays, unless successive halving compares it with trials that train again."""
    for run, config in zip(runs, configs, strict=True):
        ended = run.ended_as(config)
        if ended and not compared:
            continue
        history = run.history if not stacked and run.history_file.exists() else []
        epochs = history[-1]["epoch"] if history else None
        if epochs and epochs > (run.config.checkpoint.every_n_epochs or 1):
            raise InputError(
                f"{run.checkpoints}: the checkpoints of this run are missing; it came to epoch "
                f"{epochs}; delete {run.history_file} to train from the start"
            )
        if ended or not run.ended:  # else it trains on, see `History`
            run.forget()


def _warn_of_new_schedule(config: Config, saved: Any) -> None:
    """Warns if the new number of epochs would have given other learning rates or augmentations from
    the start."""
    first = saved[0] if isinstance(saved, list) else saved
    was, now = first["config"]["trainer"]["max_epochs"], config.trainer.max_epochs
    if was == now:
        return
    spread = []
    if config.scheduler.depends_on_max_epochs:
        spread.append(f"scheduler={config.scheduler.name}: its learning rates")
    if (anneal := config.augmentation.anneal) > 0:
        spread.append(f"augmentation.anneal={anneal:g}: the strengths of the augmentation")
    for what in spread:
        log.warning(
            f"{what} are spread over trainer.max_epochs. They follow the curve of {now} epochs "
            f"from here on, and followed that of {was} so far. A run that had {now} epochs from "
            "the start would give another result."
        )


def check_state(
    content: dict[str, Any],
    path: Path,
    metadata: Sequence[dict[str, Any]],
    world_size: int,
    batches: int,
) -> State:
    """The state of the trials. The saved metadata must equal `metadata`, the metadata of the trials
    now, except that trainer.max_epochs may be larger now.

    Raises InputError for the state of other trials, and for other numbers of ranks and batches.
    """
    saved = content.get("kindling")
    saved_metadata = saved if isinstance(saved, list) else [saved]
    try:
        state = State.model_validate(content)
    except ValidationError as error:
        raise InputError(
            f"{path}: cannot be resumed: these fields are missing or wrong: {wrong_fields(error)}; "
            "train again in a new folder"
        ) from None
    trials = len(metadata)
    if len(saved_metadata) != trials:
        raise InputError(f"{path}: contains {len(saved_metadata)} trials, expected {trials}")
    for was, now in zip(saved_metadata, metadata, strict=True):
        before = require_format(was, path)
        brought, brings = (dict(each.get("extensions", {})) for each in (before, now))
        for line in registry.other_versions(brought, brings):
            log.warning("%s: %s; the end of the run may differ", path, line)
        own = now["config"]["data"].get("path")
        require_same_digest(path, own, before.get("digest"), now.get("digest"))
        same = {"extensions": None}  # only the versions may differ: the names are in the config
        require_same({**before, **same}, {**now, **same}, f"{path}: is of another run")
    rows = state.callbacks.History.rows
    config = metadata[0]["config"]
    monitored = columns(config["task"]["name"], config["checkpoint"]["monitor"])
    if state.step == ways.LIGHTNING:  # logs all others itself
        monitored = ALWAYS
    width = len(monitored) + len(state.callbacks.History.logged)
    wrong = any(len(row) != width for trial in rows for row in trial)
    if wrong or len(rows) != trials or state.position.batch > batches:
        raise InputError(f"{path}: cannot be resumed: another run wrote it")
    if len(state.ranks) != world_size:
        raise InputError(
            f"{path}: was written on {len(state.ranks)} devices; on {world_size} devices the "
            f"result would differ; type trainer.devices={len(state.ranks)}"
        )
    return state
