"""Models by the tutorials' numbers."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn

from src.config.compose import compose
from src.models import build_model, construct_model
from src.models.logistic_regression import LogisticRegression
from src.models.mlp import Mlp
from src.system.errors import InputError


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
def test_layers_are_what_the_configuration_says(name: str, module: type[nn.Module]) -> None:
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


class _Unpacks(nn.Module):
    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        _, height, width = shape
        self.output = nn.Linear(height * width, 5)


@pytest.mark.parametrize(
    ("shape", "make", "told"),
    [
        ((4,), lambda _: nn.Conv2d(1, 5, 3), r"cannot take samples of shape \[4\] \(.*conv2d"),
        ((3, 8, 8), lambda _: nn.Conv2d(1, 5, 3), r"shape \[3,8,8\] \(.* channels"),
        ((4,), lambda _: nn.BatchNorm2d(4), r"\(expected 4D input \(got 2D input\)\)"),
        ((1, 2, 2), lambda _: nn.Linear(4, 5), r"cannot be multiplied .*model=mlp, which take any"),
        ((4,), _Unpacks, r"\(not enough values to unpack"),
        ((4,), lambda _: nn.Linear(4, 6), r"gives \(2, 6\) .* must give logits \(2, 5\)"),
    ],
)
def test_a_model_that_cannot_take_the_samples_is_an_input_error(
    shape: tuple[int, ...],
    make: Callable[[Sequence[int]], nn.Module],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("src.models.construct_model", lambda _, shape, __: make(shape))
    with pytest.raises(InputError, match=rf"model=mlp: .*{told}"):
        build_model(compose().model, shape, 5)


def test_trying_a_model_draws_no_numbers_and_leaves_it_in_training() -> None:
    config = compose("model.dropout=0.5", "model.norm=batch").model
    torch.manual_seed(0)
    tried = build_model(config, (4,), 3)
    after = torch.rand(1)
    torch.manual_seed(0)
    untried = construct_model(config, (4,), 3)
    assert torch.equal(after, torch.rand(1))
    assert tried.training
    for one, other in zip(tried.state_dict().values(), untried.state_dict().values(), strict=True):
        assert torch.equal(one, other)
