"""A LightningModule of the user's own: Lightning trains it, with all hooks, one batch a call.

Kindling's callbacks ask a `LightningRun`, in place of the module, what they ask a StackModule.
"""

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import lightning
import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch import callbacks as lightnings
from lightning.pytorch.core.optimizer import _MockOptimizer
from lightning.pytorch.loggers.logger import DummyLogger, Logger
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torchmetrics import Metric

from kindling.config import registry
from kindling.config.measures import LOGGED_NAME, higher_is_better, known_entry
from kindling.config.schema import Config
from kindling.data.augmentation import build_augmentation
from kindling.data.loader import StreamOrder
from kindling.data.module import DataModule
from kindling.data.sources.source import float_copy
from kindling.models import construct_model
from kindling.ranks import processes as ranks
from kindling.records.folder import ALWAYS
from kindling.steps import base as ways
from kindling.steps.base import StepChoice, StepPlan
from kindling.steps.optimizers import build_optimizer, set_rates
from kindling.steps.schedule import Schedule
from kindling.system.errors import InputError, Interrupted, first_line
from kindling.training import random_state
from kindling.training.callbacks import OURS
from kindling.training.checkpoints import Checkpoints
from kindling.training.decisions import TrialStatuses
from kindling.training.module import metadata

log = logging.getLogger(__name__)

# Callbacks after which the last weights, not those of the best epoch, are the result.
AVERAGING = (lightnings.StochasticWeightAveraging, lightnings.WeightAveraging)
OF_LOADER = "/dataloader_idx_"  # Lightning adds it to names if there are several loaders
# What only a resumed run needs: the fields of `LightningRun.state`, and two of Lightning's.
OF_RESUME = {
    "kindling", "stacked", "threads", "step", "position", "ranks", "average", "diverged", "stopped",
    "optimizer_states", "lr_schedulers",
}  # fmt: skip


class Batches(LightningDataModule):
    """Kindling's data for a LightningModule: (features, labels) as Kindling's models get them,
    features (B, *shape) float32, labels (B,) int64, in the order of the seed and the epoch."""

    def __init__(self, data: DataModule, config: Config) -> None:
        super().__init__()
        self.data = data
        self.augment = build_augmentation(
            config.augmentation, data.source, [config.seed], config.data.batch, data.world_size,
            config.trainer.max_epochs,
        )  # fmt: skip

    def train_dataloader(self) -> "_Pairs":
        self.data.trainer = self.trainer
        loader = self.data.train_dataloader()

        def pairs() -> Iterator[tuple[Tensor, Tensor]]:
            for number, block in enumerate(loader):
                if self.augment is not None:
                    self.augment(block, loader.sampler.epoch, number, loader.sampler.rank)
                yield block.features[0, 0], block.labels[0, 0]

        return _Pairs(pairs, len(loader), loader.sampler)

    def val_dataloader(self) -> "_Pairs":
        return self._in_order(self.data.validations[0])

    def test_dataloader(self) -> "_Pairs":
        return self._in_order(self.data.test)

    def _in_order(self, split: Any) -> "_Pairs":
        size = self.data.config.batch

        def pairs() -> Iterator[tuple[Tensor, Tensor]]:
            for start in range(0, len(split), size):
                part = split.take(slice(start, start + size))
                yield float_copy(part.features), part.labels.clone()

        return _Pairs(pairs, math.ceil(len(split) / size), None)


class _Pairs:
    """A loader. Lightning tells `sampler` the epoch."""

    batch_sampler = None

    def __init__(self, pairs: Callable[[], Iterator[Any]], batches: int, sampler: Any) -> None:
        self.pairs, self.batches, self.sampler = pairs, batches, sampler

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[Any]:
        return self.pairs()


