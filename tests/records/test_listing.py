"""The list of runs and sweeps."""

import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest

from kindling.records.folder import SEARCH, Row, Run
from kindling.records.labels import write_labels
from kindling.records.listing import Entry, entries, listed, read_entry, select, sort, table
from kindling.records.lookup import find
from kindling.system.errors import InputError
from kindling.system.files import lock_or_fail
from tests.helpers.commands import SMALL
from tests.helpers.runs import ended
from tests.helpers.tasks import HISTORY


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def several() -> list[str]:
    """Names of runs, the newest first, in the order of the table."""
    base = "runs/2026-01-02/10-00-0"
    ended(Path(f"{base}0.0"), 0.5, "optimizer.lr=0.3", "name=first", also={"test/acc": 0.45})
    ended(Path(f"{base}1.0"), 0.9, "optimizer.lr=0.1", "tags=[wide,deep]", "name=second")
    ended(
        Path(f"{base}2.0"),
        None,
        "optimizer.lr=1",
        "name=third",
        status="failed",
        also={"error": "why\nx"},
    )
    loss = ("checkpoint.monitor=val/loss", "checkpoint.mode=min", "name=fourth")
    ended(Path(f"{base}3.0"), 0.2, *loss, also={"seconds": {"fit": 2.0, "setup": 1.0}})
    return ["fourth", "third", "second", "first"]


def names(**arguments: Any) -> list[str | None]:
    settings: dict[str, Any] = {"conditions": [], "key": "began", "most": 30, **arguments}
    found = json.loads(listed([], **settings, as_json=True))
    return [entry["name"] for entry in found]


def multirun(folder: str, *texts: str) -> Path:
    Path(folder).mkdir(parents=True, exist_ok=True)
    record = {"hydra": {"overrides": {"task": [*texts], "hydra": []}}}
    Path(folder, "multirun.yaml").write_text(json.dumps(record))
    return Path(folder)


def test_the_newest_comes_first(several: list[str]) -> None:
    assert names() == several
    rows = listed([], [], "began", 30, as_json=False).splitlines()
    assert rows[0].split() == [
        "folder", "name", "tags", "kind", "began", "data", "settings", "best", "test", "status",
        "size",
    ]  # fmt: skip
    assert rows[2].split()[:2] == ["runs/2026-01-02/10-00-03.0", "fourth"]
    assert "val/loss 0.2" in rows[2]
    assert "wide, deep" in rows[4]
    assert "optimizer.lr=0.3" in rows[5]
    assert "50.00%  45.00%" in rows[5]


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        (["status=finished"], ["fourth", "second", "first"]),
        (["status!=finished"], ["third"]),
        (["tag=wide"], ["second"]),
        (["tag!=wide"], ["fourth", "third", "first"]),
        (["best>50%"], ["second"]),
        (["best>=0.5", "name!=second"], ["first"]),
        (["optimizer.lr<=0.3"], ["second", "first"]),
        (["optimizer.lr=0.10"], ["second"]),
        (["optimizer.lr=0.1", "tag=deep"], ["second"]),
        (["data=digits", "seed=0", "name=third"], ["third"]),
        (["model.hidden_sizes=[32]", "seconds>2.5"], ["fourth"]),
        (["began>=2026-01-02 10:00"], ["fourth", "third", "second", "first"]),
        (["began<2026-01-02"], []),
        (["began=2026-01-02 10:00", "kind=run", "name=first"], ["first"]),
        (["best>50"], ["second"]),
        (["best=90", "test!=0.5"], ["second"]),
        (["best<1", "name!=third"], ["fourth", "second", "first"]),
        (["best<50%"], []),  # a loss is not a percentage
        (["test>=45", "test<45.1%"], ["first"]),
        (["model=mlp", "optimizer=sgd", "name=third"], ["third"]),
        (["trainer.max_epochs=2", "model.dropout=0.5"], []),
    ],
)
def test_conditions(conditions: list[str], expected: list[str], several: list[str]) -> None:
    assert names(conditions=conditions) == expected


@pytest.mark.parametrize("text", ["", "=", "status", "status=", "=3", "best>high", "a b=3"])
def test_wrong_conditions(text: str) -> None:
    with pytest.raises(InputError, match="--where"):
        list(select([], [text]))


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("lr", "did you mean optimizer.lr?"), ("optimizer.rl", "did you mean optimizer.lr?"),
        ("stat", "did you mean status?"), ("accuracy", "type one of folder, name, tag"),
    ],
)  # fmt: skip
def test_an_unknown_key_is_refused(key: str, told: str, several: list[str]) -> None:
    """In a condition and as an order, whether there are runs or not."""
    for found in (entries(), []):
        with pytest.raises(InputError, match=rf"--where {key}!=3: unknown key; .*"):
            list(select(found, [f"{key}!=3"]))
        with pytest.raises(InputError) as caught:
            sort(found, key)
        assert str(caught.value).startswith(f"--sort {key}: unknown key; {told}")


