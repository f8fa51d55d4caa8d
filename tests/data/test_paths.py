"""Faults of data.root and data.path that are told before torch is imported."""

from pathlib import Path

import pytest

from kindling.data.paths import path_faults
from kindling.sweeps.command_line import check_command_line
from kindling.system.errors import InputError
from tests.helpers.data_files import write_pictures


def test_faults_that_are_found_before_torch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,kind\n1,x\n")
    write_pictures(tmp_path / "one", {"a": 1})

    def told(*argv: str) -> str:
        with pytest.raises(InputError) as caught:
            check_command_line(argv)
        return str(caught.value)

    assert "data.path: has no default; type data.path=PATH" in told("data=npz")
    both = told("data=npz", f"data.path={tmp_path}/none.npz", "optimizer.lr=-1")
    assert "optimizer.lr=-1" in both
    assert "none.npz: there is no such file" in both
    both = told("data=csv", f"data.path={tmp_path}/none.csv")
    assert "data.target: has no default" in both
    assert "none.csv: there is no such file" in both
    assert "there is no such file or folder" in told("data=npz", f"data.path={tmp_path}/none")
    dropped = told("data=csv", f"data.path={tmp_path}/t.csv", "data.drop=[b,c]", "data.target=kin")
    for answer in ("data.drop=b: there", "data.drop=c: there", "did you mean kind"):
        assert answer in dropped
    assert "did you mean kind" in told("data=csv", f"data.path={tmp_path}/t.csv", "data.target=kin")
    table = ("data=csv", f"data.path={tmp_path}/t.csv", "data.target=kind")
    assert "data.group=who: there is no such column; it has a, kind" in told(
        *table, "data.group=who"
    )
    assert "is a file" in told("data=image_folder", f"data.path={tmp_path}/t.csv")
    assert "is a folder; name a file" in told("data=npz", f"data.path={tmp_path}")
    assert "only the folder a" in told("data=image_folder", f"data.path={tmp_path}/one")


def test_a_table_for_validation_is_looked_at_before_training(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,kind\n1,x\n")
    given = {"name": "csv", "path": str(tmp_path / "t.csv"), "target": "kind"}
    given["val_path"] = str(tmp_path / "v.csv")
    assert path_faults(given) == [
        f"data.val_path={tmp_path}/v.csv: there is no such file; name a .csv file"
    ]
    (tmp_path / "v.csv").write_text("a,sort\n1,x\n")
    (fault,) = path_faults(given)
    assert fault.startswith(f"{tmp_path}/v.csv: data.target=kind: there is no such column")
    (tmp_path / "v.csv").write_text("kind,a\n1,x\n")
    assert path_faults(given) == []
