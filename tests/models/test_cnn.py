"""The small convolutional network: its layers, and the pictures that it takes."""

import pytest
import torch
from torch.nn import functional as F

from kindling.config.compose import compose
from kindling.config.schema import Cnn as Section
from kindling.models import build_model, model_cost, try_model
from kindling.models.cnn import Cnn
from kindling.system.errors import InputError


def section(**values: object) -> Section:
    own = {"name": "cnn", "channels": [3, 4], "kernel_size": 3, "norm": None, "dropout": 0.0}
    return Section.model_validate(own | values)


def test_logits_are_those_of_torchs_functions() -> None:
    model = Cnn((2, 9, 8), [3, 4], 5, 3, "layer").eval()
    x = torch.randn(6, 2, 9, 8)
    weights, hidden = model.state_dict(), x
    for place in (0, 4):
        own = f"convolutions.{place}.", f"convolutions.{place + 1}."
        (weight, bias), (scale, shift) = ([weights[w + "weight"], weights[w + "bias"]] for w in own)
        hidden = F.group_norm(F.conv2d(hidden, weight, bias, padding=1), 1, scale, shift)
        hidden = F.max_pool2d(F.relu(hidden), 2)
    assert hidden.shape == (6, 4, 2, 2)
    torch.testing.assert_close(
        model(x), hidden.flatten(1) @ model.output.weight.T + model.output.bias
    )


def test_sizes() -> None:
    """1-16-32-64 on 28 x 28 pixels: weights of convolutions, norms and output by hand."""
    config = compose("model=cnn").model
    model = build_model(config, (1, 28, 28), 10)
    convolutions = 9 * (16 + 16 * 32 + 32 * 64)
    norms, output = 16 + 32 + 64, 10 * 576 + 10
    assert sum(p.numel() for p in model.parameters()) == convolutions + 2 * norms + output
    tried = try_model(config, (1, 28, 28), 10)
    assert tried.weights == convolutions + 4 * norms + 3 + output  # and a count for each norm
    multiplications = 9 * (28**2 * 16 + 14**2 * 16 * 32 + 7**2 * 32 * 64) + 576 * 10
    assert tried.operations == 2 * multiplications
    # Each convolution, norm and relu; maxima; flat features after dropout; logits.
    kept = 3 * (28**2 * 16 + 14**2 * 32 + 7**2 * 64) + 14**2 * 16 + 7**2 * 32 + 9 * 64 + 576 + 10
    assert tried.outputs == kept
    assert model_cost(config, (1, 28, 28), 10).model == tried.weights


@pytest.mark.parametrize(
    ("shape", "fault"),
    [
        ((784,), "needs pictures, [channels,height,width]"),
        ((3, 3, 8), "2 convolutions halve the pictures too often"),
    ],
)
def test_what_is_no_picture_is_refused(shape: tuple[int, ...], fault: str) -> None:
    with pytest.raises(InputError) as caught:
        build_model(section(), shape, 5)
    assert fault in str(caught.value)
    assert "type model=logistic_regression" in str(caught.value)
    assert build_model(section(), (3, 4, 4), 5)(torch.zeros(1, 3, 4, 4)).shape == (1, 5)


@pytest.mark.parametrize(
    ("override", "fault"),
    [
        (
            "model.kernel_size=4",
            "model.kernel_size=4: must be odd, so that pictures keep their size",
        ),
        ("model.kernel_size=-1", "model.kernel_size=-1"),
        ("model.channels=[]", "model.channels=[]"),
        ("model.channels=[0]", "model.channels"),
        (
            "model.channels=[2000000000,2000000000]",
            "model.channels=[2000000000,2000000000]: a convolution of 36,000,000,000,000,000,000 ",
        ),
        ("model.hidden_sizes=[3]", "model.hidden_sizes"),
        ("model.norm=group", "model.norm=group: must be one of batch, layer"),
        ("trainer.step=native", "trainer.step=native supports only logistic_regression and mlp"),
    ],
)
def test_wrong_settings_are_faults(override: str, fault: str) -> None:
    with pytest.raises(InputError) as caught:
        compose("model=cnn", override)
    assert fault in str(caught.value)
