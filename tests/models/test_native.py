"""Models whose tensors lie in one flat vector."""

import copy
from typing import Any

import pytest
import torch

from src.models.native import NativeModel
from tests.helpers.stacks import INPUTS, models_of

SHAPES: list[tuple[list[int], dict[str, Any]]] = [
    ([], {}),
    ([7], {}),
    ([16, 3], {"norm": "batch"}),
    ([40], {"norm": "layer"}),
]


@pytest.mark.parametrize(("hidden", "options"), SHAPES)
def test_a_model_keeps_its_values_and_shares_the_vector(
    hidden: list[int], options: dict[str, Any]
) -> None:
    (model,) = models_of([hidden], **options)
    original = copy.deepcopy(model)
    native = NativeModel(model)
    before, after = original.state_dict(), model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    x = torch.randn(5, INPUTS, dtype=torch.double)
    assert torch.allclose(model.eval()(x), original.eval()(x), rtol=1e-12)

    native.weights.add_(1.0)
    counts = "num_batches_tracked"
    for name, value in model.state_dict().items():
        assert name.endswith(counts) or torch.equal(value, before[name] + 1)
    model.load_state_dict(before)
    again = NativeModel(original)
    places = again.weights != 0  # padding was changed above
    assert torch.equal(native.weights[places], again.weights[places])


@pytest.mark.parametrize(("hidden", "options"), SHAPES)
def test_views_have_the_shapes_of_the_parameters(
    hidden: list[int], options: dict[str, Any]
) -> None:
    (model,) = models_of([hidden], **options)
    native = NativeModel(model)
    vector = native.new_vector()
    views = native.views(vector)
    assert [view.shape for view in views] == [p.shape for p in model.parameters()]
    for number, view in enumerate(views, 1):
        view.fill_(number)
    used = sum(p.numel() for p in model.parameters())
    assert int((vector != 0).sum()) == used


def test_foreign_memory_is_never_touched() -> None:
    native = NativeModel(models_of([[7]])[0])
    x = torch.zeros(4, INPUTS)
    with pytest.raises(ValueError, match=r"features \(4, 11\), must be \(N, 12\)"):
        native.logits(x[:, 1:])
    for label in (-1, 5):
        with pytest.raises(
            ValueError, match=rf"from {min(0, label)} to {max(0, label)}, must be from 0 to 4"
        ):
            native.samples(x, torch.tensor([0, 0, label, 0]))
    assert native.samples(x, torch.tensor([0, 4, 2, 0])).size == 4
