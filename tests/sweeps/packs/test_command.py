"""Command lines of packs are checked as a whole, before torch is imported."""

from pathlib import Path

import numpy as np
import pytest

from kindling.sweeps.packs.command import check_command_line
from kindling.system.errors import InputError
from tests.helpers.commands import ROOT, require_told_without_torch

HEADER = "x,y,label"


def _table(folder: Path, *rows: str) -> Path:
    path = folder / "table.csv"
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return path


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return _table(tmp_path, *(f"{n % 7},{n},{'ab'[n % 2]}" for n in range(40)))


def test_a_network_has_the_drawn_settings_and_those_that_were_typed(table: Path) -> None:
    pack = check_command_line(table, "label", ["model.dropout=0.1"], networks=6, seed=3)
    first, *others = pack.sweep.points
    assert len(others) == 5
    assert first.data.batch_size == 16
    assert first.read("data.targets") == ["label"]
    assert {config.read("model.dropout") for config in pack.sweep.points} == {0.1}
    assert len({config.optimizer.lr for config in pack.sweep.points}) == 6
    assert first.task.name == "classification"
    assert first.checkpoint.monitor == "val/loss"
    assert pack.folder.parent == Path("sweeps")
    assert pack.command.startswith("python -m src.tables ")
    rest = "--target=label model.dropout=0.1 --networks 6 --seed 3 --folder=sweeps/table-label-"
    assert rest in pack.command


def test_the_folder_follows_from_all_that_decides_the_pack(table: Path) -> None:
    def folder(*overrides: str, seed: int = 0, networks: int = 4) -> Path:
        return check_command_line(table, "label", overrides, networks=networks, seed=seed).folder

    first = folder()
    assert folder() == first
    others = {folder(seed=1), folder(networks=5), folder("model.dropout=0.1")}
    table.write_text(table.read_text() + "3,40,a\n")
    assert len({first, folder(), *others}) == 5


@pytest.mark.parametrize(
    ("labels", "task"),
    [
        (list("ab") * 20, "classification"),
        ([*range(4)] * 10, "classification"),
        ([*range(20)] * 2, "classification"),
        ([*range(40)], "regression"),
        ([0.5, 1.5] * 20, "regression"),
        ([*range(39), "many"], "classification"),
        (["", *range(39)], "regression"),
        (["0;5", "1;5"] * 20, "regression"),  # of which the file makes decimal commas
        ([f"${1 + n % 25}" for n in range(400)], "regression"),
        ([f"{n % 25}%" for n in range(400)], "regression"),
        ([n % 25 for n in range(400)], "classification"),
        ([19 + n % 25 for n in range(400)], "regression"),  # ages
        (["$5", "$10"] * 20, "classification"),
        ([*["$5", "$10"] * 20, "free"], "classification"),
    ],
)
def test_the_task_follows_from_the_labels(tmp_path: Path, labels: list[object], task: str) -> None:
    quoted = [f"{label}".replace(";", ",") for label in labels]
    path = _table(tmp_path, *(f'{n},{n % 3},"{label}"' for n, label in enumerate(quoted)))
    pack = check_command_line(path, "label", networks=2)
    assert pack.sweep.points[0].task.name == task
    other = "regression" if task == "classification" else "classification"
    typed = check_command_line(path, "label", [f"task={other}"], networks=2)
    assert typed.sweep.points[0].task.name == other
    several = all(str(label).isdigit() for label in labels) and len({*labels}) > 2
    taken = "numbers to predict" if task == "regression" else f"{len({*labels})} classes"
    told = task == "regression" or several
    assert (taken in pack.told, f"task={other}" in pack.told, typed.told) == (told, told, "")


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ({"networks": 1}, "--networks 1: must be from 2 to 256"),
        ({"networks": 257}, "--networks 257: must be from 2 to 256"),
        ({"seed": -1}, "--seed -1: must be from 0 to"),
        ({"minutes": 0.0}, "--minutes 0: must be above 0"),
        ({"minutes": float("inf")}, "--minutes inf: must be above 0"),
        ({"minutes": float("nan")}, "--minutes nan: must be above 0"),
        ({"target": None}, "--target: is missing; table.csv has x, y, label"),
        ({"target": "lable"}, "--target=lable: there is no such column; did you mean label?"),
        ({"overrides": ["data.path=b.csv"]}, "python -m src.tables sets this key; leave it out"),
        ({"overrides": ["resume=auto"]}, "python -m src.tables sets this key; leave it out"),
        ({"overrides": ["optimizer.lr=0.1,0.2"]}, "networks differ in drawn settings"),
        ({"overrides": ["optimizer.lrr=1"]}, "unknown key; did you mean optimizer.lr?"),
        ({"overrides": ["data.drop=[z]"]}, "data.drop=z: there is no such column; it has x, y"),
    ],
)  # fmt: skip
def test_a_fault_says_what_to_type(table: Path, arguments: dict[str, object], answer: str) -> None:
    given = {"target": "label", "networks": 2} | arguments
    with pytest.raises(InputError) as error:
        check_command_line(Path(table.name), **given)  # type: ignore[arg-type]
    assert answer in str(error.value)


@pytest.mark.slow
def test_faults_are_told_together_and_without_torch(table: Path) -> None:
    with pytest.raises(InputError) as error:
        check_command_line(table, "label", ["data=mnist", "optimizer.lrr=1"], networks=1, seed=-1)
    assert str(error.value).count("\n") == 4
    data = ROOT / "tests" / "sweeps" / "packs" / "test_command.py"
    told = {
        (str(table), "--target", "label", "--networks", "0"): "",
        (str(table), "--target", "label", "model.hidden_size=3"): "",
        (str(table), "--target", "none"): "",
        ("absent.csv", "--target", "a"): "",
        (str(data), "--target", "a"): "",
    }
    require_told_without_torch("tables", told)


def test_many_rows_have_larger_batches(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).integers(0, 9, (2500, 2))
    path = _table(tmp_path, *(f"{a},{b},{a % 2}" for a, b in rows))
    assert check_command_line(path, "label", networks=2).sweep.points[0].data.batch_size == 32
    typed = check_command_line(path, "label", ["data.batch_size=50"], networks=2)
    assert typed.sweep.points[0].data.batch_size == 50


def test_of_many_columns_the_last_is_named(tmp_path: Path) -> None:
    path = tmp_path / "wide.csv"
    names = [f"x{number}" for number in range(30)]
    path.write_text("\n".join([",".join([*names, "price"]), *[",".join("1" * 31)] * 3]))
    with pytest.raises(InputError, match=r"has x0, x1, .*, x12, …, price$"):
        check_command_line(path)