class LoggedByModule(Logger):
    """What the module and its callbacks have logged in an epoch, the names in their order. As a
    logger, it takes what only goes to loggers, as from LearningRateMonitor."""

    name = version = ""  # Lightning's ModelCheckpoint then writes into checkpoints/ of the run

    def __init__(self, monitor: str, every: int | None) -> None:
        super().__init__()
        self.monitor, self.every = monitor, every
        self.values: dict[str, float] = {}  # of the last epoch
        self.sent: dict[str, float] = {}  # to loggers, since the last epoch
        self.seen: dict[str, Tensor] = {}  # what Lightning had at the last epoch
        self.refused: set[str] = set()
        self.told: int | None = None  # the last step that had a line

    @property
    def experiment(self) -> Any:
        """Takes any call of a logger's library, and does nothing."""
        return DummyLogger().experiment

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        pass

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.sent |= metrics
        due = self.every is not None and step is not None and (step + 1) % self.every == 0
        if due and step != self.told:  # at the end of an epoch, its means come for the same step
            self.told = step
            shown = (f"{name} {value:.4g}" for name, value in metrics.items() if name != "epoch")
            log.info("step %d | %s", (step or 0) + 1, " | ".join(shown))

    def take(self, trainer: Trainer) -> dict[str, float]:
        """Of several ranks, the values of rank 0. Raises InputError if the monitored name is not
        among them."""
        now = dict(trainer.callback_metrics)
        fresh = {name: float(v) for name, v in now.items() if self.seen.get(name) is not v}
        others = {name: value for name, value in self.sent.items() if name not in now}
        self.seen, self.sent = now, {}
        hidden = _hidden(trainer.fit_loop.epoch_loop, trainer.fit_loop.epoch_loop.val_loop)
        found = {
            name: value
            for name, value in {**fresh, **others}.items()
            if name == self.monitor or name.partition(OF_LOADER)[0] not in hidden
        }
        wrong = {name for name in found if name in ALWAYS or not LOGGED_NAME.fullmatch(name)}
        of_lightning = {"epoch", "step"} - now.keys()  # which it sends to loggers
        if new := sorted(wrong - self.refused - of_lightning):
            log.warning(
                "self.log: the history leaves out %s; the name of a column is not one of its own, "
                "and has at most 60 letters, digits, spaces and the characters _ . - / @ + : %%",
                ", ".join(name[:80] for name in new[:5]),
            )
        self.refused |= wrong
        own = {name: value for name, value in found.items() if name not in wrong}
        self.values = ranks.gather(own)[0]
        self._require_monitor(began=trainer.fit_loop.epoch_loop.batch_progress.total.ready > 0)
        return self.values

    def _require_monitor(self, *, began: bool) -> None:
        """`began`: not in the validation before training, which knows no training metric."""
        names = [name for name in self.values if known_entry(name)] or [*self.values]
        early = not began and not (names and "val" in self.monitor)
        if self.monitor in self.values or early:
            return
        found = ", ".join(self.values) or "nothing"
        best = next((name for name in names if "val" in name), names[0] if names else None)
        advice = "call self.log in validation_step"
        if best is not None:
            mode = "max" if higher_is_better(best) else "min"
            advice = f"type checkpoint.monitor={best} checkpoint.mode={mode}"
            if known_entry(best) is None:  # of such a name, the extension must tell the direction
                told = f'write monitors={{"{best}": "min"}}, or "max", into the extension'
                advice = f"{told}, and type checkpoint.monitor={best}"
        raise InputError(
            f"checkpoint.monitor={self.monitor}: the module logs {found}; {advice}, or log it"
        )

    def state(self, _trainer: Trainer) -> None:
        return None


def _hidden(*loops: Any) -> set[str]:
    """The names that were logged with logger=False alone, without the numbers of loaders."""
    hidden, shown = set[str](), set[str]()
    for each in (each for loop in loops for each in loop._results.values()):
        names = {each.meta.name, each.meta.forked_name(True), each.meta.forked_name(False)}
        (shown if each.meta.logger else hidden).update(names)
    return hidden - shown


