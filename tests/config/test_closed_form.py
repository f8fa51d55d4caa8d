"""The reach of the closed form: one table, told by the configuration and followed by the steps."""

from pathlib import Path
from typing import get_args

import pytest

from kindling.config import schema
from kindling.config.closed_form import NOT_COVERED, needed_by_ranks, not_covered
from kindling.config.compose import compose
from kindling.config.faults import options
from kindling.models import construct_model
from kindling.models.closed_form import closed_form_of
from kindling.steps.choice import choose_step
from kindling.system.errors import InputError
from kindling.training.grouping import why_alone


@pytest.mark.parametrize(("key", "value"), NOT_COVERED)
def test_a_setting_that_is_not_covered_is_refused_with_closed_form(
    key: str, value: str | bool
) -> None:
    setting = f"{key}={str(value).lower()}"
    config = compose(setting, "trainer.gradient_clip_val=1")
    assert not_covered(config.read) == {setting: NOT_COVERED[key, value]}
    assert choose_step([config], [construct_model(config.model, (4,), 3)]).kind == "autograd"
    assert why_alone(config) == f"{setting}: a stack {NOT_COVERED[key, value]}"
    with pytest.raises(InputError) as caught:
        compose(setting, "trainer.gradient_clip_val=1", "trainer.step=closed_form")
    assert f"{NOT_COVERED[key, value]}, and does not go with {setting}" in str(caught.value)


def test_sections_and_models_agree_on_who_has_a_closed_form() -> None:
    names = [section.model_fields["name"].annotation for section in get_args(schema.Model)]
    assert {name for (name,) in map(get_args, names)} == set(options("model"))
    for name in options("model"):
        if name == "own":  # a class of the program
            continue
        config = compose(f"model={name}")
        found = closed_form_of(construct_model(config.model, (1, 8, 8), 3))
        assert (found is not None) == (not not_covered(config.read))


@pytest.mark.parametrize(
    ("setting", "needed"),
    [
        ("optimizer=adam", []),
        ("trainer.precision=64", []),
        ("trainer.step=autograd", ["torch._dynamo"]),
        ("trainer.precision=bf16-mixed", ["torch._dynamo"]),
        ("trainer.accelerator=cuda", ["torch._dynamo"]),
        ("model=cnn", ["torch._dynamo"]),
    ],
)
def test_ranks_of_the_engine_import_no_compiler(setting: str, needed: list[str]) -> None:
    assert needed_by_ranks(compose(setting).read) == needed


def test_ranks_may_train_on_a_gpu_where_its_driver_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for driver, needed in ((tmp_path, ["torch._dynamo"]), (tmp_path / "none", [])):
        monkeypatch.setattr("kindling.config.closed_form.NVIDIA", driver)
        assert needed_by_ranks(compose("trainer.accelerator=auto").read) == needed
        assert needed_by_ranks(compose("trainer.accelerator=cpu").read) == []
