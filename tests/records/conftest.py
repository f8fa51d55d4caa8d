"""A finished run, and its bundle."""

from pathlib import Path

import pytest

from kindling.config.compose import compose
from kindling.records.bundle import write_bundle
from kindling.records.folder import Run
from kindling.training.fit import fit
from tests.helpers.bundles import RECIPE


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fit(compose(*RECIPE), tmp_path_factory.mktemp("original") / "run")


@pytest.fixture
def bundle(original: Run, tmp_path: Path) -> Path:
    write_bundle([original.folder], tmp_path / "run.zip")
    return tmp_path / "run.zip"