class LightningRun:
    """A run of a LightningModule, as Kindling's callbacks see it: a stack of one trial.

    `data` is Kindling's data module, or None where `loaders` is one of the user's own.
    """

    stacked = (0,)
    columns = ALWAYS
    step = StepChoice(ways.LIGHTNING)
    source = None  # its classes are unknown: the module decides what it learns
    running = averaged = nullcontext  # it has neither lanes nor averages of weights

    def __init__(
        self, config: Config, module: LightningModule, data: DataModule | None, loaders: Any
    ) -> None:
        self.configs, self.lightning, self.data, self.loaders = [config], module, data, loaders
        self.models = [module]
        self.logged = LoggedByModule(config.checkpoint.monitor, config.trainer.log_every_n_steps)
        self.status = TrialStatuses(1)
        self.training_began = False
        self.to_restore: dict[str, Any] | None = None
        self.tested: dict[str, float] = {}
        self.tested_file: Path | None = None  # the checkpoint with which it is tested
        self.last_rate: float | None = None
        self.schedules: list[Schedule] = []  # of the configuration, if the module has none
        origin = {"data": config.data.name} if data is None else data.origin()
        self.metadata = [metadata(config, origin)]
        if not is_overridden("configure_optimizers", module):
            module.configure_optimizers = self._configure_optimizers  # type: ignore[method-assign]

    # --- what the callbacks ask ------------------------------------------------------------------

    @property
    def threads(self) -> int:
        return torch.get_num_threads()

    @property
    def device(self) -> torch.device:
        return self.lightning.device

    @property
    def batches_done(self) -> int:
        trainer = self.lightning._trainer
        return trainer.fit_loop.epoch_loop.batch_progress.current.completed if trainer else 0

    @property
    def step_plan(self) -> StepPlan:
        trainer, accumulate = self.lightning._trainer, self.configs[0].trainer
        batches = trainer.num_training_batches if trainer else 0
        if math.isinf(batches):  # of a stream: known when it ends
            ended = trainer is not None and trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
            batches = self.batches_done + (not ended)
        return StepPlan(int(batches), accumulate.accumulate_grad_batches)

    @property
    def metrics(self) -> dict[int, dict[str, float]]:
        return {0: self.logged.values}

    def rate(self, _trial: int) -> float | None:
        return self.last_rate

    def diverges(self) -> bool:
        return False

    def set_stacked_trials(self, *_: Any) -> None:
        """There is one."""

    def copied_weights(self, trials: Sequence[int]) -> list[dict[str, Tensor]]:
        """None: `LightningCheckpoints` keeps them with what the hooks add to a checkpoint."""
        return [{} for _ in trials]

    # --- Lightning's Trainer ---------------------------------------------------------------------

    def arranged(self, users: Sequence[Callback], own: Sequence[Callback]) -> list[Callback]:
        for callback in own:
            adapt(callback, self)
        (checkpoints,) = (each for each in own if isinstance(each, LightningCheckpoints))
        return [Between(self, checkpoints), *users, *own]

    def trainer_options(self) -> dict[str, Any]:
        config = self.configs[0].trainer
        same = [
            "accumulate_grad_batches", "gradient_clip_val", "gradient_clip_algorithm",
            "val_check_interval",
        ]  # fmt: skip
        options: dict[str, Any] = {}
        if self.data is None:  # else the data module has limited the batches
            same += ["limit_train_batches", "limit_val_batches", "limit_test_batches"]
            options = {"overfit_batches": config.overfit_batches or 0.0}
        return {
            **{key: getattr(config, key) for key in same},
            **options,
            "logger": self.logged,
            "log_every_n_steps": config.log_every_n_steps or 50,  # Lightning's own default
            "use_distributed_sampler": self.data is None,
        }

    def _configure_optimizers(self) -> Optimizer:
        """Those of the configuration, for a module that has none."""
        config, trainer = self.configs[0], self.lightning.trainer
        total, epochs = trainer.estimated_stepping_batches, config.trainer.max_epochs
        if math.isinf(total):
            raise InputError(
                f"model={config.model.name}: a schedule needs the number of batches, which the "
                "loader does not know; write configure_optimizers into the module"
            )
        schedule = Schedule(
            config.scheduler, config.optimizer.lr, epochs, math.ceil(total / epochs)
        )
        self.schedules = [schedule]
        parameters = [each for each in self.lightning.parameters() if each.requires_grad]
        if not parameters:
            raise InputError(f"model={config.model.name}: the module has no weights to train")
        # A fused one scales gradients within its step, so Lightning could not clip them before.
        clipped = config.trainer.gradient_clip_val is not None
        fused = not (clipped and config.trainer.precision.endswith("-mixed"))
        return build_optimizer(config.optimizer, parameters, fused=fused)

    def test(self, trainer: Trainer) -> None:
        """Tests, if the module and its data can. All names begin with test."""
        has_data = self.data is not None or is_overridden("test_dataloader", self.loaders)
        if not (is_overridden("test_step", self.lightning) and has_data):
            log.info("nothing is tested: the module has no test_step, or the data no test set")
            return
        trainer.test(self.lightning, self.loaders, ckpt_path=self.tested_file, verbose=False)
        hidden = _hidden(trainer.test_loop)
        for name, value in trainer.callback_metrics.items():
            if name.partition(OF_LOADER)[0] in hidden:
                continue
            full = name if name.startswith("test") else f"test/{name}"
            if LOGGED_NAME.fullmatch(full):
                self.tested[full] = float(value)

    # --- state -----------------------------------------------------------------------------------

    def state(self, trainer: Trainer) -> dict[str, Any]:
        """What a checkpoint between two epochs holds beside Lightning's own: training/resume.py."""
        rank: dict[str, Any] = {
            "random": random_state.capture(),
            "metrics": None,
            "gradients": [],
            # torchmetrics keeps these out of a module's state_dict.
            "measures": {
                name: {**measure.metric_state, "_update_count": measure._update_count}
                for name, measure in self._measures()
            },
        }
        return self.status.state_dict() | {
            "kindling": self.metadata[0],
            "stacked": [0],
            "threads": self.threads,
            "step": ways.LIGHTNING,
            "position": {"epoch": trainer.current_epoch, "batch": 0},
            "ranks": ranks.gather(rank),
            "average": [],
        }

    def _measures(self) -> Iterator[tuple[str, Metric]]:
        named = self.lightning.named_modules()
        return ((name, part) for name, part in named if isinstance(part, Metric))

    def restore(self, trainer: Trainer) -> None:
        """At the start of the first epoch, after hooks that may have reset a measure."""
        assert self.to_restore is not None
        rank = self.to_restore["ranks"][trainer.global_rank]
        measures = rank.get("measures") or self.to_restore.get("measures", {})
        for name, measure in self._measures():
            saved = measures.get(name, {})
            for key in saved.keys() & {*measure._defaults, "_update_count"}:
                setattr(measure, key, _moved(saved[key], self.device))
            measure._computed = None
        random_state.restore(rank["random"])
        self.to_restore = None
        # From here on everything is as in a run that goes from one epoch to the next: Lightning
        # makes the iterator of the loader anew.
        loop = trainer.fit_loop
        loop.restarting = loop._resuming_from_checkpoint = False
        loop.epoch_progress.current.ready = loop.epoch_progress.current.completed + 1


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, list):
        return [_moved(item, device) for item in value]
    return value.to(device) if isinstance(value, Tensor) else value


