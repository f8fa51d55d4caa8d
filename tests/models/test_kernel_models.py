"""Which trials the CUDA kernel trains, told without a GPU."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from src.config.compose import compose
from src.models import construct_model
from src.models.kernel_models import shape_of, why_no_kernel
from src.models.step_choice import StepChoice, choose_step
from src.native import kernel
from src.native.kernel import Shape


@pytest.fixture(autouse=True)
def h200(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    properties = SimpleNamespace(shared_memory_per_block_optin=232_448)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: properties)
    monkeypatch.setattr(kernel, "why_absent", lambda: "")
    return properties


def model(*overrides: str) -> nn.Module:
    return construct_model(compose(*overrides).model, (784,), 10)


def reason(*overrides: str) -> str:
    return why_no_kernel([compose(*overrides)], [model(*overrides)])


def test_the_tutorials_network_is_trained_by_the_kernel() -> None:
    assert reason() == ""
    assert reason("model=logistic_regression", "trainer.label_smoothing=0.1") == ""
    assert choose_step([compose()], [model()], "cuda") == StepChoice("kernel")
    closed = compose("trainer.step=closed_form")
    assert choose_step([closed], [model()], "cuda") == StepChoice("closed_form")
    why = "the kernel does not exchange gradients, and there are 2 ranks"
    assert choose_step([compose()], [model()], "cuda", 2) == StepChoice("closed_form", why)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("trainer.precision=bf16-mixed", "trainer.precision=bf16-mixed"),
        ("trainer.accumulate_grad_batches=2", "trainer.accumulate_grad_batches"),
        ("trainer.gradient_clip_val=1", "trainer.gradient_clip_val"),
        ("trainer.ema_decay=0.9", "trainer.ema_decay"),
        ("trainer.class_weights=balanced", "trainer.class_weights"),
        ("data.loader=workers", "data.loader=workers"),
        ("optimizer=adam", "optimizer=adam"),
        ("optimizer.momentum=0.9", "optimizer.momentum"),
        ("optimizer.weight_decay=0.1", "optimizer.weight_decay"),
        ("model.dropout=0.1", "model.dropout"),
        ("model.input_dropout=0.1", "model.dropout"),
        ("model.norm=batch", "model.norm"),
        ("model.noise=0.1", "model.noise"),
        ("model.max_norm=1", "model.max_norm"),
    ],
)
def test_the_reason_names_what_stands_in_the_way(override: str, told: str) -> None:
    assert reason(override) == f"the kernel has no {told}"
    choice = choose_step([compose(override)], [model(override)], "cuda")
    assert choice == StepChoice("closed_form", f"the kernel has no {told}")


def test_every_trial_of_a_stack_counts() -> None:
    overrides = ((), ("optimizer.momentum=0.9",), ("model.hidden_sizes=64",))
    configs, models = [compose(*each) for each in overrides], [model(*each) for each in overrides]
    assert why_no_kernel(configs[:2], models[:2]) == "the kernel has no optimizer.momentum"
    assert why_no_kernel(configs[::2], models[::2]).startswith("the largest network takes 296,576")


def test_what_the_gpu_lacks(h200: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    h200.shared_memory_per_block_optin = 101_376
    assert reason() == (
        "the largest network takes 161,024 bytes of the memory of a thread block with its batch, "
        "and this GPU has 101,376"
    )
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    assert reason() == "the kernel needs compute capability 8.0, this GPU has 7.5"
    monkeypatch.setattr(kernel, "why_absent", lambda: "cuda.bindings is not installed")
    assert reason() == "cuda.bindings is not installed"


def test_the_shape_is_the_models() -> None:
    found = shape_of(model("model.hidden_sizes=[20,30]", "model.activation=tanh"), 64, 0.1)
    assert found == Shape((784, 20, 30, 10), 64, True, "tanh", 0.1)
