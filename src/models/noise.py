"""Gaussian noise in training, as in the noisy encoder of a ladder network (Rasmus et al. 2015)."""

import torch
from torch import Tensor, nn


def noise_like(
    tensor: Tensor, deviation: float, generator: torch.Generator | None = None
) -> Tensor:
    """Normal numbers of mean 0 and standard deviation `deviation`, in the shape of a tensor."""
    return torch.empty_like(tensor).normal_(0, deviation, generator=generator)


def add_noise(tensor: Tensor, deviation: float, training: bool) -> Tensor:
    """The tensor with noise; without, if not training or if the deviation is 0."""
    return tensor + noise_like(tensor, deviation) if training and deviation else tensor


class Noise(nn.Module):
    """Adds noise to its inputs."""

    def __init__(self, deviation: float) -> None:
        super().__init__()
        self.deviation = deviation

    def forward(self, inputs: Tensor) -> Tensor:
        return add_noise(inputs, self.deviation, self.training)

    def extra_repr(self) -> str:
        return str(self.deviation)


class _NoisyNorm(nn.Module):
    """Adds noise to the normalised values of a norm, before they are multiplied by its weight. The
    network cannot drown the noise by a large weight, because the weight scales both."""

    deviation: float
    weight: nn.Parameter

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = super().forward(inputs)
        if self.training and self.deviation:
            # weight · (normalised + noise) + bias
            outputs = outputs + (self.weight * noise_like(outputs, self.deviation)).to(
                outputs.dtype
            )
        return outputs


class NoisyBatchNorm(_NoisyNorm, nn.BatchNorm1d):
    """nn.BatchNorm1d with noise."""

    def __init__(self, units: int, deviation: float) -> None:
        nn.BatchNorm1d.__init__(self, units)
        self.deviation = deviation


class NoisyLayerNorm(_NoisyNorm, nn.LayerNorm):
    """nn.LayerNorm with noise."""

    def __init__(self, units: int, deviation: float) -> None:
        nn.LayerNorm.__init__(self, units)
        self.deviation = deviation
