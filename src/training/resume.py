"""Finds the checkpoint of a run, checks it and gives it to Lightning."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, FiniteFloat, ValidationError, model_validator
from torch import Tensor
from typing_extensions import TypeAliasType

from src.config.schema import MAX_EPOCHS, Config
from src.runs.checkpoint import CheckpointPair, CheckpointPart, require_format, wrong_fields
from src.runs.config_files import require_same
from src.runs.folder import HISTORY, Count, Run
from src.system.errors import InputError, first_line
from src.training import ranks
from src.training.classifier import Classifier

log = logging.getLogger(__name__)

Epoch = Annotated[int, Field(ge=0, le=MAX_EPOCHS)]
# Lightning's counters, each under the names of its loop.
Loops = TypeAliasType("Loops", "Count | bool | dict[str, Loops]")


def _check_counts(row: list[float | int | None]) -> list[float | int | None]:
    if not all(isinstance(value, int) and 0 <= value < 2**63 for value in row[:2]):
        raise ValueError("epoch and step must be numbers")
    return row


Row = Annotated[
    list[float | int | None],
    Field(min_length=len(HISTORY), max_length=len(HISTORY)),
    AfterValidator(_check_counts),
]


class _History(CheckpointPart):
    seconds: Annotated[FiniteFloat, Field(ge=0)]
    rows: list[Annotated[list[Row], Field(max_length=MAX_EPOCHS + 1)]]


class _Best(CheckpointPart):
    value: float
    epoch: Epoch
    step: Count
    weights: dict[str, Tensor]


class _BestWeights(CheckpointPart):
    best: list[_Best | None]


class _Callbacks(CheckpointPart):
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
    metrics: tuple[Tensor, Tensor, Annotated[int, Field(gt=0, lt=2**63)]] | None
    gradients: list[Tensor]


class State(CheckpointPart):
    """The fields of a checkpoint that Kindling adds, and the fields of Lightning that Kindling
    reads. `History.rows` has a list per trial."""

    state_dict: dict[str, Tensor]
    optimizer_states: list[dict[str, Any]]
    loops: dict[str, Loops]
    callbacks: _Callbacks
    diverged: dict[int, Annotated[int, Field(gt=0, lt=2**63)]]
    stopped: dict[int, str]
    stacked: Annotated[list[int], Field(min_length=1)]
    threads: Annotated[int, Field(gt=0, le=4096)]
    average: list[dict[str, Tensor]]
    position: _Position
    ranks: list[_Rank]

    @model_validator(mode="after")
    def _check_trials(self) -> Self:
        history, best = self.callbacks.History, self.callbacks.Checkpoints.best
        trials = range(len(history.rows))
        for name in ("stacked", "diverged", "stopped"):
            if not all(number in trials for number in getattr(self, name)):
                raise ValueError(f"{name} names a trial that is not one of {len(trials)}")
        if self.stacked != sorted(set(self.stacked)):
            raise ValueError("stacked is not a sorted list of different trials")
        if len(best) != len(trials) or len(self.average) not in (0, len(trials)):
            raise ValueError(f"not every one of {len(trials)} trials has its weights")
        for rank in self.ranks:
            shapes = {tuple(each.shape[1:]) for each in (rank.metrics or ())[:2]}
            if not shapes <= {(len(self.stacked),)}:
                raise ValueError("ranks.metrics are not those of the stacked trials")
        return self


@dataclass(frozen=True)
class Resumed:
    """A checkpoint to resume from: its file, its whole content, and what was checked of it."""

    path: Path
    content: dict[str, Any]
    state: State


def find_state(
    slot: CheckpointPair, runs: Sequence[Run], classifier: Classifier, world_size: int
) -> Resumed | None:
    """The newest good state in the slot. Returns None if there is no checkpoint; histories and
    results are then deleted.

    Raises InputError for files that are damaged, lost, or of another run or other devices.
    """
    found = slot.read()
    if found is None:
        if not ranks.rank():
            for run in runs:
                _clear(run)
        return None
    content, path = found
    batches = classifier.step_plan.batches_per_epoch
    state = check_state(content, path, classifier.metadata, world_size, batches)
    if not ranks.rank():
        log.info("going on from epoch %d, batch %d", state.position.epoch, state.position.batch)
        _warn_of_new_schedule(classifier.configs[0], content["kindling"])
    return Resumed(path, content, state)


def _clear(run: Run) -> None:
    """Deletes the history and result of a run that was killed before its first checkpoint. Raises
    InputError when a checkpoint must have existed."""
    if run.ended:
        return
    epochs = run.history[-1]["epoch"] if run.history_file.exists() and run.history else 0
    if (epochs or 0) > run.config.checkpoint.every_n_epochs:
        raise InputError(
            f"{run.checkpoints}: the checkpoints of a run that came to epoch {epochs} are gone; "
            f"delete {run.history_file} to train it anew"
        )
    run.forget()


def _warn_of_new_schedule(config: Config, saved: Any) -> None:
    """Warns if the new number of epochs would have given other learning rates from the start."""
    before = saved[0] if isinstance(saved, list) else saved
    was, now = before["config"]["trainer"]["max_epochs"], config.trainer.max_epochs
    if was != now and config.scheduler.depends_on_max_epochs:
        log.warning(
            f"scheduler={config.scheduler.name}: its learning rates are spread over "
            f"trainer.max_epochs. They follow the curve of {now} epochs from here on, and followed "
            f"that of {was} so far. A run that had {now} epochs from the start would give another "
            "result."
        )


@contextmanager
def restoring(resumed: Resumed | None, classifier: Classifier) -> Iterator[None]:
    """Names the checkpoint when its state cannot be restored; later exceptions pass as they are. A
    stranger's checkpoint may pass every check and still hold tensors that torch refuses."""
    try:
        yield
    except Exception as error:
        known = isinstance(error, InputError | OSError | MemoryError)
        if known or resumed is None or classifier.trained:
            raise
        log.info("the state cannot be restored", exc_info=True)
        raise InputError(
            f"{resumed.path}: cannot be resumed ({type(error).__name__}: {first_line(error)})"
        ) from error


def check_state(
    content: dict[str, Any],
    path: Path,
    metadata: Sequence[dict[str, Any]],
    world_size: int,
    batches: int,
) -> State:
    """The state of the trials. `metadata` is the metadata that these trials would save; only
    trainer.max_epochs may be larger.

    Raises InputError for the state of other trials, and for other numbers of ranks and batches.
    """
    saved = content.get("kindling")
    parts = saved if isinstance(saved, list) else [saved]
    try:
        state = State.model_validate(content)
    except ValidationError as error:
        raise InputError(
            f"{path}: holds no state to go on from; missing or wrong: {wrong_fields(error)}"
        ) from None
    if len(parts) != len(metadata):
        raise InputError(f"{path}: contains {len(parts)} trials, expected {len(metadata)}")
    for part, own in zip(parts, metadata, strict=True):
        require_same(require_format(part, path), own, f"{path}: is of another run")
    if len(state.callbacks.History.rows) != len(metadata) or state.position.batch > batches:
        raise InputError(f"{path}: holds no state to go on from; it is of another run")
    if len(state.ranks) != world_size:
        raise InputError(
            f"{path}: was written on {len(state.ranks)} devices; on {world_size} devices the "
            f"result would differ; type trainer.devices={len(state.ranks)}"
        )
    return state
