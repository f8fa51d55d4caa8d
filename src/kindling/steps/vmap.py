"""Models of any family side by side, evaluated by torch.func.vmap, differentiated by autograd."""

import copy
import warnings
from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.dropout import _DropoutNd

from kindling.config import schema
from kindling.models import construct_model, remembered
from kindling.models.closed_form import (
    ClosedForm,
    SegmentBatch,
    StackedParameters,
    UseGradient,
    stack_tensors,
)
from kindling.steps.closed_form import ClosedFormLearner
from kindling.steps.stack import Stack
from kindling.system.errors import first_line
from kindling.tasks.task import build_task

# The loss by which models side by side are compared with single ones: models of any family have it.
COMPARED_BY = schema.Regression(name="regression", loss="squared_error", delta=1.0)


class Vmapped(ClosedForm):
    """A segment of S models of the same class and the same settings. Each parameter is a part.

    Random numbers of a model, such as dropout masks, differ between the trials. All of them come
    from torch's global generator, so the models of a stack share one lane. The learner sets
    `classes`.
    """

    def stack(self, models: Sequence[nn.Module]) -> Sequence[StackedParameters]:
        # functional_call puts the tensors of a call into these modules for the time of the call.
        self.modules = {
            training: copy.deepcopy(models[0]).train(training) for training in (True, False)
        }
        # Some classes of models bound their weights after each step.
        constraints = [getattr(model, "constrain", None) for model in models]
        self.constraints = [constrain for constrain in constraints if constrain is not None]
        self.names = [name for name, _ in models[0].named_parameters()]
        self.buffers = {
            name: stack_tensors([model.get_buffer(name) for model in models])
            for name, _ in models[0].named_buffers()
        }
        self.statistics = [b for b in self.buffers.values() if b.is_floating_point()]
        self.counts = [b for b in self.buffers.values() if not b.is_floating_point()]
        parts = []
        for name in self.names:
            own = [model.get_parameter(name) for model in models]
            parameter = own[0] if len(own) == 1 else nn.Parameter(stack_tensors(own))
            weight = parameter.data.view(len(own), *own[0].shape)
            parts.append(StackedParameters([parameter], weight, None))
        return parts

    def forward(self, features: Tensor) -> Tensor:
        return self._outputs([part.weight for part in self.parts], features, training=False).mT

    def differentiate(self, batch: SegmentBatch, use: UseGradient) -> None:
        trials, batches, features = len(self.trials), len(self.batches), batch.features
        # One batch is shared by all trials, so their first layers share a product.
        inputs = features[0] if batches == 1 else features.repeat_interleave(trials // batches, 0)
        weights = [part.weight.detach().requires_grad_() for part in self.parts]
        with torch.enable_grad():
            outputs = self._outputs(weights, inputs, training=True, by_trial=batches > 1).mT
            # The loss is exact without the totals of the targets.
            losses = self.task.summed_losses(outputs, batch.targets, batch.factors).view(
                trials, 1, 1
            )
            gradients = torch.autograd.grad(
                (losses * batch.scale).sum(), weights, allow_unused=True, materialize_grads=True
            )
        batch.logits.copy_(outputs.detach())
        for part, gradient in zip(self.parts, gradients, strict=True):
            use(part, gradient, gradient)

    def constrain(self) -> None:
        for constrain in self.constraints:
            constrain()

    def _outputs(
        self, weights: Sequence[Tensor], features: Tensor, *, training: bool, by_trial: bool = False
    ) -> Tensor:
        """Logits (S, N, classes) of features (N, *shape); of (S, N, *shape), if they differ
        `by_trial`. Changes running statistics in place, if training."""
        module = self.modules[training]
        buffers = {
            name: b.view(len(self.trials), *module.get_buffer(name).shape)
            for name, b in self.buffers.items()
        }

        def call(parameters: dict[str, Tensor], statistics: dict[str, Tensor], x: Tensor) -> Tensor:
            found: Tensor = functional_call(module, (parameters, statistics), (x,))
            return found

        named = dict(zip(self.names, weights, strict=True))
        dims = (0, 0, 0 if by_trial else None)
        outputs: Tensor = vmap(call, dims, randomness="different")(named, buffers, features)
        return outputs


@remembered
def why_no_vmap(config: schema.Model, shape: tuple[int, ...], classes: int) -> str | None:
    """Why models of this configuration cannot train side by side, or None."""
    return difference_by_vmap(lambda: construct_model(config, shape, classes), shape)


def difference_by_vmap(build: Callable[[], nn.Module], shape: Sequence[int]) -> str | None:
    """How two models differ when they take two samples side by side instead of alone: in logits,
    gradients or buffers; or None. Dropout is off, because its masks would differ. Everything is in
    float64, because a batch norm of two samples amplifies the rounding of float32."""
    before = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        try:
            torch.set_default_dtype(torch.float64)  # of what a forward pass makes too
            warnings.filterwarnings("error", "There is a performance drop")  # one model at a time
            models = [build().double().train() for _ in range(2)]
            segment = Vmapped([0, 1], copy.deepcopy(models), [0])
            for module in (*models, segment.modules[True]):
                _without_dropout(module)
            features = torch.rand(2, *shape)
            version, found = features._version, _difference(segment, models, features)
            if features._version > version:
                return "changes its inputs in place"
            if found is not None:
                return found
            if isinstance(getattr(models[0], "auxiliary_loss", None), Tensor):
                return "adds a loss of its own, and torch.func.vmap sees only the outputs"
        except Exception as error:
            return f"cannot be evaluated by torch.func.vmap ({first_line(error)})"
        finally:
            torch.set_default_dtype(before)
    return None


def _difference(segment: Vmapped, models: Sequence[nn.Module], features: Tensor) -> str | None:
    singly, tensors = [], []
    for model in models:
        before = _plain_numbers(model)
        logits = model(features)
        if changed := _plain_numbers(model).items() - before.items():
            return f"changes {min(changed)[0]}, which all models of a stack would share"
        task = build_task(COMPARED_BY, logits.shape[1])
        labels = torch.arange(logits.numel(), dtype=logits.dtype).view_as(logits).remainder(2)
        loss = task.losses(logits.mT[None], labels[None]).sum()
        gradients = torch.autograd.grad(
            loss, list(model.parameters()), allow_unused=True, materialize_grads=True
        )
        singly.append(logits.detach().mT)
        tensors.append([*gradients, *model.buffers()])
    together = torch.empty_like(torch.stack(singly))
    segment.task = task
    targets, _ = task.targets(labels[None, None], together)
    found: list[Tensor] = []
    segment.differentiate(
        SegmentBatch(features[None], targets[0], None, 1.0, together),
        lambda _, gradient, __: found.append(gradient),
    )
    found += segment.buffers.values()
    pairs = [(together, torch.stack(singly))]
    pairs += zip(found, map(torch.stack, zip(*tensors, strict=True)), strict=True)
    with torch.no_grad():  # where torch may take other kernels
        evaluated = torch.stack([model.eval()(features).mT for model in models])
        pairs.append((segment.forward(features), evaluated))
    try:
        for side_by_side, alone in pairs:
            torch.testing.assert_close(side_by_side, alone.detach(), rtol=1e-3, atol=1e-5)
    except AssertionError:
        return (
            "computes something else by torch.func.vmap, or draws random numbers without a layer "
            "of dropout"
        )
    return None


def _plain_numbers(model: nn.Module) -> dict[str, float]:
    """The attributes of the layers that are numbers of Python, such as a count of steps."""
    return {
        f"{place}.{name}".lstrip("."): value
        for place, layer in model.named_modules()
        for name, value in vars(layer).items()
        if isinstance(value, int | float)
    }


def _without_dropout(module: nn.Module) -> None:
    for part in module.modules():
        if isinstance(part, _DropoutNd):
            part.eval()


class VmapLearner(ClosedFormLearner):
    @cached_property
    def stack(self) -> Stack:
        stack = Stack(self.models, self.batch_of, kind=Vmapped, task=self.task)
        for segment in stack.segments:
            segment.classes = self.task.outputs
        return stack