def test_a_key_of_an_older_version_is_known() -> None:
    ended(Path("runs/a"), 0.5).overrides_file.write_text("[old.key=3]")
    assert len([*select(entries(), ["old.key=3"])]) == 1


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("best", ["second", "first", "fourth", "third"]),  # by accuracy, then by loss, then failed
        ("optimizer.lr", ["second", "first", "fourth", "third"]),
        ("name", ["first", "fourth", "second", "third"]),
        ("seconds", ["fourth", "third", "second", "first"]),
    ],
)
def test_order(key: str, expected: list[str], several: list[str]) -> None:
    if key == "optimizer.lr":  # the default of the run that has not typed a rate lies between
        rates = {entry.labels.name: float(entry.config[key]) for entry in entries()}
        expected = sorted(several, key=lambda name: rates[name])
    assert names(key=key) == expected


def test_the_name_of_a_file_with_a_quote_is_shown_as_it_is() -> None:
    ended(Path("runs/a"), 0.5, "data=csv", r"data.path='/x/it\'s.csv'", "data.target=y")
    assert read_entry(Path("runs/a")).data.endswith(" /x/it's.csv")
    assert "it's.csv" in listed([], [], "began", 3, as_json=False).splitlines()[2]


def test_a_long_list_is_cut(several: list[str]) -> None:
    text = listed([], [], "began", 3, as_json=False)
    assert text.endswith("… and 1 more; --limit 4 shows all")
    assert len(text.splitlines()) == 6
    with pytest.raises(InputError, match="--limit 0"):
        listed([], [], "began", 0, as_json=False)


def test_nothing_to_list() -> None:
    assert listed([], [], "began", 1, as_json=False) == "no run in runs, sweeps, searches"
    Path("other").mkdir()
    told = listed([Path("other")], ["best>1"], "began", 1, as_json=False)
    assert told == "no run in other meets the conditions"
    assert listed([], [], "began", 1, as_json=True) == "[]"
    with pytest.raises(InputError, match="nix: there is no such folder"):
        entries([Path("nix")])


def test_a_sweep_is_one_row() -> None:
    folder = multirun("sweeps/2026-01-02/10-00-00.0", *SMALL, "optimizer.lr=0.1,0.2", "name=rates")
    for number, value in enumerate((0.25, 0.75)):
        also = {"test/acc": value - 0.25, "seconds": {"fit": 1.0}}
        ended(folder / str(number), value, "name=rates", also=also)
    entry = read_entry(folder)
    assert (entry.kind, entry.trials, entry.status, entry.labels.name) == (
        "sweep", 2, "finished", "rates",
    )  # fmt: skip
    assert (entry.best, entry.test, entry.seconds) == (0.75, 0.5, 2.0)
    assert entry.typed["optimizer.lr"] == "0.1,0.2"
    assert "name" not in entry.typed
    assert entry.config["model.hidden_sizes"] == "[32]"
    ended(folder / "2", None, status="failed")
    ended(folder / "3", None, status="interrupted")
    assert read_entry(folder).status == "interrupted, 3 of 4 ended, 1 failed"
    for status in ("status=interrupted", "status=interrupted, 3 of 4 ended, 1 failed"):
        assert [entry.folder for entry in select(entries(), [status])] == [folder]
    assert not [*select(entries(), ["status!=interrupted"])]
    (folder / "3" / "result.json").unlink()
    assert read_entry(folder).status == "unfinished, 3 of 4 ended, 1 failed"
    ended(folder / "3", None, status="diverged")
    assert read_entry(folder).status == "finished, 1 failed, 1 diverged"
    with lock_or_fail(folder / ".stacks" / "ab" / ".lock"):
        assert read_entry(folder).status == "running, 1 failed, 1 diverged"
    assert "sweep of 4" in listed([], [], "began", 9, as_json=False)


def test_the_best_of_repeated_settings_is_a_mean() -> None:
    """Not the luckiest seed."""
    folder = multirun("sweeps/2026-01-02/10-00-00.0", *SMALL, "optimizer.lr=0.1,0.2", "seed=0,1")
    values = iter((0.5, 0.9, 0.75, 0.77))
    for number, (rate, seed) in enumerate(itertools.product(("0.1", "0.2"), ("0", "1"))):
        value = next(values)
        overrides, also = (f"optimizer.lr={rate}", f"seed={seed}"), {"test/acc": value - 0.25}
        ended(folder / str(number), value, *overrides, also=also)
    entry = read_entry(folder)
    assert (entry.best, entry.test) == pytest.approx((0.76, 0.51))


