"""Stacks against the models they are made of, and against autograd."""

import random

import pytest
import torch
from torch.nn import functional as F
from torch.optim import SGD

from kindling.models.closed_form import ACTIVATIONS, Activation, SegmentBatch
from kindling.steps.stack import MOST_EXACT_SHAPES, KeptWeights, Stack
from tests.helpers.stacks import BATCH, CLASSES, INPUTS, accumulate_all, batches, models_of

STACKS: dict[str, tuple[list[list[int]], list[int]]] = {
    "one": ([[7]], [0]),
    "logistic": ([[]] * 3, [0, 0, 0]),
    "shared": ([[7], [7], [7]], [0, 0, 0]),
    "own": ([[7], [7], [7]], [0, 1, 2]),
    "widths": ([[7], [3], [5], [3]], [0, 0, 0, 0]),
    "grid": ([[4], [4], [8], [8], [4], [8]], [0, 1, 0, 1, 2, 2]),
    "uneven": ([[4], [4], [8], [4], [8]], [0, 0, 0, 1, 1]),
    "deep": ([[6, 4], [6, 4], [3, 5]], [0, 1, 0]),
    "deeper": ([[6, 4, 3], [6, 4, 3], [2, 2, 2]], [0, 0, 0]),
    "many": ([[width] for width in range(3, 20)], [0] * 17),
    "many own": ([[width] for width in range(3, 20)], [width % 3 for width in range(17)]),
}


