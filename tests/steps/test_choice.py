"""Which way of a step a run takes, and the reason that it gives."""

import pytest
from torch import nn

from kindling.config.compose import compose
from kindling.models import construct_model
from kindling.steps.base import StepChoice
from kindling.steps.choice import choose_step
from kindling.system.errors import InputError
from tests.helpers.steps import needs_engine

MLP = construct_model(compose().model, (4,), 3)


@needs_engine
def test_a_cpu_takes_the_engine_and_a_gpu_the_closed_form() -> None:
    assert choose_step([compose()], [MLP]) == StepChoice("native")
    assert choose_step([compose("trainer.precision=64")], [MLP]) == StepChoice("native")
    apple = "the kernel runs on CUDA GPUs, this run on mps"
    assert choose_step([compose()], [MLP], "mps") == StepChoice("closed_form", apple)
    assert choose_step([compose("trainer.step=closed_form")], [MLP]) == StepChoice("closed_form")
    assert choose_step([compose("trainer.step=autograd")], [MLP]) == StepChoice("autograd")


def test_the_reason_names_what_stands_in_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    bf16 = choose_step([compose("trainer.precision=bf16-mixed")], [MLP])
    assert bf16 == StepChoice("closed_form", "the engine has no trainer.precision=bf16-mixed")
    ranks = choose_step([compose()], [MLP], world_size=2)
    assert ranks == StepChoice(
        "closed_form",
        "the engine needs memory that ranks share, and these 2 share none",
    )
    assert choose_step([compose()], [MLP], world_size=2, shared=True) == StepChoice("native")
    half = choose_step([compose("trainer.precision=16-mixed")], [MLP])
    assert half == StepChoice(
        "autograd", "trainer.precision=16-mixed: the closed form has no gradient scaling"
    )
    other = choose_step([compose()], [nn.Sequential(nn.Linear(4, 2))])
    assert other == StepChoice("autograd", "Sequential has no closed form")
    monkeypatch.setattr(
        "kindling.native.engine.why_absent", lambda: "the engine is not built; type X"
    )
    assert choose_step([compose()], [MLP]) == StepChoice(
        "closed_form", "the engine is not built; type X"
    )
    with pytest.raises(InputError, match="native: the engine is not built; type X; or type"):
        choose_step([compose("trainer.step=native")], [MLP])


def test_a_closed_form_of_others_is_not_the_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(type(MLP).closed_form):  # type: ignore[misc]
        pass

    class Family(nn.Module):
        closed_form = Own

    reason = "the engine does not know the layers of Family"
    assert choose_step([compose()], [Family()]) == StepChoice("closed_form", reason)


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("trainer.precision=bf16-mixed", "has no 16-bit products"),
        ("trainer.accelerator=cuda", "trains on a CPU"),
        ("trainer.num_nodes=2", "exchanges gradients within one machine alone"),
        ("trainer.compile=true", "is not compiled by torch"),
    ],
)
def test_what_native_steps_do_not_cover_is_a_fault(setting: str, reason: str) -> None:
    with pytest.raises(InputError) as caught:
        compose(setting, "trainer.step=native")
    assert (
        f"trainer.step=native {reason}, and does not go with {setting}; type trainer.step=auto"
    ) in str(caught.value)
