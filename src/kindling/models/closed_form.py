"""Models whose gradient is computed by our own formulas instead of by autograd: their base class,
and the layers of S models side by side that they are made of.

To add a closed form: 1. derive a class from `ClosedForm`; 2. set `closed_form = ThatClass` on the
model class; 3. decorate the section in config/schema.py with `@has_closed_form`. Step 3 is
separate because schema.py must not import torch. models/mlp.py is an example.

Activations have the shape (S, units, B). Therefore the output of a layer is the input of the next
layer without a copy, whether a layer is one product over all units or a batch of products.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kindling.tasks.task import Task

NormModule = nn.BatchNorm1d | nn.LayerNorm


class Activation(NamedTuple):
    """A function that maps 0 to 0: otherwise, the units that pad a narrower model would learn.

    `backward`, by the kernels of autograd, takes the gradient of the output and the output; with
    `of_input`, the input in place of the output. It returns the gradient of the input.
    """

    module: type[nn.Module]
    forward: Callable[[Tensor], Tensor]  # in place if torch has a function for it
    backward: Callable[[Tensor, Tensor], Tensor]
    of_input: bool = False


def _relu_backward(gradient: Tensor, output: Tensor) -> Tensor:
    of = torch.ops.aten.threshold_backward.grad_input
    return of(gradient, output, 0, grad_input=gradient)  # type: ignore[no-any-return]


ACTIVATIONS = {
    "relu": Activation(nn.ReLU, torch.relu_, _relu_backward),
    "tanh": Activation(nn.Tanh, torch.tanh_, torch.ops.aten.tanh_backward),
    "gelu": Activation(nn.GELU, F.gelu, torch.ops.aten.gelu_backward, of_input=True),
}


class MemoryCost(NamedTuple):
    """How many floats a model keeps in memory."""

    model: int  # parameters and running statistics
    evaluated_sample: int  # activations
    trained_sample: int  # activations, their gradients, and the sample itself


class StackedParameters:
    """A part of a segment: the weight and the bias of one layer or norm of S trials. After
    `make_gradients` a part has their gradients too."""

    gradients: Tensor  # the weight gradient followed by the bias gradient, flat
    weight_gradient: Tensor
    bias_gradient: Tensor

    def __init__(
        self, parameters: Sequence[nn.Parameter], weight: Tensor, bias: Tensor | None
    ) -> None:
        """`weight` and `bias` are views of the parameters (S, …). The bias may be missing."""
        self.parameters, self.weight, self.bias = list(parameters), weight, bias

    def make_gradients(self) -> list[Tensor]:
        """Allocates `gradients`. The gradient of each parameter is a view of this one tensor, so
        that ranks sum the gradients of a part in one call. Returns the views."""
        sizes = [parameter.numel() for parameter in self.parameters]
        self.gradients = self.weight.new_zeros(sum(sizes))
        pieces = torch.split(self.gradients, sizes)
        self.weight_gradient = pieces[0].view(self.weight.shape)
        if self.bias is not None:
            self.bias_gradient = pieces[1].view(self.bias.shape)
        return [view.view_as(p) for view, p in zip(pieces, self.parameters, strict=True)]

    def descend(self, weight_gradient: Tensor, bias_gradient: Tensor, /) -> None:
        """Subtracts gradients times rate, in place. A `Layer` takes (delta, inputs) instead."""
        self.weight.sub_(weight_gradient.view_as(self.weight))
        if self.bias is not None:
            self.bias.sub_(bias_gradient.view_as(self.bias))

    def accumulate(
        self, weight_gradient: Tensor, bias_gradient: Tensor, /, overwrite: bool
    ) -> None:
        """Adds to `gradients`, or overwrites them. Takes the same two tensors as `descend`."""
        if overwrite:
            self.gradients.zero_()
        self.weight_gradient.add_(weight_gradient.view_as(self.weight))
        if self.bias is not None:
            self.bias_gradient.add_(bias_gradient.view_as(self.bias))


# Called as use(part, first, second), as soon as the gradient of a part is known, with the two
# tensors that `part.descend` takes. The function either updates the part (`descend`) or stores the
# gradient (`accumulate`).
UseGradient = Callable[[StackedParameters, Tensor, Tensor], None]


class SegmentBatch(NamedTuple):
    """The samples of a step of S models, on R distinct batches, and room for their logits."""

    features: Tensor  # (R, B, *shape)
    targets: Tensor  # (R, 1, classes, B), as Task.targets
    totals: Tensor | None  # (R, 1, 1, B), the sums of the targets over classes; None: all are 1
    scale: Tensor | float  # a factor of the loss; of each model, (S, 1, 1)
    logits: Tensor  # (S, classes, B)
    factors: Tensor | None = None  # (R, 1, 1, B), of the samples' losses; None: all are 1


class ClosedForm:
    """A segment of a stack: S models of the same class, whose gradients are computed by formulas.
    Their tensors have equal shapes, if necessary after padding with zeros. The parameters of the
    models become views of the segment's tensors (S, …), see `stack_tensors`."""

    classes: int  # outputs
    task: Task  # the stack sets it
    random = False  # whether a step draws random numbers
    generator: torch.Generator | None = None  # draws these numbers; None: torch's global generator
    statistics: Sequence[Tensor] = ()  # tensors that are not trained, such as running means
    counts: Sequence[Tensor] = ()  # whole numbers that a step changes, such as a count of batches

    def __init__(
        self, trials: Sequence[int], models: Sequence[nn.Module], batches: Sequence[int]
    ) -> None:
        """`trials` are the models' places in the stack. `batches` are the numbers of the R
        distinct batches that this segment trains on: the first S/R trials train on batches[0], the
        next S/R trials on batches[1], and so on."""
        self.trials, self.batches = list(trials), list(batches)
        self.parts = list(self.stack(models))
        self.parameters = [parameter for part in self.parts for parameter in part.parameters]
        self.gradients: list[Tensor] = []
        device = self.parameters[0].device
        self.trial_index = torch.tensor(self.trials, device=device)
        self.batch_index = torch.tensor(self.batches, device=device)

    def stack(self, models: Sequence[nn.Module]) -> Sequence[StackedParameters]:
        """Stacks the tensors. Sets `classes`; also `random`, `statistics` and `counts`, if they
        differ from the class's values. Returns the parts in the order of a model's parameters."""
        raise NotImplementedError

    @classmethod
    def segment_key(cls, model: nn.Module, rounding: int) -> tuple[Any, ...]:
        """Models with the same key share a segment. Here the key is the shapes of all parameters.
        A class that pads models with zeros may round widths up to multiples of `rounding`."""
        del rounding
        return tuple(tuple(parameter.shape) for parameter in model.parameters())

    def forward(self, features: Tensor) -> Tensor:
        """Evaluates all trials on the same features (N, *shape): logits (S, classes, N)."""
        raise NotImplementedError

    def differentiate(self, batch: SegmentBatch, use: UseGradient) -> None:
        """Forward and backward pass of one batch. Writes the logits. The loss is the task's, summed
        over samples, times the scale. Calls `use` once for each part. `use` may change the
        parameters of the part, so call it only when the rest of the backward pass does not read
        them."""
        raise NotImplementedError

    def delta(self, batch: SegmentBatch) -> Tensor:
        """The gradient of the logits of a batch, (S, classes, B)."""
        found = self.task.residual(batch.logits, batch.targets, batch.totals)
        if batch.factors is not None:
            found.view(len(batch.factors), -1, *found.shape[1:]).mul_(batch.factors)
        return found.mul_(batch.scale)

    def constrain(self) -> None:
        """Called after each step of an optimizer. Applies max_norm, if set."""

    def count_batches(self, count: int) -> None:
        """Called after each block of `count` batches. Adds them to the counters of batch norms."""

    def make_gradients(self) -> None:
        self.gradients = [gradient for part in self.parts for gradient in part.make_gradients()]

    def attach_gradients(self) -> None:
        """Sets `parameter.grad` before each step: Lightning may have set it to None."""
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient


