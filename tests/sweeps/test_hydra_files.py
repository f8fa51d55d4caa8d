"""Hydra's files are whole at every instant."""

from pathlib import Path

import hydra.core.utils
import pytest
from hydra._internal.callbacks import Callbacks
from hydra._internal.core_plugins import basic_sweeper
from hydra.types import HydraContext, RunMode
from omegaconf import OmegaConf

from src import train
from src.config import faults
from src.config.compose import Composer, compose, plain_parts
from src.config.faults import options, read_config
from src.config.schema import GROUPS
from src.runs.folder import Run
from src.sweeps import hydra_files, run_command
from src.sweeps.hydra_files import _validate, begin_job, job_files
from src.system.files import write_into_folder
from tests.helpers.commands import SMALL
from tests.helpers.kills import Killed, die_at_sync


def test_what_hydra_writes_is_whole_at_every_instant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before the new file is synced, the old one is as it was."""
    monkeypatch.setattr(hydra.core.utils, "_save_config", hydra.core.utils._save_config)
    monkeypatch.setattr(basic_sweeper, "OmegaConf", basic_sweeper.OmegaConf)  # type: ignore[attr-defined]
    monkeypatch.setattr(
        basic_sweeper.BasicSweeper,
        "validate_batch_is_legal",
        basic_sweeper.BasicSweeper.validate_batch_is_legal,
    )
    monkeypatch.setattr(run_command, "run_and_report", lambda _: None)
    monkeypatch.setattr("sys.argv", ["train", *SMALL])
    train.main()
    assert hydra.core.utils._save_config is hydra_files._save_config
    file = tmp_path / "multirun.yaml"

    def write(value: int) -> None:
        basic_sweeper.OmegaConf.save(OmegaConf.create({"a": value}), file)  # type: ignore[attr-defined]

    write(1)
    with monkeypatch.context() as patch:
        die_at_sync(patch, 0)
        with pytest.raises(Killed):
            write(2)
    assert file.read_text() == "a: 1\n"
    write(3)
    assert file.read_text() == "a: 3\n"


def test_the_texts_of_configurations_are_omegaconfs(tmp_path: Path) -> None:
    """Byte for byte, for every choice of every group; kept sections are not mixed up."""
    composer = Composer(None)
    strange = [
        "1e3",
        "null",
        "yes",
        "a: b",
        "é\u2028☃",
        " x ",
        "- y",
        "#",
        "a\nb\n",
        "x" * 200,
        "'",
    ]
    jobs = [
        plain_parts(composer.load_configuration("train", [f"{group}={choice}"], RunMode.RUN))
        for group in GROUPS
        for choice in options(group)
    ]
    jobs += [({"a": strange, "b": {}, "c": [], "d": [[1], {"e": None}], "f": 1e-07}, jobs[0][1])]
    for number, (values, section) in enumerate(jobs):
        begin_job(tmp_path / str(number), values, section)
        written = {
            path.stem: path.read_text("utf-8")
            for path in (tmp_path / str(number) / ".hydra").iterdir()
        }
        for name, given in {
            "config": values, "hydra": {"hydra": section}, "overrides": section["overrides"]["task"]
        }.items():  # fmt: skip
            assert written[name] == OmegaConf.to_yaml(OmegaConf.create(given)), (number, name)


def test_checked_jobs_are_not_composed_to_validate_them(monkeypatch: pytest.MonkeyPatch) -> None:
    composer, validated = Composer(None), []
    composer.remember([["seed=1"]], [compose("seed=1")])
    monkeypatch.setattr(
        composer, "load_sweep_config", lambda **given: validated.append(given["sweep_overrides"])
    )
    sweeper = basic_sweeper.BasicSweeper(None)
    sweeper.config = OmegaConf.create()
    sweeper.hydra_context = HydraContext(composer, Callbacks())
    _validate(sweeper, [["seed=1"], ["seed=2"], ["seed=1", "hydra.sweep.dir=x"]])
    assert validated == [["seed=2"]]


def test_a_remembered_configuration_is_that_of_the_file(tmp_path: Path) -> None:
    """Also where the values are normalised; never that of other values."""
    points = [
        "seed=7",
        "trainer.precision=64",
        "model.hidden_sizes=8",
        "data=toy",
        "optimizer=adam",
    ]
    for number, text in enumerate(points):
        composed = Composer(None).load_configuration("train", [text], RunMode.RUN)
        values, section = plain_parts(composed)
        other = compose("seed=8")
        for folder, known in (("true", compose(text)), ("false", other)):
            write_into_folder(job_files(tmp_path / folder / str(number), values, section, known))
            file = Run(tmp_path / folder / str(number)).config_file
            assert (file.read_bytes() in faults._READ) == (folder == "true")
            remembered = read_config(file)
            faults._READ.clear()
            assert remembered == read_config(file) == compose(text)
            faults._READ.clear()
