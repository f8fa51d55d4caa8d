"""Every contender trains what its name says: all reach the same loss in the same epochs."""

import os
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks import contenders
from benchmarks.contenders import Contender
from benchmarks.stacks import ON_CPU, configure, stack
from kindling.config.schema import Config
from kindling.data.module import DataModule
from kindling.data.sources.source import as_float

EPOCHS = 12  # a multiple of the epochs of each call
RATE = 0.1  # on so few samples, training with the rate of the suite is not smooth
TOLERANCE = 0.25  # 15 seeds differ by up to 0.13; half of the epochs would give twice the loss


@pytest.fixture(autouse=True)
def _rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contenders, "RATE", RATE)
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 scikit-learn draws from this stream


@cache
def digits() -> tuple[Config, DataModule]:
    return configure(ON_CPU, "data=digits", f"optimizer.lr={RATE}")


def tensors(samples: int | None = None) -> tuple[Tensor, Tensor]:
    train = digits()[1].train
    return as_float(train.features).flatten(1)[:samples], train.labels[:samples]


def loss(contender: Contender, calls: int = EPOCHS, samples: int | None = None) -> float:
    """The training loss after some calls."""
    for _ in range(calls):
        assert contender.train() > 0
    features, labels = tensors(samples)
    return F.cross_entropy(contender.logits(features), labels).item()


@cache
def expected(samples: int | None = None) -> float:
    torch.manual_seed(0)  # the first test that asks has drawn already
    found = loss(contenders.bare(*tensors(samples)), samples=samples)
    assert found < 0.5  # before training it is 2.3
    return found


def tutorial() -> float:
    data = digits()[1]
    return loss(contenders.tutorial(data.train, data.validations[0]))


LOOPS: dict[str, Callable[[], float]] = {
    "tutorial": tutorial,
    "numpy": lambda: loss(contenders.by_numpy(*tensors())),
    "jax": lambda: loss(contenders.by_jax(*tensors())),
    "lightning": lambda: loss(contenders.default_lightning(*tensors())),
    "sklearn": lambda: loss(contenders.sklearn(*tensors()), EPOCHS // 3),
    "keras": lambda: loss(contenders.keras(*tensors())),
    "ours": lambda: loss(contenders.ours("digits", EPOCHS), 1),
    "steps alone": lambda: loss(stack(digits()[1], [digits()[0]], loading=False)),
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_contender_learns_as_the_plain_loop_does(name: str) -> None:
    if name in ("jax", "keras"):
        os.environ.setdefault("KERAS_BACKEND", "torch")
        pytest.importorskip(name)
    assert LOOPS[name]() == pytest.approx(expected(), rel=TOLERANCE)


@pytest.mark.slow
@pytest.mark.skipif(not contenders.can_compile(), reason="needs a C++ compiler")
def test_the_compiled_contender_learns_as_the_plain_loop_does() -> None:
    """On whole batches only, because a smaller last batch would be compiled too."""
    found = loss(contenders.compiled(*tensors(1000)), samples=1000)
    assert found == pytest.approx(expected(1000), rel=TOLERANCE)