def closed_form_of(model: nn.Module) -> type[ClosedForm] | None:
    return getattr(model, "closed_form", None)


# --- layers --------------------------------------------------------------------------------------


class Layer(StackedParameters):
    """Linear layers as G products side by side: weight (G, rows, columns), bias (G, rows, 1),
    inputs (G, columns, B). If G = 1, no tensor has the first dimension. A layer before a batch norm
    has no bias."""

    def __init__(self, parameters: Sequence[nn.Parameter], groups: int) -> None:
        weight, *biases = (parameter.data for parameter in parameters)
        shape = (groups, -1, weight.shape[-1]) if groups > 1 else (-1, weight.shape[-1])
        bias = biases[0].view(*shape[:-1], 1) if biases else None
        super().__init__(parameters, weight.view(shape), bias)
        self.rounded = self.weight
        self.groups = groups

    def shaped(self, tensor: Tensor) -> Tensor:
        """Views the activations of S models, however they are grouped, as this layer's inputs or
        outputs: (G, S/G · units, B)."""
        if self.groups > 1:
            return tensor.view(self.groups, -1, tensor.shape[-1])
        return tensor.view(-1, tensor.shape[-1])

    def forward(self, inputs: Tensor, out: Tensor | None = None) -> Tensor:
        # In mixed precision, the weights are rounded once for the product here and in `backward`.
        self.rounded = weight = self.weight.to(inputs.dtype)
        if self.bias is None:
            return (torch.bmm if self.groups > 1 else torch.mm)(weight, inputs, out=out)
        bias = self.bias.to(inputs.dtype)
        return (torch.baddbmm if self.groups > 1 else torch.addmm)(bias, weight, inputs, out=out)

    def backward(self, delta: Tensor) -> Tensor:
        """Returns the gradient of the inputs of the last `forward`. `delta` is the gradient of its
        outputs."""
        return (torch.bmm if self.groups > 1 else torch.mm)(self.rounded.mT, delta)

    def descend(self, delta: Tensor, inputs: Tensor, /) -> None:
        """Subtracts `delta`, the outputs' gradient, times `inputs`, without storing the product."""
        add_product = self.weight.baddbmm_ if self.groups > 1 else self.weight.addmm_
        add_product(delta, inputs.mT, alpha=-1)
        if self.bias is not None:
            self.bias.sub_(delta.sum(-1, keepdim=True))

    def accumulate(self, delta: Tensor, inputs: Tensor, /, overwrite: bool) -> None:
        gradient = self.weight_gradient
        if delta.dtype == gradient.dtype:
            add_product = gradient.baddbmm_ if self.groups > 1 else gradient.addmm_
            add_product(delta, inputs.mT, beta=0 if overwrite else 1)
        else:
            _put(gradient, delta @ inputs.mT, overwrite)
        if self.bias is not None:
            _put(self.bias_gradient, delta.sum(-1, keepdim=True), overwrite)