@pytest.mark.parametrize("norm", [None, "batch", "layer"])
@pytest.mark.parametrize("activation", ["relu", "tanh", "gelu", "silu"])
@pytest.mark.parametrize("name", STACKS)
def test_gradients_equal_those_of_autograd(
    name: str, activation: str, norm: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with an activation that is added by an entry alone."""
    silu = Activation(torch.nn.SiLU, F.silu, torch.ops.aten.silu_backward, of_input=True)
    monkeypatch.setitem(ACTIVATIONS, "silu", silu)
    sizes, batch_of = STACKS[name]
    models = models_of(sizes, activation, norm=norm)
    references = models_of(sizes, activation, norm=norm)
    stack = Stack(models, batch_of)
    features, labels = batches(max(batch_of) + 1)
    logits = accumulate_all(stack, features, labels)
    for segment, parts in zip(stack.segments, logits, strict=True):
        for place, trial in enumerate(segment.trials):
            x, y = features[batch_of[trial]], labels[batch_of[trial]]
            output = references[trial](x)
            assert torch.allclose(parts[place].T, output, rtol=1e-12, atol=1e-12)
            F.cross_entropy(output, y).backward()  # type: ignore[no-untyped-call]
            pairs = zip(segment.gradients, references[trial].parameters(), strict=True)
            for gradient, parameter in pairs:
                assert parameter.grad is not None
                whole = gradient if len(segment.trials) == 1 else gradient[place]
                corner = whole[tuple(slice(size) for size in parameter.shape)]
                # Behind a batch norm a bias changes nothing: its gradient is rounding.
                scale = parameter.grad.abs().max() + 1e-9
                assert (corner - parameter.grad).abs().max() <= 1e-6 * scale
                assert whole.abs().sum() == pytest.approx(
                    corner.abs().sum().item(), abs=1e-12
                )  # padding: 0


@pytest.mark.parametrize("name", STACKS)
def test_stacking_keeps_weights_and_makes_them_views(name: str) -> None:
    sizes, batch_of = STACKS[name]
    models, references = models_of(sizes), models_of(sizes)
    stack = Stack(models, batch_of)
    for model, reference in zip(models, references, strict=True):
        state = reference.state_dict()
        assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    with torch.no_grad():
        for parameter in stack.parameters:
            parameter.mul_(2)
    for model, reference in zip(models, references, strict=True):
        state = reference.state_dict()
        assert all(torch.equal(value, 2 * state[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("norm", [None, "batch", "layer"])
@pytest.mark.parametrize("name", STACKS)
def test_evaluation_equals_that_of_the_models(name: str, norm: str | None) -> None:
    """After a step, which updates the running statistics of batch norms as torch does."""
    sizes, batch_of = STACKS[name]
    models, references = models_of(sizes, norm=norm), models_of(sizes, norm=norm)
    stack = Stack(models, batch_of)
    features, labels = batches(max(batch_of) + 1)
    accumulate_all(stack, features, labels)
    stack.count_batches(1)
    for reference, batch in zip(references, batch_of, strict=True):
        reference(features[batch])
        reference.eval()
    expected = torch.stack([reference(features[0]).T for reference in references])
    assert torch.allclose(stack.logits(features[0]), expected, rtol=1e-12, atol=1e-12)
    for model, reference in zip(models, references, strict=True):
        for found, value in zip(model.buffers(), reference.buffers(), strict=True):
            assert torch.allclose(found, value, rtol=1e-12)


def test_equal_widths_share_a_product_and_many_widths_are_rounded() -> None:
    assert [s.trials for s in Stack(models_of([[4], [8], [4]]), [0, 0, 0]).segments] == [
        [0, 2],
        [1],
    ]
    many = Stack(models_of([[width] for width in range(3, 20)]), [0] * 17)
    assert len(many.segments) <= MOST_EXACT_SHAPES
    shared = Stack(models_of([[4]] * 3), [0, 0, 0]).segments[0]
    assert shared.parts[0].weight.shape == (12, INPUTS)  # one product over all units, no padding
    own = Stack(models_of([[4]] * 3), [0, 1, 2]).segments[0]
    assert own.parts[0].weight.shape == (3, 4, INPUTS)


def test_trials_are_divided_among_lanes() -> None:
    """Random stacks: each trial lies in one lane, no lane exceeds its share by more than one trial,
    and the logits are those of the models, in their order."""
    stream = random.Random(0)
    for _ in range(40):
        count, lanes = stream.randint(1, 12), stream.randint(1, 4)
        models = models_of([[stream.randint(1, 40)] for _ in range(count)])
        stack = Stack(models, [stream.randint(0, 2) for _ in range(count)], min(lanes, count))
        costs = [sum(value.numel() for value in model.parameters()) for model in models]
        assert sorted(t for lane in stack.lanes for t in lane.trials) == list(range(count))
        assert 1 <= len(stack.lanes) <= lanes
        share = sum(costs) / min(lanes, count)
        for lane in stack.lanes:
            assert sum(costs[trial] for trial in lane.trials) <= share + max(costs)
        features = torch.rand(7, INPUTS, dtype=torch.double)
        with torch.no_grad():
            for found, model in zip(stack.logits(features), models, strict=True):
                assert torch.allclose(found.mT, model(features))


def test_updating_in_place_is_stepping_by_the_gradient() -> None:
    models, references = models_of([[7], [7], [3]]), models_of([[7], [7], [3]])
    features, labels = batches(1)
    targets = F.one_hot(labels, CLASSES).mT.double().unsqueeze(1)
    rates = torch.tensor([0.1, 0.5, 0.3], dtype=torch.double)
    for segment in Stack(models, [0, 0, 0]).segments:
        logits = torch.empty(len(segment.trials), CLASSES, BATCH, dtype=torch.double)
        scale = rates[segment.trials, None, None] / BATCH
        segment.differentiate(
            SegmentBatch(features, targets, None, scale, logits),
            lambda part, *gradient: part.descend(*gradient),
        )
    for model, reference, rate in zip(models, references, rates.tolist(), strict=True):
        optimizer = SGD(reference.parameters(), rate)
        F.cross_entropy(reference(features[0]), labels[0]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        for found, expected in zip(model.parameters(), reference.parameters(), strict=True):
            assert torch.allclose(found, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("norm", [None, "batch"])
@pytest.mark.parametrize("name", [name for name in STACKS if name != "one"])
def test_kept_weights_are_those_of_the_copied_models(name: str, norm: str | None) -> None:
    """Whatever happens to the models later; a second copy changes the models that it names."""
    sizes, batch_of = STACKS[name]
    models = models_of(sizes, norm=norm)
    Stack(models, batch_of, 2)
    kept = KeptWeights(models)

    def state(number: int) -> dict[str, torch.Tensor]:
        return {key: value.clone() for key, value in models[number].state_dict().items()}

    expected = {number: state(number) for number in (2, 0)}
    copies = dict(zip((2, 0), kept.copy([2, 0]), strict=True))
    for model in models:
        for value in model.state_dict().values():
            value.add_(1)
    expected[0] = state(0)
    (copies[0],) = kept.copy([0])
    for number, copy in copies.items():
        assert {key: value.shape for key, value in copy.items()} == {
            key: value.shape for key, value in expected[number].items()
        }
        assert all(value.equal(expected[number][key]) for key, value in copy.items())
    assert kept.copy([]) == []