def test_a_search_and_an_empty_sweep() -> None:
    Path("searches/lr").mkdir(parents=True)
    Path("searches/lr", SEARCH).write_text('["optimizer.lr=interval(0.1,1)", "search.trials=4"]')
    entry = read_entry(Path("searches/lr"))
    assert (entry.kind, entry.status, entry.trials) == ("search", "unfinished", 0)
    assert entry.typed == {"optimizer.lr": "interval(0.1,1)", "search.trials": "4"}


def stopped(folder: Path, value: float, *overrides: str, interrupted: bool = False) -> Run:
    """A run that was stopped after its second epoch, the worse one."""
    run = ended(folder, None, *overrides)
    run.result_file.unlink()
    row: Row = {**dict.fromkeys(HISTORY, 0.0), "epoch": 0, "step": 0}
    better = {"val/acc": value, "val/loss": 1 - value}
    run.write_history([row, {**row, "epoch": 1, **better}, {**row, "epoch": 2, "val/loss": 3.0}])
    if interrupted:
        run.write_result({"status": "interrupted", "signal": "SIGINT", "epochs": 2, "steps": 2})
    return run


@pytest.mark.parametrize("interrupted", [True, False])
def test_the_best_so_far(interrupted: bool) -> None:
    """Of a run, of a whole sweep, and beside trials that have ended."""
    loss = ("checkpoint.monitor=val/loss", "checkpoint.mode=min")
    for name, overrides, monitor, best in (
        ("a", (), "val/acc", 0.75), ("b", loss, "val/loss", 0.25),
    ):  # fmt: skip
        entry = read_entry(stopped(Path("runs", name), 0.75, *overrides, interrupted=True).folder)
        assert (entry.status, entry.data, entry.monitor) == ("interrupted", "digits", monitor)
        assert (entry.best, entry.test) == (best, None)
    folder = multirun("sweeps/2026-01-02/10-00-00.0", *SMALL, "optimizer.lr=0.1,0.2")
    for number, value in enumerate((0.25, 0.5)):
        lr = f"optimizer.lr=0.{number + 1}"
        stopped(folder / str(number), value, *SMALL, lr, interrupted=interrupted)
    entry = read_entry(folder)
    word = "interrupted" if interrupted else "unfinished"
    assert (entry.status, entry.data, entry.best) == (f"{word}, 0 of 2 ended", "digits", 0.5)
    ended(folder / "2", 0.4, *SMALL, "optimizer.lr=0.3")
    assert read_entry(folder).best == 0.5
    ended(folder / "3", 0.6, *SMALL, "optimizer.lr=0.4")
    assert read_entry(folder).best == 0.6


def test_a_run_that_failed_tells_its_data() -> None:
    run = ended(Path("runs/a"), None)
    run.write_result({"status": "failed", "error": "why"})
    assert (read_entry(run.folder).data, read_entry(run.folder).best) == ("digits", None)


def test_a_run_that_trains_is_running() -> None:
    run = ended(Path("runs/a"), 0.5)
    run.result_file.unlink()
    assert read_entry(run.folder).status == "unfinished"
    with lock_or_fail(run.checkpoints / ".lock"):
        entry = read_entry(run.folder)
    assert (entry.status, entry.data) == ("running", "digits")


@pytest.mark.parametrize("name", ["result.json", ".hydra/overrides.yaml", "labels.json"])
def test_a_damaged_run_is_listed_with_its_fault(name: str, several: list[str]) -> None:
    folder = Path("runs/2026-01-02/10-00-01.0")
    (folder / name).write_text("{")
    assert len(names()) == 4
    (row,) = [line for line in listed([], [], "began", 9, as_json=False).splitlines()
              if str(folder) in line]  # fmt: skip
    assert "damaged" in row
    assert name.rpartition("/")[2] in row
    assert listed([], ["status=damaged"], "began", 9, as_json=False)


@pytest.mark.parametrize(
    "text", ["[]", "{}", "hydra: 3", "hydra: {overrides: {task: [3]}}", "\x00"]
)
def test_a_damaged_record_of_a_sweep(text: str) -> None:
    folder = multirun("sweeps/a")
    (folder / "multirun.yaml").write_text(text)
    assert read_entry(folder).fault


def test_a_pipe_gets_all_settings() -> None:
    typed = (
        "model.activation=tanh",
        "optimizer.momentum=0.5",
        "optimizer.weight_decay=0.01",
        "seed=3",
    )
    run = ended(Path("runs/a"), 0.5, *typed)
    found = [read_entry(run.folder)]
    assert ", ".join(typed) in table(found, 9)
    assert ", ".join(typed) not in table(found, 9, 120)


