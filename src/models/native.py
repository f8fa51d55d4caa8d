"""Models that the engine trains: their tensors are views of one flat vector (src/native/)."""

import threading
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from src.models.closed_form import closed_form_of
from src.models.mlp import Architecture, DenseClosedForm, architecture_of
from src.native import engine

SOURCES = {
    torch.uint8: engine.BYTES, torch.float32: engine.FLOATS, torch.float64: engine.DOUBLES,
}  # fmt: skip


_memory = threading.local()


def scratch(size: int) -> int:
    """The address of at least `size` bytes of working memory for this thread."""
    held: Tensor | None = getattr(_memory, "held", None)
    if held is None or len(held) < size:
        held = _memory.held = torch.empty(size, dtype=torch.uint8)
    return held.data_ptr()


class NativeModel:
    """A model and the flat vector `weights` that holds its parameters and running statistics."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.architecture = model, architecture_of(model)
        first = self.architecture.layers[0].weight
        self.network = _network(self.architecture, first.dtype)
        self.weights = self.new_vector()
        for tensor, view in self._pairs(self.weights):
            tensor.data = view.copy_(tensor.data)
        self.batch_norms = [n for n in self.architecture.norms if isinstance(n, nn.BatchNorm1d)]

    def new_vector(self) -> Tensor:
        """A flat vector of zeros, with a place for each number of the model."""
        return torch.zeros(self.network.size, dtype=self.architecture.layers[0].weight.dtype)

    def views(self, vector: Tensor) -> list[Tensor]:
        """The parts of a flat vector that belong to the parameters, in the model's order."""
        by_parameter = {id(tensor): view for tensor, view in self._pairs(vector)}
        return [by_parameter[id(parameter)] for parameter in self.model.parameters()]

    def logits(self, features: Tensor) -> Tensor:
        """Logits (N, classes) of features (N, *shape), as a split or a `Batch` holds them."""
        features, by = features.contiguous(), engine.engine()
        found = self.weights.new_empty(len(features), self.network.perceptron.widths[-1])
        if len(features):
            memory = scratch(by.scratch_bytes(self.network, len(features)))
            samples = self.samples(features)
            by.logits(self.network, self.weights.data_ptr(), samples, found.data_ptr(), memory)
        return found

    def samples(self, features: Tensor, labels: Tensor | None = None) -> engine.Samples:
        """The addresses of features (N, *shape) and labels (N,). Raises ValueError as `check`."""
        self.check(features, labels)
        address = None if labels is None else labels.data_ptr()
        return engine.Samples(features.data_ptr(), SOURCES[features.dtype], address, len(features))

    def check(self, features: Tensor, labels: Tensor | None = None) -> None:
        """Raises ValueError if a sample has another size than the model's inputs, or a label is no
        class: the engine would read and write foreign memory."""
        inputs, *_, classes = self.network.perceptron.widths
        if features.numel() != len(features) * inputs:
            raise ValueError(f"features {tuple(features.shape)}, must be (N, {inputs})")
        if labels is not None and len(labels):
            low, high = (int(label) for label in labels.aminmax())
            if low < 0 or high >= classes:
                raise ValueError(f"labels from {low} to {high}, must be from 0 to {classes - 1}")

    def _pairs(self, vector: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Each tensor of the model, with its view of a flat vector."""
        modules = self.architecture
        for number, (layer, place) in enumerate(
            zip(modules.layers, self.network.places, strict=True)
        ):
            size = place.inputs * place.stride
            weight = vector[place.weight : place.weight + size].view(place.inputs, place.stride)
            yield layer.weight, weight[:, : place.units].T
            vectors: list[tuple[Tensor, int | None]] = [(layer.bias, place.bias)]
            if place.scale is not None:
                norm = modules.norms[number]
                vectors += [(norm.weight, place.scale), (norm.bias, place.shift)]
            if place.mean is not None:
                norm = modules.norms[number]
                assert isinstance(norm, nn.BatchNorm1d)
                assert norm.running_mean is not None
                assert norm.running_var is not None
                vectors += [(norm.running_mean, place.mean), (norm.running_var, place.variance)]
            for tensor, start in vectors:
                if start is not None:
                    yield tensor, vector[start : start + place.units]


def why_not_native(model: nn.Module) -> str:
    """Why the engine cannot train a model on a CPU; "" if it can."""
    if closed_form_of(model) is not DenseClosedForm:
        return f"the engine does not know the layers of {type(model).__name__}"
    return engine.why_absent()


def _network(architecture: Architecture, dtype: torch.dtype) -> engine.Network:
    layers, norms = architecture.layers, architecture.norms
    kind = None
    eps, momentum = 1e-5, 0.1
    if norms:
        kind, eps = "batch" if isinstance(norms[0], nn.BatchNorm1d) else "layer", norms[0].eps
        momentum = getattr(norms[0], "momentum", None) or momentum
    return engine.Network(
        engine.Perceptron(
            (layers[0].in_features, *(layer.out_features for layer in layers)),
            torch.finfo(dtype).bits,
            architecture.activation,
            kind,
            architecture.dropouts,
            architecture.input_dropout,
            architecture.noise,
            architecture.max_norm,
            eps,
            momentum,
        )
    )
