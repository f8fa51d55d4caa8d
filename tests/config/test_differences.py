"""The overrides of a configuration make this configuration again."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kindling.config.compose import changed_overrides, compose, overrides_of
from kindling.config.faults import options
from kindling.config.overrides import override_text
from kindling.config.schema import Config

SMALL = st.floats(1e-9, 0.9)
# Any text but Hydra's own signs: an interpolation, and a missing value.
TEXTS = st.text(min_size=1).filter(lambda text: "${" not in text and text != "???")


def require_round_trip(config: Config) -> None:
    assert compose(*overrides_of(config)) == config.unlabelled()


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ([], []),
        (["data=mnist"], ["data=mnist"]),
        (["model.hidden_sizes=64", "name=small"], ["model.hidden_sizes=[64]"]),
        (["model=cnn", "model.dropout=0.1"], ["model=cnn", "model.dropout=0.1"]),
        (["augmentation=digits", "seed=3"], ["augmentation=digits", "seed=3"]),
        (["augmentation.shift=2.0"], ["augmentation.shift=2.0"]),  # no choice is nearer
        (["trainer.precision=64", "tags=[a]"], ["trainer.precision=64"]),
        # data=csv brings an optimizer and a scheduler of its own.
        (
            ["data=csv", "data.path='a b,c.csv'", "data.target='1'", "optimizer=sgd"],
            ["data=csv", "optimizer=sgd", "data.path='a b,c.csv'", "data.target='1'"],
        ),
    ],
)
def test_only_differences_are_named(typed: list[str], expected: list[str]) -> None:
    config = compose(*typed)
    assert overrides_of(config) == expected
    require_round_trip(config)


@pytest.mark.parametrize("name", options("experiment"))
def test_every_experiment_is_made_again(name: str) -> None:
    require_round_trip(compose(f"experiment={name}"))


@st.composite
def configurations(draw: Any) -> Config:
    """Configurations with random choices of groups and random values of all kinds."""
    choices = {
        "data": ["mnist_or_digits", "csv"],
        "augmentation": ["none", "digits"],
        "optimizer": ["sgd", "adamw"],
    }
    typed = [f"{group}={draw(st.sampled_from(names))}" for group, names in choices.items()]
    values: dict[str, Any] = {}
    if "data=csv" in typed:
        values |= {"data.path": draw(TEXTS), "data.target": draw(TEXTS)}
        others = TEXTS.filter(lambda text: text != values["data.target"])
        values["data.drop"] = draw(st.lists(others, max_size=2))
    kinds: dict[str, st.SearchStrategy[Any]] = {
        "seed": st.integers(0, 2**32 - 1),
        "start_from": st.none() | TEXTS.filter(lambda text: text != "latest"),
        "optimizer.lr": SMALL | st.just(1),
        "model.hidden_sizes": st.lists(st.integers(1, 9), min_size=2, max_size=2),
        "model.dropout": SMALL | st.lists(SMALL, min_size=2, max_size=2),
        "model.norm": st.sampled_from([None, "batch", "layer"]),
        "augmentation.flip": st.booleans(),
        "trainer.max_epochs": st.integers(1, 9),
        "trainer.precision": st.sampled_from(["32", "64", "bf16-mixed"]),
        "data.root": st.none() | TEXTS,
    }
    for key, kind in kinds.items():
        if draw(st.booleans()):
            values[key] = draw(kind)
    if isinstance(values.get("model.dropout"), list):
        values["model.hidden_sizes"] = [3, 4]
    return compose(*typed, *(override_text(key, value) for key, value in values.items()))


@pytest.mark.slow
@settings(max_examples=15)
@given(configurations())
def test_random_configurations_are_made_again(config: Config) -> None:
    require_round_trip(config)


def test_more_epochs_change_one_override() -> None:
    """A name stays as it was typed, and so does a batch size that was decided since."""
    typed = ["data=digits", "data.batch_size=auto", "+trainer.max_epochs=2", "name=a"]
    before = compose("data=digits", "data.batch_size=auto", "trainer.max_epochs=2", "name=a")
    now = compose("data=digits", "data.batch_size=64", "trainer.max_epochs=5", "checkpoint.keep=2")
    expected = [*typed[:2], "name=a", "trainer.max_epochs=5", "checkpoint.keep=2"]
    assert changed_overrides(typed, before, now) == expected
