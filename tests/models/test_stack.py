"""Stacks against the models they are made of, and against autograd."""

import copy
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, Optimizer

from src.config import schema
from src.config.compose import compose
from src.models.logistic_regression import LogisticRegression
from src.models.mlp import Mlp
from src.models.stack import MOST_SEGMENTS, Part, Stack, dropout_mask, step_kind
from src.training.optimizers import build_stacked_optimizer, trial_state
from src.training.steps import _clip

INPUTS, CLASSES, BATCH = 12, 5, 9


def models_of(
    sizes: Sequence[list[int]],
    activation: str = "relu",
    dropout: float | list[float] = 0.0,
    **options: Any,
) -> list[nn.Module]:
    torch.manual_seed(1)
    models: list[nn.Module] = [
        Mlp(INPUTS, hidden, CLASSES, activation, dropout, **options).double()
        if hidden
        else LogisticRegression(INPUTS, CLASSES).double()
        for hidden in sizes
    ]
    return models


def batches(count: int) -> tuple[Tensor, Tensor]:
    """Features (R, B, inputs) and labels (R, B)."""
    torch.manual_seed(2)
    features = torch.randn(count, BATCH, INPUTS, dtype=torch.double)
    return features, torch.randint(CLASSES, (count, BATCH))


def accumulate_all(stack: Stack, features: Tensor, labels: Tensor) -> list[Tensor]:
    """The stack's gradients of the mean loss of each trial; returns its logits per segment."""
    targets = F.one_hot(labels, CLASSES).mT.double().unsqueeze(1)
    found = []
    for segment in stack.segments:
        segment.make_gradients()
        logits = torch.empty(len(segment.trials), CLASSES, BATCH, dtype=torch.double)
        segment.differentiate(
            features[segment.batches],
            targets[segment.batches],
            1 / BATCH,
            logits,
            lambda layer, delta, inputs: layer.accumulate(delta, inputs, fresh=True),
        )
        segment.attach_gradients()
        found.append(logits)
    return found


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
@pytest.mark.parametrize("activation", ["relu", "tanh", "gelu"])
@pytest.mark.parametrize("name", STACKS)
def test_gradients_are_autograds(name: str, activation: str, norm: str | None) -> None:
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
def test_stacking_changes_no_weight_and_shares_them(name: str) -> None:
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
def test_evaluation_is_the_models_own(name: str, norm: str | None) -> None:
    """After a step, which moves a batch norm's running statistics as the model's own would."""
    sizes, batch_of = STACKS[name]
    models, references = models_of(sizes, norm=norm), models_of(sizes, norm=norm)
    stack = Stack(models, batch_of)
    features, labels = batches(max(batch_of) + 1)
    accumulate_all(stack, features, labels)
    stack.count(1)
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
    assert len(many.segments) <= MOST_SEGMENTS
    shared = Stack(models_of([[4]] * 3), [0, 0, 0]).segments[0]
    assert shared.layers[0].weight.shape == (12, INPUTS)  # one product over all units, no padding
    own = Stack(models_of([[4]] * 3), [0, 1, 2]).segments[0]
    assert own.layers[0].weight.shape == (3, 4, INPUTS)


def test_lanes_share_out_the_trials() -> None:
    """Random stacks: every trial in one lane, none with more than its share and one trial, and the
    logits are the models' own, in their order."""
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


@pytest.mark.parametrize("dropout", [0.1, 0.5, 0.9])
def test_a_mask_drops_as_many_as_it_should(dropout: float) -> None:
    torch.manual_seed(0)
    mask = dropout_mask(torch.empty(1001, 999, dtype=torch.double), dropout)
    least, kept = sorted(set(mask.flatten().tolist()))
    assert (least, kept) == (0, pytest.approx(1 / (1 - dropout), rel=1e-4))
    dropped = (mask == 0).double()
    assert dropped.mean().item() == pytest.approx(dropout, abs=0.002)  # four deviations
    flat = dropped.flatten() - dropout
    for lag in (1, 2, 3, 4):  # numbers of one draw, and of the next
        assert (flat[lag:] * flat[:-lag]).mean().item() == pytest.approx(0, abs=0.001)
    torch.manual_seed(0)
    assert torch.equal(dropout_mask(torch.empty(1001, 999, dtype=torch.double), dropout), mask)


