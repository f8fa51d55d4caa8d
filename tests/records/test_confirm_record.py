"""The record of a confirmation, also of a stranger."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from kindling.config.compose import compose
from kindling.records.confirm_record import (
    Chosen,
    Record,
    read_record,
    trials,
    value_of,
    write_record,
)
from kindling.records.folder import Result, Run
from kindling.records.lookup import find, timestamped
from kindling.records.outcome import Outcome
from kindling.system.errors import InputError
from tests.helpers.commands import SMALL
from tests.helpers.runs import ended


def record() -> Record:
    settings = [
        Chosen(
            config=compose(*SMALL, f"optimizer.lr={rate}"),
            overrides={"data": "digits", "optimizer.lr": rate},
            promised=value,
            trials=[place],
        )
        for place, (rate, value) in enumerate((("0.10", 0.9), ("1e-2", 0.8)))
    ]
    return Record(sweep="s", found=7, keys=["optimizer.lr"], seeds=[8, 9], settings=settings)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    expected = record()
    write_record(tmp_path, expected)
    found = read_record(tmp_path)
    assert found == expected
    assert found.monitor == "val/acc"
    assert [found.values(chosen) for chosen in found.settings] == [
        {"optimizer.lr": "0.10"}, {"optimizer.lr": "1e-2"},
    ]  # fmt: skip
    assert "sweep" not in found.plan


def test_a_confirmation_is_the_latest_though_the_clock_has_gone_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    swept = Path("sweeps/2100-01-01/00-00-00.000000")
    ended(swept / "0", 0.5)
    (swept / "multirun.yaml").write_text("")
    (swept / "confirm").mkdir()
    write_record(swept / "confirm", record())
    assert find("latest") == swept / "confirm"
    run = ended(timestamped("runs"), 0.5)
    assert find("latest") == run.folder


def test_trials_are_numbered_by_setting_then_seed(tmp_path: Path) -> None:
    (first, second) = trials(tmp_path, record())
    assert [trial.run.folder.name for trial in (*first, *second)] == ["0", "1", "2", "3"]
    assert [trial.config.seed for trial in (*first, *second)] == [8, 9, 8, 9]
    assert {trial.config.optimizer.lr for trial in second} == {0.01}
    assert second[1].overrides == ["data=digits", "optimizer.lr=1e-2", "seed=9"]


def folded() -> Record:
    expected = record()
    settings = [
        chosen.model_copy(
            update={
                "config": compose(*SMALL, "data.folds=2", "data.fold=1"),
                "overrides": {**chosen.overrides, "data.folds": "2"},
            }
        )
        for chosen in expected.settings
    ]
    return expected.model_copy(
        update={"settings": settings, "folds": 2, "seeds": [8, 9, 10], "keys": ["data.folds"]}
    )


def test_seeds_take_turns_on_the_folds(tmp_path: Path) -> None:
    expected = folded()
    write_record(tmp_path, expected)
    found = read_record(tmp_path)
    assert (found, found.fold_of) == (expected, [0, 1, 0])
    for of_setting in trials(tmp_path, found):
        assert [trial.config.data.fold for trial in of_setting] == [0, 1, 0]
        assert of_setting[1].overrides[-3:] == ["data.folds=2", "data.fold=1", "seed=9"]


def test_a_record_from_before_there_were_folds(tmp_path: Path) -> None:
    write_record(tmp_path, record())
    file = tmp_path / "confirm.yaml"
    values = yaml.safe_load(file.read_text())
    del values["folds"]
    file.write_text(yaml.safe_dump(values))
    assert read_record(tmp_path) == record()
    assert read_record(tmp_path).fold_of == []


@pytest.mark.parametrize(
    ("update", "reason"),
    [
        ({"folds": 3}, "a setting has data.folds=2"),
        ({"folds": 1}, "greater than or equal to 2"),
        ({"seeds": [8, 9], "folds": 3}, "it has 2 seeds for 3 folds"),
        ({"settings": record().settings}, "a setting has data.folds=None"),
        ({"settings": [folded().settings[0].model_copy(update={"overrides": {"data.fold": "1"}})]},
         "it has the override data.fold"),
    ],
)  # fmt: skip
def test_wrong_folds(update: dict[str, Any], reason: str, tmp_path: Path) -> None:
    write_record(tmp_path, folded().model_copy(update=update))
    with pytest.raises(InputError, match=reason):
        read_record(tmp_path)


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        (("seeds",), [8], "at least 2"),
        (("seeds",), [8, 8], "a seed is there twice"),
        (("seeds",), [8, -1], "greater than or equal to 0"),
        (("seeds",), list(range(1001)), "at most 1000"),
        (("settings",), [], "at least 1"),
        (("settings", 0, "promised"), float("nan"), "settings.0.promised"),
        (("settings", 0, "config", "optimizer", "lr"), -1.0, "greater than 0"),
        (("settings", 0, "config", "checkpoint", "mode"), "min", "would keep the worst val/acc"),
        (("settings", 0, "overrides", "seed"), "3", "it has the override seed"),
        (("more",), 1, "not permitted"),
    ],
)
def test_a_record_that_is_wrong(
    path: tuple[Any, ...], value: Any, reason: str, tmp_path: Path
) -> None:
    write_record(tmp_path, record())
    file = tmp_path / "confirm.yaml"
    values = inner = yaml.safe_load(file.read_text())
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    file.write_text(yaml.safe_dump(values))
    with pytest.raises(InputError) as caught:
        read_record(tmp_path)
    assert str(caught.value).startswith(f"{file}: ")
    assert reason in str(caught.value)


def test_settings_with_different_monitors(tmp_path: Path) -> None:
    expected = record()
    other = expected.settings[1].model_copy(
        update={"config": compose(*SMALL, "checkpoint.monitor=val/loss", "checkpoint.mode=min")}
    )
    changed = expected.model_copy(update={"settings": [expected.settings[0], other]})
    write_record(tmp_path, changed)
    with pytest.raises(InputError, match=r"its settings have different checkpoint\.monitor"):
        read_record(tmp_path)


def test_only_finished_trials_have_a_value() -> None:
    def trial(status: Any, value: float) -> Outcome:
        result: Result = {"status": status, "best": {"val/acc": value}, "test/acc": value / 2}
        return Outcome(Run(Path("none")), result, {}, {}, [])

    assert value_of(trial("finished", 0.5)) == 0.5
    assert value_of(trial("finished", 0.5), "test/acc") == 0.25
    for status in ("interrupted", "diverged", "failed"):
        assert value_of(trial(status, 0.5)) is None
    assert value_of(trial("finished", 1e300)) is None


@pytest.mark.parametrize("text", ["", "[]", "a: &x 1\nb: *x", "[" * 30, "\0"])
def test_a_file_that_is_no_record(text: str, tmp_path: Path) -> None:
    (tmp_path / "confirm.yaml").write_text(text)
    with pytest.raises(InputError, match=r"confirm\.yaml: "):
        read_record(tmp_path)
