"""A small convolutional network."""

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor, nn

from kindling.config import schema


def build(config: schema.Cnn, shape: Sequence[int], classes: int) -> "Cnn":
    if len(shape) != 3:
        raise ValueError("needs pictures, [channels,height,width]")
    return Cnn(shape, config.channels, classes, config.kernel_size, config.norm, config.dropout)


# A group norm of one group normalises all channels and pixels of a sample together.
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm2d,
    "layer": partial(nn.GroupNorm, 1),
}


class Cnn(nn.Module):
    """Convolutions that keep height and width, each followed by its norm, relu and the maximum of
    squares of 2x2 pixels; then dropout and a linear layer. Such a network is half a LeNet (LeCun et
    al. 1998) with a batch norm (Ioffe and Szegedy 2015)."""

    def __init__(
        self,
        shape: Sequence[int],
        channels: Sequence[int],
        classes: int,
        kernel_size: int = 3,
        norm: str | None = None,
        dropout: float = 0.0,
    ) -> None:
        """`shape` is (channels, height, width) of a sample; `kernel_size` is odd. Raises ValueError
        if height or width is below 2 to the power of the number of convolutions."""
        super().__init__()
        before, height, width = shape
        padding, has_bias = kernel_size // 2, norm != "batch"
        layers: list[nn.Module] = []
        for after in channels:
            height, width = height // 2, width // 2
            if not (height and width):
                raise ValueError(f"{len(channels)} convolutions halve the pictures too often")
            # A batch norm subtracts the mean, so a bias before it would have no effect.
            layers.append(nn.Conv2d(before, after, kernel_size, padding=padding, bias=has_bias))
            if norm is not None:
                layers.append(NORMS[norm](after))
            layers += [nn.ReLU(), nn.MaxPool2d(2)]
            before = after
        self.convolutions = nn.Sequential(*layers)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(before * height * width, classes)

    def forward(self, features: Tensor) -> Tensor:
        """Features (N, *shape) to logits (N, classes)."""
        logits: Tensor = self.output(self.dropout(self.convolutions(features).flatten(1)))
        return logits
