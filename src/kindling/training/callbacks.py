"""Callbacks of the user's own: which work, their states in a checkpoint, and what they log."""

import logging
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, EnumMeta
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch import callbacks as lightnings
from lightning.pytorch.plugins.io import CheckpointIO
from torch import Tensor

from kindling.config import registry
from kindling.config.faults import did_you_mean
from kindling.config.measures import LOGGED_NAME
from kindling.config.schema import Config
from kindling.records.checkpoint import CheckpointPair, read, write
from kindling.records.folder import ALWAYS, OWN_COLUMNS, columns
from kindling.records.plain_form import Enums, NotPlainError, from_plain, to_plain
from kindling.system.errors import InputError, all_at_once
from kindling.system.installation import as_command

log = logging.getLogger(__name__)

AVERAGE = "type trainer.ema_decay=0.999"
# What to do instead of Lightning's callbacks that cannot work here, and of their subclasses:
# Kindling takes the steps of a block, sets the learning rates and writes the checkpoints itself.
REFUSED: dict[type, str] = {
    lightnings.BaseFinetuning: "type start_from=RUN and freeze=[LAYER]",
    lightnings.BasePredictionWriter: f"{as_command('predict')} RUN FILES --csv OUT predicts",
    lightnings.BatchSizeFinder: "type data.batch_size=auto",
    lightnings.Checkpoint: (  # with ModelCheckpoint and OnExceptionCheckpoint
        "type checkpoint.every_n_epochs, checkpoint.monitor and checkpoint.keep"
    ),
    lightnings.DeviceStatsMonitor: "result.json has the peak memory and the use of the GPU",
    lightnings.GradientAccumulationScheduler: "type trainer.accumulate_grad_batches=4",
    lightnings.LearningRateFinder: f"{as_command('lr_find')} tries learning rates",
    lightnings.LearningRateMonitor: "history.csv and the loggers have the learning rate, lr",
    lightnings.ModelPruning: "choose smaller layers, such as model.hidden_sizes=[32]",
    lightnings.ModelSummary: (
        f"a run begins with a line about its model, and {as_command('train')} --summary shows more"
    ),
    lightnings.ProgressBar: "type trainer.progress_bar=true",
    lightnings.SpikeDetection: "a run that diverges is stopped; type trainer.gradient_clip_val=1",
    lightnings.StochasticWeightAveraging: AVERAGE,
    lightnings.ThroughputMonitor: "result.json has samples_per_second",
    lightnings.WeightAveraging: AVERAGE,
}
# A block of steps is one call, in which Lightning has no part.
NEVER_CALLED = (
    "on_before_backward", "on_after_backward", "on_before_optimizer_step", "on_before_zero_grad",
)  # fmt: skip
FILES_SHARE = 0.02  # of the time, for files that are written as often as this allows
APPENDING = 1e-4  # seconds to append to a file, until the first time has been measured
OURS = "kindling."  # begins the state keys of Kindling's own callbacks
# Parts of a checkpoint that no callback adds.
HPARAMS = re.compile(r"hparams_|(datamodule_)?hyper_parameters$")  # of save_hyperparameters
OWN_PARTS = {"state_dict", "optimizer_states", "loops", "callbacks", "kindling", "ranks", "average"}


# With a LightningModule, Lightning has its part in each step, and its own callbacks work, but not
# those that train on their own before the run.
REFUSED_WITH_LIGHTNING = (lightnings.BatchSizeFinder, lightnings.LearningRateFinder)


class RunsLast(lightnings.Checkpoint):
    """A callback of Kindling that Lightning calls after those of the user, so that it sees what
    they log and whether they stop the run, and saves their states as they are after the hook.

    Lightning moves subclasses of its Checkpoint to the end of its list, and calls them after all
    others at the end of an epoch.
    """

    @property
    def state_key(self) -> str:
        """A name that no class of the user's has."""
        return OURS + type(self).__name__


def configured(config: Config) -> list[Callback]:
    """The callbacks that the configuration names."""
    return [registry.resolve("callback", name)(config) for name in config.callbacks]


def require_usable(callbacks: Sequence[Callback], config: Config) -> None:
    """Raises InputError for callbacks that cannot work, before anything trains."""
    lightning = registry.is_lightning("model", config.model.name)
    faults = [fault for each in callbacks if (fault := _fault(each, lightning=lightning))]
    others = [each for each in callbacks if not _fault(each, lightning=lightning)]
    keys = [each.state_key for each in others if _overrides(each, "state_dict")]
    faults += [
        f"callbacks: two have the state_key {key}; give each class a state_key of its own"
        for key in sorted({key for key in keys if keys.count(key) > 1})
    ]
    timed = config.trainer.max_time is not None
    if timed and any(isinstance(each, lightnings.Timer) for each in callbacks):
        faults.append("callbacks: Timer and trainer.max_time exclude each other; leave one out")
    metrics = columns(config.task.name, config.checkpoint.monitor)[len(ALWAYS) :]
    faults += () if lightning else _unknown_monitors(callbacks, metrics)
    if faults:
        raise all_at_once(faults, "and nothing was trained")


