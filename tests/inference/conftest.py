"""A run on the digits, and its export in every format."""

from pathlib import Path

import pytest

from kindling.config.compose import compose
from kindling.inference.committees.making import make_committee
from kindling.inference.committees.members import read_request
from kindling.inference.export.export import export
from kindling.inference.export.formats import FORMATS, FormatName, plan
from kindling.records.folder import Run
from kindling.training.fit import fit
from tests.helpers.commands import SMALL


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that tests must not change."""
    return fit(compose(*SMALL, "model.dropout=0.1"), tmp_path_factory.mktemp("export") / "run")


@pytest.fixture(scope="session")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of three finished trials of different kinds and precisions; tests must not change
    the trials."""
    folder = tmp_path_factory.mktemp("committee") / "sweep"
    members = (
        ["model.hidden_sizes=[8]", "optimizer.lr=0.3"],
        ["model=logistic_regression", "trainer.precision=64", "optimizer.lr=0.1"],
        ["model.hidden_sizes=[16]", "model.activation=tanh", "optimizer.lr=0.3", "seed=5"],
    )
    for number, overrides in enumerate(members):
        fit(compose(*SMALL, "trainer.max_epochs=5", *overrides), folder / str(number))
    (folder / "multirun.yaml").write_text("{}\n")
    return folder


@pytest.fixture(scope="session")
def committee(sweep: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The committee of the sweep, which tests must not change."""
    folder = tmp_path_factory.mktemp("made") / "committee"
    return make_committee(read_request([sweep], best=3, folder=folder))


@pytest.fixture(scope="session")
def files(run: Run, tmp_path_factory: pytest.TempPathFactory) -> dict[FormatName, Path]:
    """The run's model in every format."""
    folder = tmp_path_factory.mktemp("files")
    paths = {name: folder / f"m{FORMATS[name].suffix}" for name in FORMATS}
    for name, path in paths.items():
        export(plan(run.folder, name, path, force=False))
    return paths
