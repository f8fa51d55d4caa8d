"""The help of keys: what the help allows, the schema takes, and what it does not, is refused."""

import re

import pytest

from kindling.config.allowed import allowed_values, describe_keys, search_keys
from kindling.config.compose import compose
from kindling.config.faults import find_faults, known_keys, options
from kindling.config.schema import GROUPS, Config, FusedLauncher, Search
from kindling.config.written import flat
from tests.helpers.faults import faults

REQUIRED = {
    "data=csv": ("data.path=x", "data.target=x"),
    "data=image_folder": ("data.path=x",),
    "data=npz": ("data.path=x",),
    "task=regression": ("data=diabetes",),
    "task=multilabel": ("data=csv", "data.path=x", "data.target=x"),
}


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("seed", "0 to 4,294,967,295"),
        ("optimizer.lr", "above 0"),
        ("optimizer.momentum", "0 to below 1"),
        ("data.val_fraction", "above 0 to below 1, null"),
        ("data.batch_size", "1 or more, auto"),
        ("data.fold", "0 to 999, null"),
        ("data.channels", "1, 3"),
        ("data.group", "1 to 16, null, a text"),  # of pictures a level, of tables a column
        ("augmentation.rotate", "0 to 180"),
        ("scheduler.gamma", "above 0 to 10"),
        ("model.hidden_sizes", "a list: 1 or more"),
        ("model.dropout", "0 to below 1, a list: 0 to below 1"),
        ("model.norm", "batch, layer, null"),
        ("trainer.precision", "32, 64, bf16-mixed, 16-mixed"),
        ("trainer.progress_bar", "true, false, auto"),
        ("checkpoint.keep", "all, best, 1 or more"),
        ("trainer.max_time", "a text such as DD:HH:MM:SS, null"),
        ("name", "a text, null"),
    ],
)
def test_the_allowed_values_in_words(key: str, text: str) -> None:
    assert allowed_values(Config)[key].text == text


def test_every_key_has_its_values() -> None:
    assert set(allowed_values(Config)) == known_keys()
    assert set(allowed_values(Search, "search.")) == {f"search.{k}" for k in Search.model_fields}
    launcher = allowed_values(FusedLauncher, "hydra.launcher.")
    assert launcher["hydra.launcher.halving"].text == "2 to 10,000, null"


@pytest.mark.parametrize(
    ("within", "beyond"),
    [
        ("optimizer.momentum=0", "optimizer.momentum=1"),
        ("trainer.label_smoothing=0.99", "trainer.label_smoothing=-0.01"),
        ("trainer.max_epochs=1000000", "trainer.max_epochs=1000001"),
        ("seed=4294967295", "seed=4294967296"),
        ("scheduler.gamma=10", "scheduler.gamma=10.1"),
        ("augmentation.rotate=180", "augmentation.rotate=180.5"),
    ],
)
def test_the_ends_of_the_ranges(within: str, beyond: str) -> None:
    assert compose("data=mnist", within)
    assert beyond in faults(beyond)


def test_each_listed_value_is_taken() -> None:
    """As far as it depends on its key alone."""
    for key in ("trainer.step", "trainer.accelerator", "model.norm", "model.activation"):
        for value in allowed_values(Config)[key].listed:
            if (key, value) == ("trainer.step", "lightning"):  # depends on the model
                continue
            _, found = find_faults(compose(f"{key}={value}").to_primitives())
            assert found == []


def test_the_help_of_a_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1000")  # a line per key
    values = compose("data=synthetic", "model.hidden_sizes=[3,4]").to_primitives()
    shown = describe_keys(values)
    for group in GROUPS:
        assert re.search(rf"^  {group}= +{', '.join(options(group))}$", shown, re.MULTILINE)
    assert "_common" not in shown
    assert re.search(
        r"^  model.hidden_sizes=\[3,4\] +a list: 1 or more +units of", shown, re.MULTILINE
    )
    for key, text in flat(values):
        if not key.endswith(".name"):
            assert f"  {key}={text}  " in shown
    assert re.search(r"^  hydra.launcher.executor= +local, slurm, ray, null$", shown, re.MULTILINE)


@pytest.mark.parametrize(
    "choice", [f"{group}={name}" for group in GROUPS[:-1] for name in options(group)]
)
def test_each_key_has_a_meaning(choice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comment of the file that has the key."""
    monkeypatch.setenv("COLUMNS", "1000")  # a line per key
    values = compose(choice, *REQUIRED.get(choice, ())).to_primitives()
    shown = describe_keys(values).partition("keys of hydra")[0]
    rows = [re.split(" {2,}", line.strip()) for line in shown.splitlines() if "." in line]
    assert len(rows) > 30
    for row in rows[1:]:
        assert [len(row), len(row[-1]) > 9] == [3, True], row


def test_the_help_is_as_wide_as_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    values = compose("data=synthetic").to_primitives()
    monkeypatch.setenv("COLUMNS", "90")
    narrow = describe_keys(values)
    assert max(map(len, narrow.splitlines())) <= 90
    assert re.search(r"^  seed=0 {32}0 to [0-9,]+  random seed of initial\n {60}w", narrow, re.M)
    monkeypatch.setenv("COLUMNS", "20")  # too narrow for keys: they are not cut
    assert "  trainer.early_stopping_patience=null  1 or" in describe_keys(values)


def test_the_help_of_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    lines = search_keys().splitlines()
    assert len(lines) == len(Search.model_fields)
    assert re.fullmatch(r"  search.sampler=tpe +tpe, random +tpe: learns from .*", lines[2])