@pytest.mark.parametrize("rare", [2**-k for k in range(12, 25)])
def test_a_mask_keeps_the_mean_however_much_is_dropped(rare: float) -> None:
    """Up to the finest probability there is, 1 - 2⁻¹⁶: not all are kept, nor is the mean lost."""
    torch.manual_seed(0)
    mask = dropout_mask(torch.empty(2**20), 1 - rare)
    kept = max(rare, 2**-16)
    assert (mask > 0).double().mean().item() == pytest.approx(kept, rel=0.9)
    assert set(mask.flatten().tolist()) == {0.0, 1 / kept}


def test_trials_that_share_a_batch_have_input_masks_of_their_own() -> None:
    """Of equal models with one batch, each trial's gradient is that of a mask of its own."""
    model = Mlp(6, [4], 3, input_dropout=0.5)
    models: list[nn.Module] = [copy.deepcopy(model) for _ in range(3)]
    segment = Stack(models, [0, 0, 0]).segments[0]
    features, labels = torch.rand(1, 5, 6) + 1, torch.randint(3, (5,))
    targets = F.one_hot(labels, 3).mT.float()[None, None]
    masks = []

    def take(part: Part, first: Tensor, second: Tensor) -> None:
        if part is segment.layers[0]:
            masks.append((second.mT == 0).clone())  # the inputs of the first layer

    segment.differentiate(features, targets, 1.0, torch.empty(3, 3, 5), take)
    (dropped,) = masks
    assert dropped.shape == (3, 5, 6)
    assert 0.2 < dropped.double().mean() < 0.8
    assert not any(torch.equal(dropped[i], dropped[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


def test_dropout_is_the_same_in_distribution() -> None:
    """Mean and variance of the first layer's gradient over many masks, against autograd's."""
    (features,), (labels,) = batches(1)
    (model,) = models_of([[50]], dropout=0.4)
    targets = F.one_hot(labels, CLASSES).T.double().view(1, 1, CLASSES, BATCH)
    stack = Stack([model], [0])
    (segment,) = stack.segments
    segment.make_gradients()
    logits = torch.empty(1, CLASSES, BATCH, dtype=torch.double)
    found, expected = [], []
    for _ in range(3000):
        segment.differentiate(
            features[None],
            targets,
            1 / BATCH,
            logits,
            lambda layer, delta, inputs: layer.accumulate(delta, inputs, fresh=True),
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


def test_updating_in_place_is_stepping_by_the_gradient() -> None:
    models, references = models_of([[7], [7], [3]]), models_of([[7], [7], [3]])
    features, labels = batches(1)
    targets = F.one_hot(labels, CLASSES).mT.double().unsqueeze(1)
    rates = torch.tensor([0.1, 0.5, 0.3], dtype=torch.double)
    for segment in Stack(models, [0, 0, 0]).segments:
        logits = torch.empty(len(segment.trials), CLASSES, BATCH, dtype=torch.double)
        scale = rates[segment.trials, None, None] / BATCH
        segment.differentiate(
            features, targets, scale, logits, lambda part, *gradient: part.descend(*gradient)
        )
    for model, reference, rate in zip(models, references, rates.tolist(), strict=True):
        optimizer = SGD(reference.parameters(), rate)
        F.cross_entropy(reference(features[0]), labels[0]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        for found, expected in zip(model.parameters(), reference.parameters(), strict=True):
            assert torch.allclose(found, expected, rtol=1e-12, atol=1e-14)


SIZES, BATCH_OF = [[4], [6], [4], [4]], [0, 0, 1, 1]


def _sgd(lr: float, weight_decay: float, momentum: float, nesterov: bool) -> schema.Sgd:
    return schema.Sgd(
        name="sgd", lr=lr, weight_decay=weight_decay, momentum=momentum, nesterov=nesterov
    )


OPTIMIZERS: dict[str, list[schema.Optimizer]] = {
    "sgd": [_sgd(lr, 0.0, 0.0, False) for lr in (0.1, 0.2, 0.3, 0.4)],
    "decay": [_sgd(0.1, decay, 0.0, False) for decay in (0.0, 0.1, 0.2, 0.3)],
    "momentum": [_sgd(0.1, 0.01, momentum, False) for momentum in (0.0, 0.5, 0.9, 0.99)],
    "nesterov": [_sgd(lr, 0.01, 0.9, True) for lr in (0.1, 0.2, 0.3, 0.4)],
    "adam": [
        schema.Adam(name="adam", lr=lr, weight_decay=decay)
        for lr, decay in ((0.001, 0.0), (0.01, 0.1), (0.1, 0.2), (0.003, 0.3))
    ],
    "adamw": [
        schema.AdamW(name="adamw", lr=lr, weight_decay=decay)
        for lr, decay in ((0.001, 0.0), (0.01, 0.1), (0.1, 0.2), (0.003, 0.3))
    ],
}


def plain(config: schema.Optimizer, model: nn.Module) -> Optimizer:
    """torch's optimizer, written out independently of the project's builder."""
    match config:
        case schema.Sgd():
            return SGD(
                model.parameters(),
                config.lr,
                config.momentum,
                weight_decay=config.weight_decay,
                nesterov=config.nesterov,
            )
        case schema.Adam():
            return Adam(model.parameters(), config.lr, weight_decay=config.weight_decay)
        case schema.AdamW():
            return AdamW(model.parameters(), config.lr, weight_decay=config.weight_decay)


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_stacked_optimizers_are_torchs(name: str, clip: float | None) -> None:
    """Five steps with the rates changed in between; the state each trial would save is torch's."""
    configs = OPTIMIZERS[name]
    models, references = models_of(SIZES), models_of(SIZES)
    stack = Stack(models, BATCH_OF)
    optimizer = build_stacked_optimizer(configs, stack)
    optimizers = [plain(c, r) for c, r in zip(configs, references, strict=True)]
    features, labels = batches(2)
    for step in range(5):
        rates = [config.lr / (1 + step) for config in configs]
        optimizer.set_rates(rates)  # type: ignore[attr-defined]
        accumulate_all(stack, features, labels)
        for segment in stack.segments:
            if clip:
                _clip(segment, clip)
            segment.attach_gradients()
        optimizer.step()
        for trial, (reference, own) in enumerate(zip(references, optimizers, strict=True)):
            own.param_groups[0]["lr"] = rates[trial]
            own.zero_grad()
            x, y = features[BATCH_OF[trial]], labels[BATCH_OF[trial]]
            F.cross_entropy(reference(x), y).backward()  # type: ignore[no-untyped-call]
            if clip:
                nn.utils.clip_grad_norm_(reference.parameters(), clip)
            own.step()
    for trial, (model, reference) in enumerate(zip(models, references, strict=True)):
        for found, expected in zip(model.parameters(), reference.parameters(), strict=True):
            assert torch.allclose(found, expected, rtol=1e-9, atol=1e-12)
        saved = trial_state(optimizer, stack, trial, configs[trial])
        expected_state = optimizers[trial].state_dict()
        assert saved["param_groups"][0]["lr"] == pytest.approx(configs[trial].lr / 5)
        for number, values in expected_state["state"].items():
            for key, value in values.items():
                if value is None:  # torch keeps no velocity where there is no momentum
                    continue
                assert torch.allclose(saved["state"][number][key], value, rtol=1e-6, atol=1e-12)


def test_what_the_closed_form_covers() -> None:
    model = models_of([[4]])[0]
    assert step_kind(compose(), model) == "closed_form"
    assert step_kind(compose("trainer.step=autograd"), model) == "autograd"
    assert step_kind(compose("trainer.precision=16-mixed"), model) == "autograd"
    assert step_kind(compose(), nn.Sequential(nn.Linear(4, 2))) == "autograd"
