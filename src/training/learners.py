"""The models of a run or stack with their optimizers, ready for one way of a step.

A learner owns what depends on that way: where weights lie, which optimizers Lightning sees, how
models are evaluated. src/training/steps.py and native_steps.py hold the steps themselves.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only

from src.config.schema import Config, measure_of
from src.data.loader import Batch
from src.data.sources.source import as_float
from src.models.native import NativeModel
from src.models.stack import KeptWeights, Stack
from src.models.step_choice import AUTOGRAD, CLOSED_FORM, KERNEL, NATIVE, VMAP
from src.models.vmapped import Vmapped
from src.training.averaging import Average
from src.training.fsdp import whole
from src.training.kernel_steps import KernelSteps
from src.training.lanes import Lanes
from src.training.metrics import Evaluated, evaluate
from src.training.native_steps import (
    NativeSteps,
    Trial,
    evaluate_natively,
)
from src.training.optimizers import (
    adapt_restored,
    build_optimizer,
    build_stacked_optimizer,
    load_trial_states,
    trial_state,
)
from src.training.schedule import Schedule
from src.training.steps import AutogradSteps, ClosedFormSteps, StepPlan, Steps

MIXED_PRECISION_TYPE = {"bf16-mixed": torch.bfloat16}  # 16-mixed always uses autograd


def contiguous(tensor: Tensor) -> Tensor:
    """A copy with rows one after the other, as torch saves it."""
    return tensor.clone(memory_format=torch.contiguous_format)


def as_saved(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A model's tensors by the names that they have in a checkpoint."""
    return {f"model.{name}": value for name, value in state.items()}


@torch.no_grad()
def copied(model: nn.Module) -> dict[str, Tensor]:
    """Copies of a model's tensors, whole and contiguous, by their names in a checkpoint."""
    state = model.state_dict(keep_vars=True)  # a view of each takes as long again
    return as_saved({name: contiguous(whole(value)) for name, value in state.items()})


@dataclass
class Learner:
    """S models, `configs` of their trials, and `batch_of`: the number of the batch in a block that
    each of them trains on. `precision` is Lightning's plugin, or None outside of Lightning."""

    configs: Sequence[Config]
    models: Sequence[nn.Module]
    batch_of: Sequence[int]
    lanes: Lanes
    classes: int
    precision: Any = None

    @cached_property
    def optimizers(self) -> list[Optimizer]:
        raise NotImplementedError

    def optimizers_restored(self) -> None:
        """Called after Lightning has loaded the optimizers' states."""
        for optimizer in self.optimizers:
            adapt_restored(optimizer)

    def steps(
        self, schedules: Sequence[Schedule], plan: StepPlan, average: Average | None
    ) -> Steps:
        """The steps of these models."""
        raise NotImplementedError

    def averaged_tensors(self) -> list[list[Tensor]]:
        """The tensors that a moving average follows: parameters, running means and variances; a
        list for each lane."""
        raise NotImplementedError

    def evaluate(self, batch: Batch, places: Sequence[int]) -> Evaluated:
        """Evaluates the models at these places."""
        raise NotImplementedError

    @property
    def measure(self) -> str | None:
        """The measure that an evaluation tallies, because it is monitored."""
        return measure_of(self.configs[0].checkpoint.monitor)

    def logits(self, features: Tensor) -> Tensor:
        """The logits (N, classes) of the first model, for features (N, *shape)."""
        raise NotImplementedError

    def copied_weights(self, places: Sequence[int]) -> list[dict[str, Tensor]]:
        """Copies of the tensors of some models, by their names in a checkpoint. Those of a stack
        are views of one copy, which the next copy of the same models overwrites."""
        return [copied(self.models[place]) for place in places]

    def optimizer_state(self, place: int) -> dict[str, Any]:
        """The state of one trial's optimizer, as its single run would save it."""
        raise NotImplementedError

    def without_views(self, state: Any) -> Any:
        """A part of a checkpoint whose tensors do not share memory with others."""
        return state

    def load_optimizer_states(self, states: Sequence[dict[str, Any]]) -> None:
        """Restores what `optimizer_state` returned for each trial, perhaps of another learner."""
        raise NotImplementedError


class AutogradLearner(Learner):
    """One model of any kind."""

    @cached_property
    def optimizers(self) -> list[Optimizer]:
        return [build_optimizer(self.configs[0].optimizer, self.models[0].parameters())]

    def steps(
        self, schedules: Sequence[Schedule], plan: StepPlan, average: Average | None
    ) -> Steps:
        scaler = getattr(self.precision, "scaler", None)
        compiled = self.configs[0].trainer.compile
        return AutogradSteps(
            self.models[0], self.optimizers[0], schedules, plan, average,
            scaler=scaler, compiled=compiled,
        )  # fmt: skip

    def averaged_tensors(self) -> list[list[Tensor]]:
        (model,) = self.models
        statistics = [value for value in model.buffers() if value.is_floating_point()]
        return [[*model.parameters(), *statistics]]

    def evaluate(self, batch: Batch, places: Sequence[int]) -> Evaluated:
        (model,) = self.models
        assert list(places) == [0]
        dtype = next(model.parameters()).dtype  # autocast converts the inputs
        return evaluate(lambda x: model(x).mT.unsqueeze(0), batch, dtype, measure=self.measure)

    def logits(self, features: Tensor) -> Tensor:
        (model,) = self.models
        features = as_float(features).to(next(model.parameters()).dtype)
        # Lightning runs callbacks without autocast.
        context = nullcontext() if self.precision is None else self.precision.forward_context()
        with context:
            return model(features)  # type: ignore[no-any-return]

    def optimizer_state(self, place: int) -> dict[str, Any]:
        return self.optimizers[place].state_dict()

    def load_optimizer_states(self, states: Sequence[dict[str, Any]]) -> None:
        for optimizer, state in zip(self.optimizers, states, strict=True):
            optimizer.load_state_dict(state)