def _unknown_monitors(callbacks: Sequence[Callback], metrics: Sequence[str]) -> Iterator[str]:
    """A fault for each EarlyStopping whose metric nothing logs. Other callbacks may log any."""
    stopping = [each for each in callbacks if type(each) is lightnings.EarlyStopping]
    for each in stopping if len(stopping) == len(callbacks) else ():
        if each.strict and each.monitor not in metrics:
            yield (
                f"callbacks: EarlyStopping({each.monitor!r}): must be one of "
                f"{', '.join(metrics)}{did_you_mean(each.monitor, metrics)}"
            )


def _fault(callback: object, *, lightning: bool = False) -> str | None:
    if not isinstance(callback, Callback):
        name = callback.__name__ if isinstance(callback, type) else repr(callback)[:80]
        return f"callbacks: {name} is not an instance of a subclass of lightning.pytorch.Callback"
    name = type(callback).__qualname__
    for kind, instead in REFUSED.items():
        if isinstance(callback, kind) and (not lightning or kind in REFUSED_WITH_LIGHTNING):
            also = "" if type(callback) is kind else f", a {kind.__name__},"
            return f"callbacks: {name}{also} does not work here; {instead}"
    unused = [hook for hook in NEVER_CALLED if _overrides(callback, hook)]
    if unused and not lightning:
        return (
            f"callbacks: {name}.{unused[0]} would never be called, because a block of steps is one "
            "call; use on_train_batch_end, which comes after each block, and "
            "trainer.steps_per_call=1 for blocks of one batch"
        )
    return None


def _overrides(callback: Callback, name: str) -> bool:
    """Whether a class, or the callback itself as in LambdaCallback, has a method of its own."""
    return getattr(getattr(callback, name), "__func__", None) is not getattr(Callback, name)


def stopped_by(callbacks: Sequence[Callback]) -> str:
    """The callbacks that have stopped the run: as far as is known, those of EarlyStopping."""
    early = [each for each in callbacks if isinstance(each, lightnings.EarlyStopping)]
    stopped = [each for each in early if each.stopping_reason.name != "NOT_STOPPED"]
    others = [each for each in callbacks if each not in early]
    return ", ".join(type(each).__qualname__ for each in stopped or others or early)


def require_storable(callbacks: Sequence[Callback]) -> None:
    """Raises InputError if a state cannot be kept, before hours of training are lost."""
    for callback in callbacks:
        _stored(callback.state_dict(), callback)


class CheckpointPairIO(CheckpointIO):
    """Writes Lightning's checkpoints by `CheckpointPair`; all states are plain. Lightning loads the
    checked `content`. States of Kindling's own callbacks keep the short names that they have always
    had. `lightning`: of a LightningModule, all parts may be the user's, and callbacks of Lightning
    write files of their own."""

    def __init__(
        self,
        pair: CheckpointPair,
        content: dict[str, Any] | None,
        users: Sequence[Callback],
        *,
        lightning: bool = False,
    ) -> None:
        self.pair, self.content, self.lightning = pair, content, lightning
        self.users = {callback.state_key: callback for callback in users}

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """If `storage_options` is a dictionary, it receives the content, and no file is written."""
        own, users, added = {}, {}, {}
        for key, state in checkpoint["callbacks"].items():
            if key in self.users:
                users[key] = _stored(state, self.users[key])
            else:  # Kindling's, or Lightning's Timer for trainer.max_time
                own[key.removeprefix(OURS)] = state
        if self.lightning:  # what a module was built with is no part of the training
            checkpoint = {k: v for k, v in checkpoint.items() if not HPARAMS.match(k)}
        for key in self._added(checkpoint):
            try:
                added[key] = to_plain(checkpoint[key])
            except NotPlainError as error:
                names = ", ".join(type(each).__qualname__ for each in self.users.values())
                names = "of the module or a callback" if self.lightning else names
                raise InputError(
                    f"callbacks: {names}: on_save_checkpoint has added to the checkpoint what "
                    f"it cannot hold: {key}{error}; add numbers, texts, lists, arrays or tensors"
                ) from None
        content = {**checkpoint, **added, "callbacks": own, "user_callbacks": users}
        if self.lightning and Path(path) != self.pair.last:
            write(content, Path(path))
        elif storage_options is None:
            self.pair.write(content)
        else:
            storage_options.update(content)

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Warns of states without a callback."""
        content, self.content = self.content, None  # frees the memory after the restore
        if content is None:  # a file that a callback has written
            content = read(Path(path))
        states = {
            OURS + key if key in ("History", "Checkpoints") else key: (
                from_plain(state, _enums(self.users[key])) if key in self.users else state
            )
            for key, state in content["callbacks"].items()  # best.ckpt has the user's here
        }
        for key, state in content.get("user_callbacks", {}).items():
            if key in self.users:
                states[key] = from_plain(state, _enums(self.users[key]))
            else:
                log.warning(
                    "callbacks: %s: the run had this callback, and goes on without it; from "
                    "Python, fit(..., resume=True, callbacks=[...]) takes it again", key,
                )  # fmt: skip
        plain = {key: from_plain(content[key]) for key in self._added(content)}
        return {**content, **plain, "callbacks": states}

    def _added(self, content: Mapping[str, Any]) -> set[str]:
        """The parts that are not only Kindling's."""
        if self.lightning:
            return content.keys() - {"callbacks", "user_callbacks", "kindling"}
        return content.keys() - OWN_PARTS - {"user_callbacks"} if self.users else set()

    def remove_checkpoint(self, path: Any) -> None:
        Path(path).unlink(missing_ok=True)


