"""Every notebook runs from its first cell to its last, and ships with its outputs."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.helpers.commands import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Proactor event loop")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINDLING_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("HOME", str(tmp_path))  # Jupyter keeps files there
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    NotebookClient(notebook, timeout=1200, kernel_name="python3").execute(cwd=path.parent)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    pictures = [
        output for cell in cells for output in cell.outputs if "image/png" in output.get("data", {})
    ]
    assert pictures
    assert list((tmp_path / "runs").glob("**/result.json"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_with_its_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert any(cell.outputs for cell in cells)
