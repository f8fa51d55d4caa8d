"""Gaussian noise by its numbers, and in the three ways of a step."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kindling.config.compose import compose
from kindling.models import model_cost
from kindling.models.mlp import Mlp, noise_like
from kindling.steps.stack import Stack
from kindling.training.fit import fit
from tests.helpers.commands import SMALL
from tests.helpers.philox import normal_numbers
from tests.helpers.stacks import BATCH, accumulate_all, batches, models_of
from tests.helpers.steps import STEPS
from tests.helpers.weights import same

NORMS = [None, "batch", "layer"]
LEARNS = ("optimizer=adamw", "optimizer.lr=0.01")


def _assert_normal(values: Tensor, deviation: float) -> None:
    """Of a million numbers. Bounds of five standard errors."""
    z = values.flatten() / deviation
    assert len(z) == 2**20
    assert z.mean().item() == pytest.approx(0, abs=5e-3)
    assert z.square().mean().item() == pytest.approx(1, abs=7e-3)
    assert z.pow(3).mean().item() == pytest.approx(0, abs=0.02)
    assert z.pow(4).mean().item() == pytest.approx(3, abs=0.05)
    for bound, share in ((0.6744898, 0.5), (1.959964, 0.05), (3.290527, 0.001)):
        error = 5 * (share / len(z)) ** 0.5
        assert (z.abs() > bound).double().mean().item() == pytest.approx(share, abs=error)
    for lag in (1, 15, 16, 17, 32, 48, 64):  # numbers of one counter, and of neighbours
        assert (z[lag:] * z[:-lag]).mean().item() == pytest.approx(0, abs=5e-3)


def test_the_noise_of_torch_is_normal() -> None:
    torch.manual_seed(0)
    _assert_normal(noise_like(torch.empty(1024, 1024, dtype=torch.double), 0.3), 0.3)


def test_the_noise_of_the_engine_is_normal() -> None:
    """By its counterpart in NumPy, to which tests/native/test_engine.py compares the engine."""
    _assert_normal(normal_numbers((1024, 1024), 7, 0, 1), 1.0)


def test_numbers_of_the_engine_differ_between_seeds_batches_and_layers() -> None:
    base = normal_numbers((64, 256), 7, 0, 1)
    for other in ((8, 0, 1), (7, 1, 1), (7, 0, 2), (7 + 2**32, 0, 1)):
        found = normal_numbers((64, 256), *other)
        assert not (found == base).any()
        assert (found * base).mean().item() == pytest.approx(0, abs=0.04)
    assert not (base[0] == base[1]).any()


class Plain(nn.Module):
    """A model by plain torch, with one tensor of noise for the input and for each layer."""

    def __init__(self, model: Mlp, noise: list[Tensor]) -> None:
        super().__init__()
        self.model, self.noise = model, noise

    def forward(self, x: Tensor) -> Tensor:
        first, *hidden, last = self.noise
        x = x + first
        linear = [each for each in self.model.layers if isinstance(each, nn.Linear)]
        norms = self.model.architecture().norms
        for depth, noise in enumerate(hidden):
            x = linear[depth](x)
            if norms:
                norm: Any = norms[depth]
                normalised = (norm(x) - norm.bias) / norm.weight + noise
                x = normalised * norm.weight + norm.bias
            else:
                x = x + noise
            x = torch.tanh(x)
        return linear[-1](x) + last  # type: ignore[no-any-return]


def _noises(generator: torch.Generator) -> list[Tensor]:
    """Noise of one model 12-7-6-5."""
    widths = (12, 7, 6, 5)
    return [torch.randn(BATCH, w, generator=generator, dtype=torch.double) for w in widths]


def _models(count: int, norm: str | None, noise: float = 0.3) -> list[Any]:
    models = models_of([[7, 6]] * count, "tanh", norm=norm, noise=noise)
    for model in models:
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d | nn.LayerNorm):
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.uniform_(module.bias, -0.5, 0.5)
    return models


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("batch_of", [[0], [0, 0], [0, 1], [0, 0, 1, 1]])
def test_both_forms_of_the_step_equal_plain_torch(batch_of: list[int], norm: str | None) -> None:
    """With noise that is drawn beforehand: logits and all gradients."""
    count = len(batch_of)
    stream = torch.Generator().manual_seed(0)
    noises = [_noises(stream) for _ in range(count)]
    features, labels = batches(max(batch_of) + 1)
    expected: list[tuple[Tensor, list[Tensor]]] = []
    for trial, model in enumerate(_models(count, norm, 0.0)):
        logits = Plain(model, noises[trial])(features[batch_of[trial]])
        F.cross_entropy(logits, labels[batch_of[trial]]).backward()  # type: ignore[no-untyped-call]
        expected.append((logits.detach(), [p.grad for p in model.parameters()]))

    by_autograd = _models(count, norm)
    for trial, model in enumerate(by_autograd):
        with patch("kindling.models.mlp.noise_like", side_effect=noises[trial]) as drawn:
            logits = model(features[batch_of[trial]])
        assert [call.args[1] for call in drawn.call_args_list] == [0.3] * 4
        F.cross_entropy(logits, labels[batch_of[trial]]).backward()  # type: ignore[no-untyped-call]
        assert torch.allclose(logits, expected[trial][0], rtol=1e-12, atol=1e-12)
        for parameter, gradient in zip(model.parameters(), expected[trial][1], strict=True):
            assert torch.allclose(parameter.grad, gradient, rtol=1e-9, atol=1e-12)

    stack = Stack(_models(count, norm), batch_of)
    (segment,) = stack.segments
    stacked = [torch.stack(layer) for layer in zip(*noises, strict=True)]  # (S, B, units)
    stacked[1:] = [layer.mT for layer in stacked[1:]]

    def next_noise(like: Tensor, *_: object) -> Tensor:
        return stacked.pop(0).reshape(like.shape)

    with patch("kindling.models.mlp.noise_like", next_noise):
        (found,) = accumulate_all(stack, features, labels)
    assert not stacked
    for trial, (logits, gradients) in enumerate(expected):
        assert torch.allclose(found[trial].T, logits, rtol=1e-12, atol=1e-12)
        for whole, gradient in zip(segment.gradients, gradients, strict=True):
            own = whole if count == 1 else whole[trial]
            assert torch.allclose(own, gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("norm", NORMS)
def test_evaluation_has_no_noise(norm: str | None) -> None:
    """Modules and stacks: the logits are those of the model without noise."""
    (noisy,), (quiet,) = (models_of([[7]], norm=norm, noise=noise) for noise in (0.3, 0.0))
    features = torch.rand(5, 12, dtype=torch.double)
    assert not torch.equal(noisy(features), noisy(features))
    quiet.load_state_dict(_by_place(noisy, quiet))
    expected = quiet.eval()(features)
    assert torch.equal(noisy.eval()(features), expected)
    assert torch.allclose(Stack([noisy], [0]).logits(features)[0].T, expected, rtol=1e-12)


def _by_place(model: nn.Module, other: nn.Module) -> dict[str, Tensor]:
    """The weights of a model under the names of another: noise without a norm is a module."""
    return dict(zip(other.state_dict(), model.state_dict().values(), strict=True))


def test_a_norm_with_noise_saves_the_same_weights() -> None:
    (noisy,), (quiet,) = (models_of([[7]], norm="batch", noise=noise) for noise in (0.3, 0.0))
    assert list(noisy.state_dict()) == list(quiet.state_dict())
    assert sum(p.numel() for p in noisy.parameters()) == sum(p.numel() for p in quiet.parameters())


def test_models_with_noise_are_not_padded() -> None:
    """Noise would reach the units that pad a model."""
    stack = Stack(models_of([[width] for width in range(3, 20)], noise=0.1), [0] * 17)
    assert len(stack.segments) == 17


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("norm", ["null", "batch", "layer"])
def test_zero_is_no_noise_and_noise_is_reproducible(norm: str, step: str, tmp_path: Path) -> None:
    common = (*SMALL, *LEARNS, f"model.norm={norm}", f"trainer.step={step}")
    runs = {
        name: fit(compose(*common, *overrides), tmp_path / name)
        for name, overrides in {
            "default": (), "zero": ("model.noise=0",), "first": ("model.noise=0.3",),
            "second": ("model.noise=0.3",),
        }.items()
    }  # fmt: skip
    assert same(runs["default"], runs["zero"])
    assert same(runs["first"], runs["second"])
    assert not same(runs["first"], runs["zero"])
    assert runs["first"].result["step"] == step
    assert runs["first"].result["test/acc"] > 0.5  # type: ignore[operator]


@pytest.mark.parametrize("step", ["closed_form", "autograd"])
def test_noise_in_lower_precision(step: str, tmp_path: Path) -> None:
    common = (
        *SMALL,
        *LEARNS,
        "trainer.precision=bf16-mixed",
        f"trainer.step={step}",
        "model.noise=0.3",
    )
    for norm in ("null", "batch", "layer"):
        run = fit(compose(*common, f"model.norm={norm}"), tmp_path / norm)
        assert run.result["status"] == "finished"
        assert run.result["test/acc"] > 0.5  # type: ignore[operator]


@pytest.mark.parametrize("norm", [None, "layer"])
def test_gradient_checkpointing_repeats_the_noise(norm: str | None) -> None:
    (x,), (y,) = batches(1)
    gradients = []
    for checkpointing in (False, True):
        (model,) = models_of([[7, 6]], norm=norm, noise=0.3, gradient_checkpointing=checkpointing)
        torch.manual_seed(3)
        F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        gradients.append([p.grad for p in model.parameters()])
    for plain, checkpointed in zip(*gradients, strict=True):
        assert plain is not None
        assert torch.equal(plain, checkpointed)


def test_noise_takes_memory() -> None:
    quiet, noisy = (
        model_cost(compose(f"model.noise={noise}").model, (784,), 10) for noise in (0, 1)
    )
    assert noisy.trained_sample - quiet.trained_sample == 2 * (784 + 32 + 10)
    assert noisy.model == quiet.model
