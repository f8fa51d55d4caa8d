"""The models by the tutorials' numbers, and dropout in closed form."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kindling.config.compose import compose
from kindling.models import build_model
from kindling.models.closed_form import SegmentBatch, StackedParameters
from kindling.models.logistic_regression import LogisticRegression
from kindling.models.mlp import Mlp
from kindling.steps.stack import Stack
from tests.helpers.stacks import BATCH, CLASSES, batches, models_of


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_parameter_counts() -> None:
    assert _parameters(Mlp(784, [32], 10)) == 25_450
    assert _parameters(Mlp(50, [30, 20], 3)) == 2_213
    assert _parameters(LogisticRegression(784, 10)) == 7_850


def test_raschkas_network_to_the_printed_digit() -> None:
    torch.manual_seed(123)
    model = Mlp(50, [30, 20], 3)
    first = model.layers[0].weight[0, :3]  # type: ignore[index]
    assert torch.allclose(first, torch.tensor([-0.0577, 0.0047, -0.0702]), atol=5e-5)
    torch.manual_seed(123)
    logits = model(torch.rand(1, 50))
    assert torch.allclose(logits, torch.tensor([[-0.1262, 0.1080, -0.1792]]), atol=5e-5)
    expected = torch.tensor([[0.3113, 0.3934, 0.2952]])
    assert torch.allclose(logits.softmax(1), expected, atol=5e-5)


@pytest.mark.parametrize(
    ("name", "module"), [("relu", nn.ReLU), ("tanh", nn.Tanh), ("gelu", nn.GELU)]
)
def test_layers_follow_the_configuration(name: str, module: type[nn.Module]) -> None:
    config = compose(
        "model.hidden_sizes=[8,4]", f"model.activation={name}", "model.dropout=0.5"
    ).model
    model = build_model(config, (1, 3, 3), 5)
    assert isinstance(model, Mlp)
    kinds = [type(layer) for layer in model.layers]
    assert kinds == [nn.Linear, module, nn.Dropout, nn.Linear, module, nn.Dropout, nn.Linear]
    shapes = [tuple(p.shape) for p in model.parameters()]
    assert shapes == [(8, 9), (8,), (4, 8), (4,), (5, 4), (5,)]
    assert model(torch.rand(7, 1, 3, 3)).shape == (7, 5)


def test_dropout_of_each_layer_and_of_the_input() -> None:
    model = Mlp(784, [8, 6], 10, dropout=[0.5, 0.0], input_dropout=0.2)
    assert [layer.p for layer in model.modules() if isinstance(layer, nn.Dropout)] == [
        0.2,
        0.5,
        0.0,
    ]
    torch.manual_seed(0)
    seen = model.input_dropout(torch.ones(200, 784))
    assert set(seen.unique().tolist()) == {0.0, 1.25}
    assert seen.mean().item() == pytest.approx(1, abs=0.01)


def test_trials_that_share_a_batch_have_different_input_masks() -> None:
    """Three equal models with one batch: their inputs are masked differently."""
    model = Mlp(6, [4], 3, input_dropout=0.5)
    models: list[nn.Module] = [copy.deepcopy(model) for _ in range(3)]
    segment = Stack(models, [0, 0, 0]).segments[0]
    features, labels = torch.rand(1, 5, 6) + 1, torch.randint(3, (5,))
    targets = F.one_hot(labels, 3).mT.float()[None, None]
    masks = []

    def use(part: StackedParameters, first: Tensor, second: Tensor) -> None:
        if part is segment.parts[0]:
            masks.append((second.mT == 0).clone())  # the inputs of the first layer

    batch = SegmentBatch(features, targets, None, 1.0, torch.empty(3, 3, 5))
    segment.differentiate(batch, use)
    (dropped,) = masks
    assert dropped.shape == (3, 5, 6)
    assert 0.2 < dropped.double().mean() < 0.8
    assert not any(torch.equal(dropped[i], dropped[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


@pytest.mark.slow
def test_dropout_has_the_distribution_of_autograd() -> None:
    """Mean and variance of the gradient of the first layer over many masks."""
    (features,), (labels,) = batches(1)
    (model,) = models_of([[50]], dropout=0.4)
    targets = F.one_hot(labels, CLASSES).T.double().view(1, 1, CLASSES, BATCH)
    stack = Stack([model], [0])
    (segment,) = stack.segments
    segment.make_gradients()
    logits = torch.empty(1, CLASSES, BATCH, dtype=torch.double)
    batch = SegmentBatch(features[None], targets, None, 1 / BATCH, logits)
    found, expected = [], []
    for _ in range(3000):
        segment.differentiate(
            batch,
            lambda layer, delta, inputs: layer.accumulate(delta, inputs, overwrite=True),
        )
        found.append(segment.gradients[0].norm().item())
        model.zero_grad()
        F.cross_entropy(model(features), labels).backward()  # type: ignore[no-untyped-call]
        gradient = next(model.parameters()).grad
        assert gradient is not None
        expected.append(gradient.norm().item())
    a, b = torch.tensor(found), torch.tensor(expected)
    assert a.mean().item() == pytest.approx(b.mean().item(), rel=0.02)
    assert a.std().item() == pytest.approx(b.std().item(), rel=0.1)
