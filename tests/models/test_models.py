"""Models by the tutorials' numbers."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

from kindling.config import registry
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


EXTENSION = """
from torch import nn


class Net(nn.Linear):
    def forward(self, x):
        raise {forward}


def build(config, shape, classes):
    return {build}
"""


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"build": "1 / 0"}, "mine.parts:build fails for .*/parts.py:11: ZeroDivisionError: div"),
        ({"build": "shape[7]"}, r"mine.parts:build fails for samples of shape \[4\] \(.*IndexE"),
        ({"build": "nn.Linear(4)"}, r"\(.*/mine/parts.py:11: TypeError: .* correct it, or choose"),
        (
            {"build": "nn.Linear(5, 2)"},
            r"cannot take samples of shape \[4\] \(RuntimeError: .*mat1",
        ),
        ({"forward": "KeyError('me')"}, r"take samples .*/mine/parts.py:7: KeyError: 'me'\); corr"),
        ({"build": "nn.Linear(4, 2).double()"}, r"has weights of torch.float64, must be float32"),
        ({"build": "nn.Linear(4, 2).half()"}, r"has weights of torch.float16, must be float32"),
    ],
)
def test_a_fault_in_the_code_of_an_extension_is_told_with_its_place(
    given: dict[str, str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = EXTENSION.format(**{"build": "Net(4, 2)", "forward": "OSError", **given})
    file = tmp_path / "mine" / "parts.py"
    file.parent.mkdir()
    file.write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("mine", "mine.parts"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(registry.PLACES, ("model", "mlp"), "mine.parts:build")
    with pytest.raises(InputError, match=rf"^model=mlp: .*{told}") as caught:
        build_model(compose().model, (4,), 2)
    assert "logistic_regression" not in str(caught.value)
