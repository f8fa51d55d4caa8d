"""Layers of S models side by side, each with its gradient written out.

Activations have the shape (S, units, B). Therefore the output of a layer is the input of the next
layer without a copy, whether a layer is one product over all units or a batch of products.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from src.models.closed_form import StackedParameters

NormModule = nn.BatchNorm1d | nn.LayerNorm

# Each activation; in place if torch has a function for it.
ACTIVATE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu_,
    "tanh": torch.tanh_,
    "gelu": F.gelu,
}


# Each function computes the gradient of an activation's input from the gradient of the activation's
# output, by the kernels of autograd. The second argument is the activation's output; for gelu, the
# activation's input.
BACKWARD: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "relu": lambda gradient, output: torch.ops.aten.threshold_backward.grad_input(
        gradient, output, 0, grad_input=gradient
    ),
    "tanh": torch.ops.aten.tanh_backward,
    "gelu": torch.ops.aten.gelu_backward,
}


class Layer(StackedParameters):
    """Linear layers as G products side by side: weight (G, rows, columns), bias (G, rows, 1),
    inputs (G, columns, B). If G = 1, no tensor has the first dimension. A layer before a batch norm
    has no bias."""

    def __init__(self, parameters: Sequence[nn.Parameter], groups: int) -> None:
        weight, *biases = (parameter.data for parameter in parameters)
        shape = (groups, -1, weight.shape[-1]) if groups > 1 else (-1, weight.shape[-1])
        bias = biases[0].view(*shape[:-1], 1) if biases else None
        super().__init__(parameters, weight.view(shape), bias)
        self.weight_t = self.weight.mT
        self.groups = groups

    def shaped(self, tensor: Tensor) -> Tensor:
        """Views (S, units, B) as this layer's inputs or outputs: (G, S/G · units, B)."""
        if self.groups > 1:
            return tensor.view(self.groups, -1, tensor.shape[-1])
        return tensor.view(-1, tensor.shape[-1])

    def forward(self, inputs: Tensor, out: Tensor | None = None) -> Tensor:
        dtype = inputs.dtype  # in mixed precision, the weights are rounded for each product
        weight = self.weight if dtype == self.weight.dtype else self.weight.to(dtype)
        if self.bias is None:
            return (torch.bmm if self.groups > 1 else torch.mm)(weight, inputs, out=out)
        bias = self.bias if dtype == self.bias.dtype else self.bias.to(dtype)
        return (torch.baddbmm if self.groups > 1 else torch.addmm)(bias, weight, inputs, out=out)

    def backward(self, delta: Tensor, out: Tensor | None = None) -> Tensor:
        """Returns the gradient of the inputs. `delta` is the gradient of the outputs."""
        dtype = delta.dtype
        weight = self.weight_t if dtype == self.weight.dtype else self.weight_t.to(dtype)
        product = torch.bmm if self.groups > 1 else torch.mm
        return product(weight, delta, out=out)

    def descend(self, delta: Tensor, inputs: Tensor, /) -> None:
        """Subtracts `delta`, the outputs' gradient, times `inputs`, without storing the product."""
        if self.groups > 1:
            self.weight.baddbmm_(delta, inputs.mT, alpha=-1)
        else:
            self.weight.addmm_(delta, inputs.mT, alpha=-1)
        if self.bias is not None:
            self.bias.sub_(delta.sum(-1, keepdim=True))

    def accumulate(self, delta: Tensor, inputs: Tensor, /, overwrite: bool) -> None:
        beta = 0 if overwrite else 1
        if delta.dtype == self.weight_gradient.dtype:
            if self.groups > 1:
                self.weight_gradient.baddbmm_(delta, inputs.mT, beta=beta)
            else:
                self.weight_gradient.addmm_(delta, inputs.mT, beta=beta)
        else:
            _put(self.weight_gradient, delta @ inputs.mT, overwrite)
        if self.bias is not None:
            _put(self.bias_gradient, delta.sum(-1, keepdim=True), overwrite)


def _put(target: Tensor, value: Tensor, overwrite: bool) -> None:
    (target.copy_ if overwrite else target.add_)(value)


class Norm(StackedParameters):
    """Normalises (S, units, B), multiplies by a weight (S, units, 1) and adds a bias."""

    parameter_gradients: tuple[Tensor, Tensor]  # of weight and bias; `backward` sets them
    noise: Tensor  # of the last batch; `add_noise` sets it
    bias: Tensor

    def __init__(self, parameters: Sequence[nn.Parameter], trials: int, eps: float) -> None:
        weight, bias = (parameter.data.view(trials, -1, 1) for parameter in parameters)
        super().__init__(parameters, weight, bias)
        self.eps = eps

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

    def __init__(
        self, parameters: Sequence[nn.Parameter], trials: int, norms: Sequence[nn.BatchNorm1d]
    ) -> None:
        first = norms[0]
        assert first.momentum is not None
        super().__init__(parameters, trials, first.eps)
        self.momentum = first.momentum
        self.mean, self.variance, self.batches = (
            stack_tensors([getattr(norm, name) for norm in norms])
            for name in ("running_mean", "running_var", "num_batches_tracked")
        )

    def forward(self, inputs: Tensor, training: bool) -> Tensor:
        # batch_statistics: mean and 1 / standard deviation of this batch
        outputs, *self.batch_statistics = torch.native_batch_norm(
            inputs.view(1, -1, inputs.shape[-1]),
            self.weight.view(-1),
            self.bias.view(-1),
            self.mean.view(-1),
            self.variance.view(-1),
            training,
            self.momentum,
            self.eps,
        )
        self.inputs = inputs
        return outputs.view_as(inputs)

    def backward(self, delta: Tensor) -> Tensor:
        shape = (1, -1, delta.shape[-1])
        gradient, *parameter_gradients = torch.ops.aten.native_batch_norm_backward(
            delta.view(shape),
            self.inputs.view(shape),
            self.weight.view(-1),
            None,
            None,
            *self.batch_statistics,
            True,
            self.eps,
            [True, True, True],
        )
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
    parameters, trials = _stack_parameters(norms), len(norms)
    batch_norms = [norm for norm in norms if isinstance(norm, nn.BatchNorm1d)]
    if batch_norms:
        return BatchNorm(parameters, trials, batch_norms)
    return LayerNorm(parameters, trials, norms[0].eps)


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
    first = tensors[0]
    stacked = torch.zeros(len(tensors), *shape, dtype=first.dtype, device=first.device)
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
