"""Models by the tutorials' numbers."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn

from kindling.config.compose import compose
from kindling.models import build_model, construct_model
from kindling.system.errors import InputError


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
        ((4,), lambda _: nn.Linear(4, 6), r"gives \(2, 6\) for 2 samples, must give \(2, 5\);"),
    ],
)
def test_a_model_that_cannot_take_the_samples_is_an_input_error(
    shape: tuple[int, ...],
    make: Callable[[Sequence[int]], nn.Module],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kindling.models.construct_model", lambda _, shape, __: make(shape))
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
