"""The reach of the closed form: one table, told by the configuration and followed by the steps."""

from typing import get_args

import pytest

from kindling.config import registry, schema
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
        ("trainer.step=autograd", []),
        ("model=cnn", []),
        ("trainer.strategy=fsdp", ["torch._dynamo"]),
    ],
)
def test_ranks_import_the_compiler_for_shards_alone(setting: str, needed: list[str]) -> None:
    assert needed_by_ranks(compose(setting, "trainer.accelerator=cpu").read) == needed


def test_ranks_of_a_lightning_module_import_the_compiler() -> None:
    """Torch's wrapper, which hands out its gradients, imports it."""
    own = {"model.name": "own", "trainer.strategy": "ddp"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "LIGHTNING", {"model=own": None})
        assert needed_by_ranks(own.get) == ["torch._dynamo"]
