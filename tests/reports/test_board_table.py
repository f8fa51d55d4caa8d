"""The rows of the board are those of `runs`, and only changed folders are read again."""

import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from kindling.records.folder import Run
from kindling.records.labels import write_labels
from kindling.records.listing import Entry, entries, read_entry, select, sort
from kindling.records.lookup import units
from kindling.reports import board_table
from kindling.reports.board_table import BoardTable, read_table
from kindling.system.errors import InputError
from tests.helpers.fakes import fake_run, fake_runs, fake_sweep


@pytest.fixture
def place(tmp_path: Path, finished: Run, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twelve runs and two sweeps; the current folder."""
    monkeypatch.chdir(tmp_path)
    assert len([*fake_runs(Path(), finished, 12)]) == 12
    for number in range(2):
        fake_sweep(Path("sweeps", "2026-03-02", f"10-00-0{number}"), finished, ("0.1", "0.3"))
    return tmp_path


def read(known: BoardTable | None = None) -> BoardTable:
    return read_table(units([Path()]), known)


def listed(
    table: BoardTable, where: str = "", key: str = "began", since: int = 0
) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(table.listed(where, key, [], since))
    return found


def folders(table: BoardTable, where: str = "", key: str = "began") -> list[str]:
    names = {row.number: name for name, row in table.rows.items()}
    return [names[number] for number in listed(table, where, key)["order"]]


@pytest.mark.parametrize(
    ("where", "key"),
    [
        ("", "began"), ("", "best"), ("", "optimizer.lr"), ("best>90", "seconds"),
        ("optimizer.lr=0.1", "best"), ("optimizer.lr>=0.03 kind=run", "test"),
        ("tag=first", "name"), ("kind!=run", "trials"),
        ("'folder=runs/2026-03-01/00-03-00'", "data"),
        ("val/loss<0.5", "val/loss"), ("model.dropout=0", "began"), ("status=failed", "best"),
    ],
)  # fmt: skip
def test_rows_are_those_of_the_list(place: Path, where: str, key: str) -> None:
    conditions = [text.strip("'") for text in where.split()]
    expected = sort([*select(entries([Path()]), conditions)], key)
    assert folders(read(), where, key) == [os.fspath(entry.folder) for entry in expected]


def test_the_cells_of_a_row(place: Path) -> None:
    run = Run(Path("runs/2026-03-01/00-00-00"))
    write_labels(run.folder, "named", ["a"], ["mnist", "first"], "a note\nin lines")
    found = listed(read())
    (cells,) = (row for row in found["rows"] if row["folder"] == os.fspath(run.folder))
    result: Any = run.result
    best = result["best"]
    assert cells == {
        "number": 0, "folder": os.fspath(run.folder), "name": "named", "tag": ["a"],
        "note": "a note\nin lines", "kind": "run", "data": "digits", "status": "finished",
        "began": "2026-03-01 00:00", "monitor": "val/acc", "fraction": True,
        "best": best["val/acc"], "test": result["test/acc"], "score": True,
        "seconds": sum(result["seconds"].values()), "trials": None, "fault": "",
        "metrics": {
            name: [best[name], name.endswith("acc")] for name in sorted(best) if name != "epoch"
        },
        "values": [run.overrides[key] for key in found["keys"]],
    }  # fmt: skip
    assert found["first"] == found["keys"] == ["optimizer.lr", "model.hidden_sizes", "seed"]
    (swept, _) = (row for row in found["rows"] if row["kind"] == "sweep")
    assert (swept["trials"], swept["values"]) == (6, ["0.1,0.3", "[32]", "0,1,2"])
    means = [
        sum(Run(Path(swept["folder"], str(trial))).result["best"]["val/acc"] or 0 for trial in some)
        for some in ((0, 1, 2), (3, 4, 5))
    ]
    assert swept["best"] == pytest.approx(max(means) / 3)


@pytest.mark.parametrize(
    ("where", "key", "told"),
    [
        ("bst>1", "began", "bst>1: unknown key; did you mean best?"),
        ("best", "began", "best: must be KEY=VALUE"),
        ("best>good", "began", "best>good: > needs a number, not good"),
        ("'best>1", "began", "'best>1: cannot be read (No closing quotation)"),
        ("", "optimizer.l", "--sort optimizer.l: unknown key; did you mean optimizer.lr?"),
    ],
)
def test_a_wrong_condition_is_told_as_by_the_command_without_its_option(
    place: Path, where: str, key: str, told: str
) -> None:
    with pytest.raises(InputError) as stopped:
        read().listed(where, key, [], 0)
    assert str(stopped.value).startswith(told)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders that are read, in their order."""
    found: list[str] = []

    def noted(folder: Path) -> Entry:
        found.append(os.fspath(folder))
        return read_entry(folder)

    monkeypatch.setattr(board_table, "read_entry", noted)
    return found


def test_only_what_has_changed_is_read_again(place: Path, reads: list[str]) -> None:
    first = read()
    assert len(reads) == len(first.rows) == 14
    reads.clear()
    again = read(first)
    assert (reads, again.version, again.rows) == ([], first.version, first.rows)
    changed, swept = "runs/2026-03-01/00-05-00", "sweeps/2026-03-02/10-00-01"
    # As rsync does: another file with the time of the old one.
    file, time = Run(Path(changed)).result_file, Run(Path(changed)).result_file.stat().st_mtime_ns
    copy = file.with_name(".copy")
    copy.write_text(file.read_text().replace("finished", "diverged"))
    os.utime(copy, ns=(time, time))
    copy.rename(file)
    write_labels(Path(swept), "renamed")
    third = read(again)
    assert sorted(reads) == [changed, swept]
    assert third.version > first.version
    found = listed(third, since=first.version)
    assert {row["folder"]: (row["status"], row["name"]) for row in found["rows"]} == {
        changed: ("diverged", None), swept: ("finished", "renamed"),
    }  # fmt: skip
    assert listed(third, since=third.version)["rows"] == []
    assert [row.number for row in third.rows.values()] == [r.number for r in first.rows.values()]


def test_folders_come_and_go(place: Path, finished: Run) -> None:
    first = read()
    shutil.rmtree("runs/2026-03-01/00-05-00")
    fake_run(Path("cluster/some/run"), finished, {"seed": "77"}, 0.01)
    second = read(first)
    assert second.rows.keys() - first.rows.keys() == {"cluster/some/run"}
    assert first.rows.keys() - second.rows.keys() == {"runs/2026-03-01/00-05-00"}
    assert second.rows["cluster/some/run"].number == 14
    assert [row["folder"] for row in listed(second, since=first.version)["rows"]] == [
        "cluster/some/run"
    ]
    assert second.version > first.version


def test_a_trial_that_ends_changes_the_row_of_its_sweep(place: Path, finished: Run) -> None:
    sweep = Path("sweeps/2026-03-02/10-00-00")
    run = fake_run(sweep / "6", finished, {"optimizer.lr": "0.1", "seed": "3"}, -0.2)
    result = run.result_file.read_text()
    run.result_file.unlink()
    first = read()
    assert first.rows[os.fspath(sweep)].entry.status == "unfinished, 6 of 7 ended"
    run.result_file.write_text(result)
    second = read(first)
    assert second.rows[os.fspath(sweep)].entry.status == "finished"


def test_a_lock_shows_that_a_run_trains(place: Path, reads: list[str]) -> None:
    run = Run(Path("runs/2026-03-01/00-03-00"))
    run.result_file.unlink()
    name = os.fspath(run.folder)
    first = read()
    assert first.rows[name].entry.status == "unfinished"
    with (run.folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = read(first)
        assert second.rows[name].entry.status == "running"
        rows = [{**run.history[-1], "epoch": 3, "val/acc": 0.999}]
        run.append_history(rows)
        third = read(second)
        assert third.rows[name].entry.best == 0.999
    assert read(third).rows[name].entry.status == "unfinished"


@pytest.mark.parametrize(
    "name", ["history.csv", "result.json", "labels.json", ".hydra", ".hydra/overrides.yaml"]
)
def test_a_link_is_a_fault(
    place: Path, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    folder = Path("runs/2026-03-01/00-03-00")
    (folder / "labels.json").write_text("{}")
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "secret"
    (folder / name).rename(elsewhere)
    (folder / name).symlink_to(elsewhere)
    entry = read().rows[os.fspath(folder)].entry
    assert entry.fault == f"{folder / name}: is a link, which the board does not follow"
    assert (entry.best, entry.typed, entry.config) == (None, {}, {})


def test_a_trial_behind_a_link_is_a_fault_of_its_sweep(place: Path) -> None:
    sweep = Path("sweeps/2026-03-02/10-00-00")
    (sweep / "6").symlink_to(place / "runs/2026-03-01/00-03-00")
    entry = read().rows[os.fspath(sweep)].entry
    assert entry.fault == f"{sweep}/6: is a link, which the board does not follow"
    assert entry.trials is None


def test_a_damaged_folder_is_a_row_and_may_be_mended(place: Path) -> None:
    run = Run(Path("runs/2026-03-01/00-03-00"))
    text = run.result_file.read_text()
    run.result_file.write_text("{")
    first = read()
    row = first.rows[os.fspath(run.folder)]
    assert (row.entry.status, row.entry.best) == ("damaged", None)
    assert "is not the result of a run" in row.entry.fault
    run.result_file.write_text(text)
    assert read(first).rows[os.fspath(run.folder)].entry.status == "finished"


def test_figures_of_the_test_set_are_not_beside_trials(place: Path) -> None:
    sweep = Path("sweeps/2026-03-02/10-00-00")
    trials = read_table([sweep / str(number) for number in range(6)], None, of_trials=True)
    found = listed(trials)
    assert not found["whole"]
    assert all("test" not in row for row in found["rows"])
    assert all(not name.startswith("test") for row in found["rows"] for name in row["metrics"])
    assert all(row.entry.test is None for row in trials.rows.values())
    for where, key in (("test>0", "best"), ("'test>=50%'", "best"), ("", "test")):
        with pytest.raises(InputError, match="the test set is for the setting that was chosen"):
            trials.listed(where, key, [], 0)


def test_a_number_that_no_json_can_hold(place: Path) -> None:
    """A hostile result may have numbers whose sum is infinite."""
    run = Run(Path("runs/2026-03-01/00-03-00"))
    result = json.loads(run.result_file.read_text())
    result["seconds"] = {"fit": 1e308, "test": 1e308}
    result["best"]["val/loss"] = 1.7e308
    run.result_file.write_text(json.dumps(result))
    text = read().listed("", "began", [], 0)
    assert b"Infinity" not in text
    assert b"NaN" not in text
    (row,) = (row for row in json.loads(text)["rows"] if row["folder"] == os.fspath(run.folder))
    assert row["seconds"] is None
    assert row["metrics"].get("val/loss", [None])[0] is None


def test_a_time_beyond_the_calendar(place: Path) -> None:
    for file in Path(shutil.move("runs/2026-03-01/00-03-00", "strange")).rglob("*"):
        os.utime(file, (10**12, 10**12))
    (row,) = (row for row in listed(read())["rows"] if row["folder"] == "strange")
    assert row["status"] == "finished"