class Between(Callback):
    """The first callback: what happens before anything of the next epoch has begun."""

    state_key = f"{OURS}Between"

    def __init__(self, run: LightningRun, checkpoints: "LightningCheckpoints") -> None:
        self.run, self.checkpoints = run, checkpoints

    def setup(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        """By now, Lightning has added the callbacks that `configure_callbacks` returns."""
        found: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        users = {each.state_key: each for each in found if not each.state_key.startswith(OURS)}
        trainer.strategy.checkpoint_io.users = users  # type: ignore[attr-defined]

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        if module.automatic_optimization and isinstance(trainer.optimizers[0], _MockOptimizer):
            raise InputError(
                f"model={self.run.configs[0].model.name}: configure_optimizers returns no "
                "optimizer; return one, or leave the method out and type optimizer=adam"
            )

    def on_train_epoch_start(self, trainer: Trainer, *_: Any) -> None:
        if self.run.to_restore is not None:
            self.run.restore(trainer)
        elif self.run.training_began:
            self.checkpoints.write_between(trainer, self.run)
        self.run.training_began = True

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        if self.run.schedules:
            self.run.last_rate = self.run.schedules[0](trainer.global_step)
            set_rates(trainer.optimizers[0], [self.run.last_rate])
        elif trainer.optimizers:
            self.run.last_rate = float(trainer.optimizers[0].param_groups[0]["lr"])

    def on_train_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        """Stops a run with weights that are not numbers."""
        if not all(bool(torch.isfinite(weight).all()) for weight in module.parameters()):
            self.run.status.diverged.setdefault(0, trainer.global_step)
            trainer.should_stop, trainer.fit_loop.min_epochs = True, None

    def on_save_checkpoint(self, trainer: Trainer, _: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint |= self.run.state(trainer)

    def on_load_checkpoint(self, trainer: Trainer, _: Any, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn == TrainerFn.FITTING:  # not at the test, with the best weights
            self.run.status.load_state_dict(checkpoint)
            self.run.to_restore = checkpoint


class LightningCheckpoints(Checkpoints):
    """Writes the state between two epochs, so that every hook of an epoch is called once. A run
    that was killed within an epoch begins this epoch again, with the same random numbers."""

    state_key = f"{OURS}Checkpoints"
    validated: dict[str, Any] | None = None  # as `_captured`, if validations are within epochs

    def on_train_start(self, trainer: Trainer, module: Any) -> None:
        super().on_train_start(trainer, module)
        # Raises InputError for a state that cannot be kept, before hours are lost. Lazy layers have
        # no state before the first batch.
        if not any(map(is_lazy, module.lightning.parameters())):
            trainer.save_checkpoint(self.pair.last, storage_options={})

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        signal = self.signals.received or 0
        if trainer.world_size > 1:
            (signal,) = ranks.all_max([signal], trainer.strategy.root_device)
        if signal:
            raise Interrupted(signal)

    def on_validation_end(self, trainer: Trainer, module: Any) -> None:
        """With trainer.val_check_interval, the weights at the end of the epoch are others."""
        if module.configs[0].trainer.val_check_interval and not trainer.sanity_checking:
            self.validated = self._captured(trainer)

    def on_train_epoch_end(self, trainer: Trainer, module: Any) -> None:
        if module.batches_done:
            if self._averages:
                self.best = [None]
            self._note_best(trainer, module, trainer.current_epoch + 1)

    def _note_best(self, trainer: Trainer, module: Any, epoch: int) -> None:
        before = self.best[0]
        super()._note_best(trainer, module, epoch)
        best = self.best[0]
        if best is not None and best is not before:
            known = self.validated
            best["content"] = self._captured(trainer) if known is None else known

    def _captured(self, trainer: Trainer) -> dict[str, Any]:
        """What Lightning's checkpoint of this moment holds for others than a resumed run: copies of
        the weights, and what the module, the callbacks and the data module add by their hooks and
        states. Empty on ranks other than 0. All ranks must call this."""
        content: dict[str, Any] = {}
        trainer.save_checkpoint(self.pair.last, storage_options=content)
        if content:
            content["callbacks"] = content.pop("user_callbacks")
        return {key: value for key, value in content.items() if key not in OF_RESUME}

    def on_train_end(self, trainer: Trainer, module: Any) -> None:
        """After the callbacks of the user, which may set the weights that they have averaged. Of
        averaged weights, those at the end are the best ones."""
        if module.training_began:
            if self._averages and (best := self.best[0]) is not None:
                best["content"] = self._captured(trainer)
            self.write_between(trainer, module, ends=True)

    def _best_content(self, module: Any, trial: int) -> dict[str, Any]:
        """Also for Lightning's own `load_from_checkpoint`: with the arguments that the module has
        saved by `save_hyperparameters`, if they are numbers, texts, or lists of these."""
        own = module.lightning
        saved = {key: value for key, value in own.hparams.items() if _plain(value)}
        more: dict[str, Any] = {"pytorch-lightning_version": lightning.__version__}
        if saved:
            more |= {"hyper_parameters": saved, "hparams_name": own._hparams_name or "kwargs"}
        best = self.best[trial]
        assert best is not None
        return super()._best_content(module, trial) | best.get("content", {}) | more

    def write_between(self, trainer: Trainer, run: Any, *, ends: bool = False) -> None:
        due, signal = self._due(trainer, run, trainer.current_epoch)
        self._write_if(due or ends, signal, trainer, run)

    @property
    def _averages(self) -> bool:
        return any(isinstance(each, AVERAGING) for each in self.users)

    def finish(self, module: Any) -> None:
        """A run whose last epoch was in another process has its best.ckpt from that process."""
        if self.best[0] is not None and self.best_epoch(0) != self.written_best:
            self._write_best(module)

    def restore_best(self, module: Any) -> None:
        """Lightning loads the file before the test, with the hooks, on all ranks. It is that of
        rank 0: ranks of torchrun may have other names for a folder that is called by the time."""
        if self.best[0] is not None:
            own = {"file": str(self.runs[0].best_checkpoint)}
            module.tested_file = Path(ranks.gather(own)[0]["file"])


def _plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_plain, value))
    return value is None or type(value) in (bool, int, float, str)


def adapt(callback: Callback, run: LightningRun) -> None:
    """Lightning then calls the hooks of one of Kindling's callbacks with the run in place of the
    module."""

    def adapted(hook: Callable[..., Any]) -> Callable[..., Any]:
        return lambda trainer, _module, *others: hook(trainer, run, *others)

    for name in vars(Callback):
        if name.startswith("on_") and getattr(type(callback), name) is not getattr(Callback, name):
            setattr(callback, name, adapted(getattr(callback, name)))


def build_run(config: Config, data: DataModule | None) -> LightningRun:
    """Builds the module, with weights from the seeded streams, and the user's data module. Raises
    InputError for anything else."""
    name, loaders = config.model.name, None
    if data is None:
        loaders = registry.resolve("data", config.data.name)(config.data)
        _require(loaders, LightningDataModule, f"data={config.data.name}")
        module: Any = construct_model(config.model, None, None)
    else:
        stream = config.data.order == "stream"
        splits = (data.train, *data.validations, data.test)
        if any(split.weights is not None for split in splits):
            raise InputError(
                f"data={config.data.name}: has weights of samples, and model={name} is a "
                "LightningModule, whose batches are features and labels; leave the weights out"
            )
        module = construct_model(config.model, data.source.shape, data.source.classes)
        order = data.order(config.seed, config.data.fold)
        data.set_orders([StreamOrder(torch.get_rng_state()) if stream else order], 1)
        loaders = Batches(data, config)
    _require(module, LightningModule, f"model={name}")
    used = "has no configure_optimizers: optimizer and scheduler are used"
    if is_overridden("configure_optimizers", module):
        used = "configures its optimizers: the keys of optimizer and scheduler change nothing"
    log.info("model=%s %s", name, used)
    return LightningRun(config, module, data, loaders)


def _require(found: object, kind: type, chosen: str) -> None:
    if not isinstance(found, kind):
        raise InputError(
            f"{chosen}: its function returned a {type(found).__name__}, must return a "
            f"{kind.__name__}"
        )


@contextmanager
def of_user(config: Config) -> Iterator[None]:
    """Turns Lightning's refusal of a module into an InputError. An error in the user's own code
    keeps its traceback, from there on, as `own_traceback` (system/errors.py)."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        if not registry.is_lightning("model", name := config.model.name):
            raise
        packages = [Path(registry.__file__).parents[1], *map(_folder, (lightning, torch))]
        frames, last = error.__traceback__, Path()
        while frames is not None:
            last = Path(frames.tb_frame.f_code.co_filename)
            inside = any(last.is_relative_to(each) for each in packages)
            if not inside and last != Path(contextlib.__file__):
                error.own_traceback = frames  # type: ignore[attr-defined]
                raise
            frames = frames.tb_next
        if last.is_relative_to(_folder(lightning)):
            raise InputError(f"model={name}: Lightning refuses it: {first_line(error)}") from error
        raise


def _folder(module: ModuleType) -> Path:
    return Path(str(module.__file__)).parent
