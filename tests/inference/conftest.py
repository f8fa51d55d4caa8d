"""A run on the digits, and its export in every format."""

from pathlib import Path

import pytest

from src.config.compose import compose
from src.inference.exporters import export
from src.inference.formats import FORMATS, FormatName, plan
from src.runs.folder import Run
from src.training.fit import fit
from tests.helpers.commands import SMALL


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that tests must not change."""
    return fit(compose(*SMALL, "model.dropout=0.1"), tmp_path_factory.mktemp("export") / "run")


@pytest.fixture(scope="session")
def files(run: Run, tmp_path_factory: pytest.TempPathFactory) -> dict[FormatName, Path]:
    """The run's model in every format."""
    folder = tmp_path_factory.mktemp("files")
    paths = {name: folder / f"m{FORMATS[name].suffix}" for name in FORMATS}
    for name, path in paths.items():
        export(plan(run.folder, name, path, force=False))
    return paths