def _put(target: Tensor, value: Tensor, overwrite: bool) -> None:
    (target.copy_ if overwrite else target.add_)(value)


class Norm(StackedParameters):
    """Normalises (S, units, B), multiplies by a weight (S, units, 1) and adds a bias."""

    parameter_gradients: tuple[Tensor, Tensor]  # of weight and bias; `backward` sets them
    noise: Tensor  # of the last batch; `add_noise` sets it
    bias: Tensor

    def __init__(self, norms: Sequence[NormModule]) -> None:
        parameters = _stack_parameters(norms)
        weight, bias = (parameter.data.view(len(norms), -1, 1) for parameter in parameters)
        super().__init__(parameters, weight, bias)
        self.eps = norms[0].eps

    def forward(self, inputs: Tensor, training: bool) -> Tensor:
        raise NotImplementedError

    def backward(self, delta: Tensor) -> Tensor:
        """Returns the gradient of the inputs. `delta` is the gradient of the outputs."""
        raise NotImplementedError

    def add_noise(self, outputs: Tensor, noise: Tensor) -> Tensor:
        """The outputs that `forward` would return with noise added to the normalised inputs."""
        self.noise = noise
        return torch.addcmul(outputs, noise, self.weight)

    def add_noise_gradient(self, delta: Tensor) -> None:
        """Adds to the weight's gradient, which `backward` has set, the part of the noise."""
        weight_gradient, _ = self.parameter_gradients
        weight_gradient.add_((delta * self.noise).sum(-1).view_as(weight_gradient))


class BatchNorm(Norm):
    """nn.BatchNorm1d of all models. The units of all models are the channels of torch's kernel. A
    unit that pads a model is 0 in every sample, before and after the norm."""

    def __init__(self, norms: Sequence[nn.BatchNorm1d]) -> None:
        super().__init__(norms)
        self.momentum = norms[0].momentum
        self.mean, self.variance, self.batches = (
            stack_tensors([getattr(norm, name) for norm in norms])
            for name in ("running_mean", "running_var", "num_batches_tracked")
        )

    def forward(self, inputs: Tensor, training: bool) -> Tensor:
        assert self.momentum is not None
        # batch_statistics: mean and 1 / standard deviation of this batch
        outputs, *self.batch_statistics = torch.native_batch_norm(
            inputs.view(1, -1, inputs.shape[-1]), self.weight.view(-1), self.bias.view(-1),
            self.mean.view(-1), self.variance.view(-1), training, self.momentum, self.eps,
        )  # fmt: skip
        self.inputs = inputs
        return outputs.view_as(inputs)

    def backward(self, delta: Tensor) -> Tensor:
        shape = (1, -1, delta.shape[-1])
        gradient, *parameter_gradients = torch.ops.aten.native_batch_norm_backward(
            delta.view(shape), self.inputs.view(shape), self.weight.view(-1), None, None,
            *self.batch_statistics, True, self.eps, [True, True, True],
        )  # fmt: skip
        self.parameter_gradients = tuple(parameter_gradients)
        return gradient.view_as(delta)  # type: ignore[no-any-return]