def test_a_strangers_settings_change_no_line_of_the_table() -> None:
    run = ended(Path("runs/a"), 0.5)
    run.overrides_file.write_text('["seed=\\e[2J\\nx"]')
    lines = listed([], [], "began", 9, as_json=False).splitlines()
    assert len(lines) == 3
    assert "\x1b" not in lines[2]


def test_what_tells_runs_apart_comes_first() -> None:
    common = ("model.activation=tanh", "optimizer.momentum=0.5", "seed=3")
    for number, last in enumerate(("optimizer.lr=0.5", "optimizer.lr=0.7")):
        ended(Path(f"runs/2026-01-02/10-00-0{number}.0"), 0.5, *SMALL, *common, last)
    rows = listed([], [], "began", 9, as_json=False).splitlines()[2:]
    assert "digits  optimizer.lr=0.7, trainer=cpu" in rows[0]
    assert "digits  optimizer.lr=0.5, trainer=cpu" in rows[1]
    assert not any("data=digits" in row for row in rows)  # as the column data says


def test_paths_of_data_are_shortened_while_they_differ() -> None:
    def shown(*paths: str) -> list[str]:
        found = [Entry(Path(f"runs/{n}"), "run", 0.0, data=f"csv {path}",
                       typed={"data": "csv", "data.path": path, "seed": "1"})
                 for n, path in enumerate(paths)]  # fmt: skip
        return [line.split("csv", 1)[1].split()[0] for line in table(found, 9).splitlines()[2:]]

    assert shown("/home/me/a.csv", "/home/me/b.csv") == ["a.csv", "b.csv"]
    assert shown("/home/me/a.csv", "/home/you/a.csv") == ["/home/me/a.csv", "/home/you/a.csv"]


@pytest.mark.parametrize("width", [80, 100, 120, 160, 300])
def test_a_table_fits_the_terminal(
    width: int, several: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the best values, the statuses and names that commands find."""
    folder = multirun("sweeps/2026-01-02/10-00-09.000001", *SMALL, "optimizer.lr=0.1,0.2")
    ended(folder / "0", 0.875, *SMALL, "optimizer.lr=0.1", "name=rates")
    stopped(folder / "1", 0.5, *SMALL, "optimizer.lr=0.2", interrupted=True)
    monkeypatch.setattr("kindling.records.listing.is_terminal", lambda _: True)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    lines = listed([], [], "began", 9, as_json=False).splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) == 7
    assert find(lines[2].split()[0]) == folder
    assert "87.50%" in lines[2]
    assert "interrupted" in lines[2]
    assert ("interrupted, 1 of 2 ended" in lines[2]) == (width >= 300)
    assert ("trainer.max_epochs=2" in lines[2]) == (width == 300)


def test_labels_of_a_later_command_count(several: list[str]) -> None:
    write_labels(Path("runs/2026-01-02/10-00-00.0"), name="new", add=("best",))
    assert names(conditions=["tag=best"]) == ["new"]
    assert time.localtime(entries()[-1].began).tm_year == 2026


def test_metrics_of_the_best_epoch(several: list[str]) -> None:
    """They are conditions and keys to sort by, and those of a sweep are of its best trial."""
    run = Run(Path("runs/2026-01-02/10-00-01.0"))
    best = {"epoch": 1, "val/acc": 0.9, "val/loss": 0.4, "train/acc": 0.95}
    run.write_result({**run.result, "best": best})
    assert names(conditions=["val/loss<0.5"], key="val/loss") == ["fourth", "second"]
    assert names(conditions=["train/acc>94"]) == names(conditions=["train/acc>94%"]) == ["second"]
    assert names(conditions=["val/acc=90%"]) == ["second"]
    assert names(conditions=["val/f1>0"], key="val/f1") == []
    with pytest.raises(InputError, match="--where val/los<1: unknown key; did you mean val/loss"):
        names(conditions=["val/los<1"])
    sweep = multirun("sweeps/a", "optimizer.lr=0.1,0.2")
    for trial, (value, loss) in enumerate(((0.7, 0.8), (0.8, 0.6))):
        made = ended(sweep / str(trial), value, f"optimizer.lr=0.{trial + 1}")
        made.write_result({**made.result, "best": {"val/acc": value, "val/loss": loss}})
    entry = read_entry(sweep)
    assert entry.metrics == {"val/acc": 0.8, "val/loss": 0.6}
    assert entry.chosen == {**entry.chosen, "optimizer.lr": "0.2"}


def test_a_note_is_a_field(several: list[str]) -> None:
    write_labels(Path("runs/2026-01-02/10-00-01.0"), note="for the talk")
    assert names(conditions=["note=for the talk"]) == ["second"]
    found = json.loads(listed([], [], "began", 9, as_json=True))
    assert [entry["note"] for entry in found] == [None, None, "for the talk", None]
