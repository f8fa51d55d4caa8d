"""Optimizers of stacks against torch's own."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, Optimizer

from kindling.config import schema
from kindling.config.compose import compose
from kindling.models.mlp import Mlp
from kindling.steps.closed_form import clip_gradients
from kindling.steps.optimizers import (
    adapt_restored,
    build_optimizer,
    build_stacked_optimizer,
    trial_state,
)
from kindling.steps.stack import Stack
from tests.helpers.stacks import accumulate_all, batches, models_of

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
        schema.Adam(name="adamw", lr=lr, weight_decay=decay)
        for lr, decay in ((0.001, 0.0), (0.01, 0.1), (0.1, 0.2), (0.003, 0.3))
    ],
}


def plain(config: schema.Optimizer, model: nn.Module) -> Optimizer:
    """torch's optimizer, built independently of the project's builder."""
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
            kind = AdamW if config.name == "adamw" else Adam
            return kind(model.parameters(), config.lr, weight_decay=config.weight_decay)


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_stacked_optimizers_equal_those_of_torch(name: str, clip: float | None) -> None:
    """Five steps with changing learning rates. The state of each trial equals that of torch."""
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
                clip_gradients(segment, clip)
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


def test_optimizers_are_fused() -> None:
    for name in ("sgd", "adam", "adamw"):
        config = compose(f"optimizer={name}").optimizer
        assert build_optimizer(config, Mlp(4, [3], 2).parameters()).defaults["fused"] is True


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_a_rate_from_a_gpu_is_a_number_on_a_cpu(name: str) -> None:
    """As a tensor it would be rounded to 32 bits, and copied to another device in each step."""
    parameter = nn.Parameter(torch.ones(3))
    optimizer = build_optimizer(compose(f"optimizer={name}").optimizer, [parameter])
    saved = optimizer.state_dict()
    saved["param_groups"][0]["lr"] = torch.tensor(0.25)
    optimizer.load_state_dict(saved)
    adapt_restored(optimizer)
    assert [type(group["lr"]) for group in optimizer.param_groups] == [float]
    assert optimizer.param_groups[0]["lr"] == 0.25