class ClosedFormLearner(Learner):
    """A stack of models that have a closed form."""

    steps_class = ClosedFormSteps

    @cached_property
    def stack(self) -> Stack:
        return Stack(self.models, self.batch_of, min(self.lanes.count, len(self.models)))

    @cached_property
    def optimizers(self) -> list[Optimizer]:
        return [build_stacked_optimizer([each.optimizer for each in self.configs], self.stack)]

    def steps(
        self, schedules: Sequence[Schedule], plan: StepPlan, average: Average | None
    ) -> Steps:
        trainer = self.configs[0].trainer
        return self.steps_class(
            self.stack, self.optimizers[0], schedules, plan, average,
            product_dtype=MIXED_PRECISION_TYPE.get(trainer.precision), graph=trainer.cuda_graph,
            lanes=self.lanes,
        )  # fmt: skip

    def averaged_tensors(self) -> list[list[Tensor]]:
        return [lane.tensors_to_average for lane in self.stack.lanes]

    def evaluate(self, batch: Batch, places: Sequence[int]) -> Evaluated:
        stack, dtype, measure = self.stack, self._input_dtype, self.measure
        by_lane = self.lanes.map(
            lambda lane: evaluate(lane.logits, batch, dtype, stack.trial_count, measure=measure),
            stack.lanes,
        )
        losses = stack.by_trial([each.losses for each in by_lane], 1)
        correct = stack.by_trial([each.correct for each in by_lane], 1)
        tallies = [each.tally for each in by_lane if each.tally is not None]
        tally = stack.by_trial(tallies, 1) if tallies else None
        if len(places) < stack.trial_count:  # to evaluate them alone, segments would be divided
            losses, correct = losses[:, places], correct[:, places]
            tally = None if tally is None else tally[:, places]
        return Evaluated(losses, correct, tally)

    @cached_property
    def kept(self) -> KeptWeights:
        return KeptWeights(self.models)

    def copied_weights(self, places: Sequence[int]) -> list[dict[str, Tensor]]:
        if len(self.models) == 1:
            return super().copied_weights(places)
        return [as_saved(weights) for weights in self.kept.copy(places)]

    def logits(self, features: Tensor) -> Tensor:
        return self.stack.lanes[0].logits(as_float(features).to(self._input_dtype))[0].mT

    @property
    def _input_dtype(self) -> torch.dtype:
        """The lower precision of mixed precision, else that of the weights."""
        precision = self.configs[0].trainer.precision
        return MIXED_PRECISION_TYPE.get(precision, self.stack.parameters[0].dtype)

    def optimizer_state(self, place: int) -> dict[str, Any]:
        settings = self.configs[place].optimizer
        return trial_state(self.optimizers[0], self.stack, place, settings)

    def load_optimizer_states(self, states: Sequence[dict[str, Any]]) -> None:
        load_trial_states(self.optimizers[0], self.stack, states)


class KernelLearner(ClosedFormLearner):
    """A stack that the CUDA kernel trains; it is evaluated by closed form."""

    steps_class = KernelSteps


class VmapLearner(ClosedFormLearner):
    """A stack of models of any family, differentiated by autograd."""

    @cached_property
    def stack(self) -> Stack:
        stack = Stack(self.models, self.batch_of, kind=Vmapped)
        for segment in stack.segments:
            segment.classes = self.classes
        return stack


class NativeLearner(Learner):
    """Models that the engine trains, each with an optimizer of its own."""

    @cached_property
    def native(self) -> list[NativeModel]:
        return [NativeModel(model) for model in self.models]

    @cached_property
    def trials(self) -> list[Trial]:
        return [
            Trial(
                model,
                build_optimizer(config.optimizer, model.model.parameters()),
                config.optimizer,
                config.seed,
            )
            for model, config in zip(self.native, self.configs, strict=True)
        ]

    @cached_property
    def optimizers(self) -> list[Optimizer]:
        return [trial.optimizer for trial in self.trials]

    def optimizers_restored(self) -> None:
        for trial in self.trials:
            trial.adopt()

    def steps(
        self, schedules: Sequence[Schedule], plan: StepPlan, average: Average | None
    ) -> Steps:
        return NativeSteps(self.trials, self.batch_of, schedules, plan, average, self.lanes)

    def averaged_tensors(self) -> list[list[Tensor]]:
        return [[model.weights for model in self.native]]

    def evaluate(self, batch: Batch, places: Sequence[int]) -> Evaluated:
        models = [self.native[place] for place in places]
        return evaluate_natively(models, batch, self.lanes, measure=self.measure)

    def logits(self, features: Tensor) -> Tensor:
        return self.native[0].logits(features)

    def optimizer_state(self, place: int) -> dict[str, Any]:
        return self.without_views(self.optimizers[place].state_dict())  # type: ignore[no-any-return]

    def without_views(self, state: Any) -> Any:
        return tree_map_only(Tensor, contiguous, state)

    def load_optimizer_states(self, states: Sequence[dict[str, Any]]) -> None:
        for trial, state in zip(self.trials, states, strict=True):
            trial.optimizer.load_state_dict(state)
            trial.adopt()


LEARNERS: dict[str, type[Learner]] = {
    NATIVE: NativeLearner,
    KERNEL: KernelLearner,
    CLOSED_FORM: ClosedFormLearner,
    VMAP: VmapLearner,
    AUTOGRAD: AutogradLearner,
}
