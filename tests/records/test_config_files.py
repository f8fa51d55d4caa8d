"""The files in .hydra/ of a run folder: whole at every instant, and written by one module."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from kindling.config import faults
from kindling.config.compose import Composer, compose
from kindling.config.faults import options, read_config
from kindling.config.schema import GROUPS
from kindling.records.config_files import (
    claim,
    create_run_folder,
    hydra_yaml,
    job_files,
    new_files,
    require_same,
)
from kindling.records.folder import Run
from kindling.system.errors import InputError
from kindling.system.files import write_first
from tests.helpers.commands import SMALL
from tests.helpers.kills import Killed, die_at_sync

OWN = "hydra:\n  job:\n    num: 3\n"


def test_a_folder_with_a_configuration_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at any sync, of a file or of its folder; the next process begins the folder anew."""
    expected = {"config.yaml": "a: 1\n", "overrides.yaml": "- a=1\n", "hydra.yaml": OWN}
    for number in itertools.count():
        run = Run(tmp_path / str(number))
        killed = False
        with monkeypatch.context() as patch:
            die_at_sync(patch, number)
            try:
                write_first(new_files(run, {"a": 1}, ["a=1"], OWN))
            except Killed:
                killed = True
        names = {path.name for path in run.folder.rglob("*.yaml")}
        assert names == set(expected) if "config.yaml" in names else names < set(expected)
        write_first(new_files(run, {"a": 1}, ["a=1"], OWN))
        for name, text in expected.items():
            assert (run.config_file.parent / name).read_text() == text
        if not killed:
            break
    # The parents of both new folders, three files, and their folder before the last one and after.
    assert number == 7


def test_a_folder_is_claimed_by_one_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, config = Run(tmp_path), compose(*SMALL)
    assert claim(run, config, pytest.fail) == config == run.config
    more = compose(*SMALL, "trainer.max_epochs=3")
    with monkeypatch.context() as patch:
        die_at_sync(patch, 0)
        with pytest.raises(Killed):
            claim(run, more, pytest.fail)
    assert run.config == config
    assert claim(run, more, pytest.fail) == more == run.config
    before = run.config_file.stat().st_mtime_ns
    claim(run, compose(*SMALL, "trainer.max_epochs=3", "resume=auto"), pytest.fail)
    assert run.config_file.stat().st_mtime_ns == before
    with pytest.raises(InputError, match=r"or another folder\n  trainer.max_epochs: it was 3, now"):
        claim(run, config, pytest.fail)


def test_long_values_that_differ_are_shortened() -> None:
    with pytest.raises(InputError) as caught:
        require_same({"a": ["x"] * 500, "b": 1}, {"a": ["y"] * 500, "b": 2}, "no")
    whole = f"[{','.join('x' * 500)}]"
    told = f"{whole[:80]}…, now {whole.replace('x', 'y')[:80]}…"
    assert str(caught.value) == f"no\n  a: it was {told}\n  b: it was 1, now 2"


def test_a_batch_size_is_decided_once(tmp_path: Path) -> None:
    run, config = Run(tmp_path), compose(*SMALL, "data.batch_size=auto")
    assert claim(run, config, lambda: 24).data.batch == 24
    assert claim(run, config, pytest.fail).data.batch == run.config.data.batch == 24


def test_the_command_of_a_run_made_from_python(tmp_path: Path) -> None:
    """And of the same run with more epochs, also if its folder has no overrides, as older ones."""
    typed = ["data=digits", "model.hidden_sizes=[64]"]
    run, config = Run(tmp_path), compose(*typed, "name=small")
    claim(run, config, pytest.fail)
    assert run.overrides == {"data": "digits", "model.hidden_sizes": "[64]"}
    assert run.command == "python -m src.train data=digits 'model.hidden_sizes=[64]'"
    for epochs in (12, 13):
        more = compose(*typed, "name=small", f"trainer.max_epochs={epochs}")
        claim(run, more, pytest.fail)
        assert run.overrides["trainer.max_epochs"] == str(epochs)
        assert compose(*run.override_texts()) == run.config.unlabelled() == more.unlabelled()
        run.overrides_file.unlink()


def test_the_command_of_a_run_with_more_epochs_keeps_what_was_typed(tmp_path: Path) -> None:
    run, typed = Run(tmp_path), ["data=digits", "trainer.max_epochs=10", "name=wide"]
    create_run_folder(run, compose(*typed).to_primitives(), typed)
    claim(run, compose("data=digits", "trainer.max_epochs=12", "name=wide"), pytest.fail)
    assert run.override_texts() == ["data=digits", "name=wide", "trainer.max_epochs=12"]
    assert run.command == "python -m src.train data=digits trainer.max_epochs=12"


def test_strange_bytes_in_a_path_are_written(tmp_path: Path) -> None:
    run = Run(tmp_path)
    create_run_folder(run, {"a": "\udcff é"}, ["dir=\udcff"])
    assert run.config_file.read_text().startswith("a: ")


@pytest.mark.slow
def test_the_texts_of_configurations_are_omegaconfs(tmp_path: Path) -> None:
    """Byte for byte, for every choice of every group; kept sections are not mixed up."""
    composer = Composer(None)
    strange = [
        "1e3", "null", "yes", "y", "N", "nan", "0x1", "1_0", "٣", "a: b", "é\u2028☃", " x ", " 1 ",
        "- y", "#", "a\nb\n", "x" * 200, "'", "${seed}", "~",
    ]  # fmt: skip
    configs: list[dict[str, Any]] = [
        {"hydra": composer.section([text], 0), **composer.values([text])}
        for text in (f"{group}={choice}" for group in GROUPS for choice in options(group))
    ]
    configs.append({"a": strange, "b": {}, "c": [], "d": [[1], {"e": None}], "f": 1e-07})
    for values in configs:
        assert hydra_yaml(values) == OmegaConf.to_yaml(OmegaConf.create(values))


def test_a_remembered_configuration_is_that_of_the_file(tmp_path: Path) -> None:
    """Also where the values are normalised; never that of other values."""
    composer = Composer(None)
    points = [
        "seed=7", "trainer.precision=64", "model.hidden_sizes=8", "data=toy", "optimizer=adam",
    ]  # fmt: skip
    for number, text in enumerate(points):
        values, section = composer.values([text]), composer.section([text], number)
        other = compose("seed=8")
        for folder, known in (("true", compose(text)), ("false", other)):
            write_first(job_files(tmp_path / folder / str(number), values, section, known))
            file = Run(tmp_path / folder / str(number)).config_file
            assert (file.read_bytes() in faults._READ) == (folder == "true")
            remembered = read_config(file)
            faults._READ.clear()
            assert remembered == read_config(file) == compose(text)
            faults._READ.clear()