class LayerNorm(Norm):
    """nn.LayerNorm of models of equal widths. torch's kernel needs the units in the last dimension;
    copies to that order and back would cost more than these sums."""

    def forward(self, inputs: Tensor, training: bool) -> Tensor:  # noqa: ARG002
        centred = inputs - inputs.mean(1, keepdim=True)
        self.inverse_std = centred.square().mean(1, keepdim=True).add_(self.eps).rsqrt_()
        self.normalised = centred.mul_(self.inverse_std)
        return torch.addcmul(self.bias, self.normalised, self.weight)

    def backward(self, delta: Tensor) -> Tensor:
        # With g = delta · weight and y = normalised: (g - mean(g) - y · mean(g · y)) / std.
        product = delta * self.normalised
        self.parameter_gradients = product.sum(-1), delta.sum(-1)
        mean_gy = product.mul_(self.weight).mean(1, keepdim=True)
        g = delta * self.weight
        g.sub_(g.mean(1, keepdim=True)).addcmul_(self.normalised, mean_gy, value=-1)
        return g.mul_(self.inverse_std)


def stack_linear(layers: Sequence[nn.Linear], groups: int) -> Layer:
    return Layer(_stack_parameters(layers), groups)


def stack_norms(norms: Sequence[NormModule]) -> Norm:
    batch_norms = [norm for norm in norms if isinstance(norm, nn.BatchNorm1d)]
    return BatchNorm(batch_norms) if batch_norms else LayerNorm(norms)


def _stack_parameters(modules: Sequence[nn.Linear | NormModule]) -> list[nn.Parameter]:
    """The stacked weight and, if there is one, bias; a single module's own parameters."""
    names = ["weight"] if modules[0].bias is None else ["weight", "bias"]
    if len(modules) == 1:
        return [getattr(modules[0], name) for name in names]
    return [
        nn.Parameter(stack_tensors([getattr(module, name) for module in modules])) for name in names
    ]


def stack_tensors(tensors: Sequence[Tensor]) -> Tensor:
    """Copies the tensors into one tensor (S, …), padded with zeros, and makes each of them a view
    of it. A single tensor is returned as it is."""
    if len(tensors) == 1:
        return tensors[0]
    shape = [max(sizes) for sizes in zip(*(tensor.shape for tensor in tensors), strict=True)]
    stacked = tensors[0].data.new_zeros(len(tensors), *shape)
    for padded, tensor in zip(stacked, tensors, strict=True):
        view = padded[tuple(slice(size) for size in tensor.shape)]
        view.copy_(tensor.data)
        tensor.data = view
    return stacked


def dropout_mask(like: Tensor, dropout: float, generator: torch.Generator | None = None) -> Tensor:
    """A mask: 0 with probability `dropout`, else 1 / (1 - dropout), so that the mean is 1.

    On a CPU, the probability is rounded to a multiple of 1/2¹⁶ below 1, and one random draw gives
    four numbers of 16 bits. This takes a quarter of the time of bernoulli_, which took a fifth of
    a step of 784-1024-1024-10.
    """
    if like.device.type != "cpu":
        kept = torch.empty_like(like).bernoulli_(1 - dropout, generator=generator)
        return kept.div_(1 - dropout)
    draws = torch.empty(-(-like.numel() // 4), dtype=torch.int64)
    draws.random_(-(2**63), None, generator=generator)
    bits = draws.view(torch.int16)[: like.numel()].view(like.shape)
    dropped = min(round(dropout * 2**16), 2**16 - 1)  # of the 2¹⁶ values; the smallest is -2¹⁵
    return (bits >= dropped - 2**15).to(like.dtype).mul_(2**16 / (2**16 - dropped))


@torch.no_grad()
def bound_rows(weight: Tensor, bound: float) -> None:
    """Scales down, in place, the rows of (…, rows, columns) whose 2-norm exceeds the bound."""
    norms = weight.norm(dim=-1, keepdim=True)
    weight.mul_(bound / norms.clamp_(min=bound))