def _stored(state: Any, callback: Callback) -> Any:
    try:
        return to_plain(state, _enums(callback))
    except NotPlainError as error:
        raise InputError(
            f"callbacks: the state of {type(callback).__qualname__} cannot be kept in a "
            f"checkpoint: state_dict(){error}; return numbers, texts, lists, dictionaries, arrays "
            "or tensors from state_dict, or {} to train without the state"
        ) from None


def _enums(callback: Callback) -> Enums:
    """The enumerations that the callback's own modules know, by their names there."""
    found: dict[str, type[Enum]] = {}
    for kind in type(callback).__mro__:
        for namespace in (vars(sys.modules.get(kind.__module__, object)), vars(kind)):
            for name, value in [*namespace.items()]:
                if type(value) is EnumMeta:
                    found[f"{kind.__module__}.{name}"] = value  # type: ignore[assignment]
    return found


class Logged:
    """The names that were logged in this epoch. Lightning reduces their values.

    A checkpoint within an epoch holds the values so far, which Lightning's own does not.
    """

    def __init__(self) -> None:
        self.names: dict[str, None] = {}  # in their order
        # Sum and weight of each value that was logged before a resume, and not yet since.
        self.sums: dict[str, tuple[float, float]] = {}

    def note(self, trainer: Trainer, hook: str | None, name: str) -> None:
        """Notes a value that Lightning has taken in this hook."""
        self.names[name] = None
        earlier = self.sums.pop(f"{hook}.{name}", None)
        if earlier is None:
            return
        metric = trainer.fit_loop.epoch_loop._results[f"{hook}.{name}"]
        if metric.meta.is_mean_reduction:
            metric.cumulated_batch_size = metric.cumulated_batch_size + earlier[1]
        if metric.meta.is_mean_reduction or metric.meta.is_sum_reduction:
            metric.value = metric.value + earlier[0]
        else:  # the largest or the smallest value
            metric.value = metric.meta.reduce_fx(metric.value, metric.value.new_tensor(earlier[0]))

    def take(self, trainer: Trainer) -> dict[str, float]:
        values = {name: float(value) for name, value in trainer.callback_metrics.items()}
        for key, (value, weight) in self.sums.items():
            values[key.partition(".")[2]] = value / weight if weight else value
        found = {name: values[name] for name in self.names if name in values}
        self.names, self.sums = {}, {}
        return found

    def state(self, trainer: Trainer) -> dict[str, Any]:
        sums = dict(self.sums)
        for key, metric in trainer.fit_loop.epoch_loop._results.valid_items() if self.names else ():
            if metric.is_tensor and metric.meta.on_epoch:
                weight = getattr(metric, "cumulated_batch_size", 0)
                sums[key] = float(metric.value), float(weight)
        values = {name: float(value) for name, value in trainer.callback_metrics.items()}
        return {"names": [*self.names], "sums": sums, "values": values}

    def load(self, state: Mapping[str, Any], trainer: Trainer) -> None:
        """Also gives callbacks the metrics of the epoch before."""
        self.names, self.sums = dict.fromkeys(state["names"]), dict(state["sums"])
        values = {name: _tensor(value) for name, value in state["values"].items()}
        trainer.callback_metrics.update(values)


def _tensor(value: float) -> Tensor:
    """In float32, as Lightning keeps values, if that holds the value."""
    short, exact = torch.tensor(value), torch.tensor(value, dtype=torch.float64)
    return short if short.double().equal(exact) or short.isnan() else exact


def require_loggable(name: str) -> None:
    """Raises InputError for a name that cannot be a column of the history."""
    if name in OWN_COLUMNS:
        raise InputError(
            f"self.log({name!r}): the history keeps this column for itself; choose another name"
        )
    if not LOGGED_NAME.fullmatch(name):
        raise InputError(
            f"self.log({name[:80]!r}): is not a name for a column of the history; take at most 60 "
            "letters, digits, spaces and the characters _ . - / @ + : %"
        )
