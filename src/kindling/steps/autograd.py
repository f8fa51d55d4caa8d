"""Autograd trains one model of any kind. It is the reference of the tests for all other ways."""

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from kindling.data.loader import Batch, Block
from kindling.data.sources.source import float_copy
from kindling.steps.base import BatchResults, Learner, aligned
from kindling.steps.optimizers import build_optimizer, is_sharded, set_rates
from kindling.system.errors import InputError, first_line
from kindling.tasks.measures import Evaluated, evaluate
from kindling.tasks.task import factors_of

log = logging.getLogger(__name__)


# Logits, the loss of the task, and the model's own addition to this loss.
Trained = tuple[Tensor, Tensor, Tensor | None]
Forward = Callable[[Tensor, Tensor, Tensor | None], Trained]


def _compiled(forward: Forward) -> Forward:
    """Compiles forward and backward once per batch size. A program for all sizes would depend on
    the first size, and a resumed run may start with another size."""
    from torch._dynamo.exc import BackendCompilerFailed  # slow to import, rarely needed

    log.info("the step is compiled, which takes some tens of seconds")
    compiled = torch.compile(forward, dynamic=False)

    def run(features: Tensor, labels: Tensor, factors: Tensor | None) -> Trained:
        try:
            return compiled(features, labels, factors)
        except BackendCompilerFailed as error:
            raise InputError(
                f"trainer.compile=true: torch cannot compile here ({first_line(error)}); "
                "type trainer.compile=false"
            ) from None

    return run


def auxiliary_loss(model: nn.Module) -> Tensor | None:
    """What the last forward pass of a model adds to the loss of its task. The model forgets this.
    Raises InputError if this is more than one number."""
    found: object = getattr(model, "auxiliary_loss", None)
    if not isinstance(found, Tensor):  # a model may have a method of that name
        return None
    if found.numel() != 1:
        raise InputError(
            f"{type(model).__name__}.auxiliary_loss: has the shape {tuple(found.shape)}, must be "
            "one number; take its mean"
        )
    model.auxiliary_loss = None  # type: ignore[assignment]  # torch's stub has no None
    return found


class AutogradLearner(Learner):
    """Trains one model of any kind by autograd."""

    def begin(self, *arguments: Any) -> None:
        super().begin(*arguments)
        scaler = getattr(self.precision, "scaler", None)  # of the loss in 16-bit floats
        self.scaler: torch.amp.GradScaler = scaler or torch.amp.GradScaler(enabled=False)
        self.parameters = [each for each in self.model.parameters() if each.requires_grad]
        self.class_weights = self.step_plan.weights_like(self.parameters[0])
        self.constrain = getattr(self.model, "constrain", None)
        compiled = self.configs[0].trainer.compile
        self.forward = _compiled(self._forward) if compiled else self._forward

    @property
    def model(self) -> nn.Module:
        (model,) = self.models
        return model

    @cached_property
    def optimizers(self) -> list[Optimizer]:
        return [build_optimizer(self.configs[0].optimizer, self.model.parameters())]

    def train(self, block: Block, epoch: int, batch: int) -> BatchResults:
        losses, logits = [], []
        all_features, all_labels = aligned(block.features[:, 0]), block.labels[:, 0]
        factors: Sequence[Tensor | None] = [None] * len(all_labels)
        if block.weights is not None:
            weights = block.weights[:, 0]
            factors = factors_of(weights, all_labels, self.class_weights).unbind()
        for features, labels, factor in zip(
            all_features.unbind(), all_labels.unbind(), factors, strict=True
        ):
            if self.step_plan.begins(batch):
                for parameter in self.parameters:
                    parameter.grad = None
            output, loss, auxiliary = self.forward(features, labels, factor)
            losses.append(loss.detach())
            logits.append(output.detach())
            if auxiliary is not None:
                loss = loss + auxiliary
            share = self.step_plan.accumulate * self.step_plan.ranks
            loss = loss / share if share > 1 else loss
            self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            if self.step_plan.completes(batch):
                self._step(self.step_plan.step_of(epoch, batch))
            batch += 1
        scores = self.task.scores(torch.stack(logits).mT, all_labels)
        if block.weights is not None:
            scores = scores * factors_of(block.weights[:, 0], all_labels)
        scores = scores.sum(-1, keepdim=True)
        return BatchResults(torch.stack(losses).unsqueeze(1), scores)

    def _forward(self, features: Tensor, labels: Tensor, factors: Tensor | None) -> Trained:
        output, smoothing = self.model(features), self.step_plan.smoothing
        loss = self.task.loss(output, labels, self.class_weights, smoothing, factors)
        return output, loss, auxiliary_loss(self.model)

    def _step(self, step: int) -> None:
        set_rates(self.optimizer, [self.schedules[0](step)])
        if self.step_plan.all_reduce is not None:
            gradients = [p.grad for p in self.parameters if p.grad is not None]
            for wait in [self.step_plan.all_reduce(gradient) for gradient in gradients]:
                wait()
        if self.step_plan.clip is not None:
            self.scaler.unscale_(self.optimizer)
            by_value = self.step_plan.clip_values
            clip = nn.utils.clip_grad_value_ if by_value else nn.utils.clip_grad_norm_
            clip(self.parameters, self.step_plan.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.constrain is not None:
            self.constrain()
        if self.average is not None:
            self.average.update(step)

    def gradients(self) -> list[Tensor]:
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        found = [p.grad for p in self.parameters if p.grad is not None]
        return [each.to_local() if is_sharded(each) else each for each in found]  # type: ignore[attr-defined]

    def averaged_tensors(self) -> list[list[Tensor]]:
        statistics = [value for value in self.model.buffers() if value.is_floating_point()]
        return [[*self.model.parameters(), *statistics]]

    def evaluate(self, batch: Batch, places: Sequence[int]) -> Evaluated:
        assert list(places) == [0]
        dtype = next(self.model.parameters()).dtype  # autocast converts the inputs
        forward = lambda x: self.model(x).mT.unsqueeze(0)  # noqa: E731
        return evaluate(self.task, forward, batch, dtype, measure=self.measure, copied=True)

    def logits(self, features: Tensor) -> Tensor:
        features = float_copy(features).to(next(self.model.parameters()).dtype)
        # Lightning runs callbacks without autocast.
        context = nullcontext() if self.precision is None else self.precision.forward_context()
        with context:
            return self.model(features)  # type: ignore[no-any-return]
