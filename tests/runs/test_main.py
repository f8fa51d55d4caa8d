"""`python -m src.runs`, and short names in every command that takes a folder."""

import json
import shutil
from pathlib import Path

import pytest

from tests.helpers.commands import SMALL, Command


@pytest.fixture
def named(command: Command, tmp_path: Path) -> Path:
    """A folder with the run `base` and the sweep `rates`."""
    assert command("src.train", *SMALL, "name=base", "tags=small").returncode == 0
    swept = command(
        "src.train", "-m", "hydra/launcher=fused", *SMALL, "optimizer.lr=0.1,0.3", "seed=0,1",
        "name=rates",
    )  # fmt: skip
    assert swept.returncode == 0, swept.stderr
    return tmp_path


def test_a_list_and_a_comparison(command: Command, named: Path) -> None:
    rows = json.loads(command("src.runs", "--json").stdout)
    assert [(row["name"], row["kind"], row["trials"]) for row in rows] == [
        ("rates", "sweep", 4), ("base", "run", None),
    ]  # fmt: skip
    listed = command("src.runs", "--where", "tag=small").stdout.splitlines()
    assert len(listed) == 3
    assert "base" in listed[2]
    compared = command("src.runs", "compare", "base", "rates/2")
    assert compared.returncode == 0, compared.stderr
    assert "optimizer.lr" in compared.stdout
    assert "from runs/" in compared.stdout.splitlines()[-1]
    refused = command("src.runs", "compare", "base", "rates")
    assert refused.returncode == 2
    assert "is a sweep; name a trial" in refused.stderr


def test_every_command_takes_names(command: Command, named: Path) -> None:
    (folder,) = (path.parent for path in named.glob("runs/*/*/result.json"))
    (swept,) = (path.parent for path in named.glob("sweeps/*/*/multirun.yaml"))
    paths = {"base": folder.relative_to(named), "rates": swept.relative_to(named)}
    accuracy = json.loads((folder / "result.json").read_text())["test/acc"]
    assert json.loads(command("src.evaluate", "base", "--json").stdout)["accuracy"] == accuracy
    assert json.loads(command("src.evaluate", "rates/0", "--json").stdout)["accuracy"] > 0
    works: list[tuple[tuple[str, ...], str]] = [
        (("src.evaluate", "latest", "--json"), '"accuracy"'),  # the newest run, not the sweep
        (("src.export", "ba", "--format", "safetensors"), f"{paths['base']}/model.safetensors"),
        (("src.report", "rates"), f"{paths['rates']}/report.html"),
        (("src.report", "latest", "--output", "r.html"), "r.html"),
        (("src.committee", "rates", "--best", "2"), f"{paths['rates']}/committee"),
        (("src.confirm", "rates", "--top", "2", "--seeds", "2"), "confirm"),
        (("src.train", "resume=base"), f"{paths['base']}: finished after 2 epochs"),
        (("src.train", "resume=base", "trainer.max_epochs=3"), "epoch 3/3"),
        (("src.train", "resume=rates"), f"{paths['rates']}/results.csv"),
        (("src.train", "resume=latest"), "table: "),
    ]
    for arguments, expected in works:
        done = command(*arguments)
        assert done.returncode == 0, (arguments, done.stderr)
        assert expected in done.stdout, (arguments, done.stdout)
    refused: list[tuple[tuple[str, ...], str]] = [
        (("src.evaluate", "rates"), f"{paths['rates']}: is not a run folder"),
        (("src.train", "resume=nix"), "resume=nix: there is no such folder"),
        (("src.train", "resume=base", "name=other"), "leave out name=other"),
        (("src.train", "resume=base", "tags=[a]"), "python -m src.runs label"),
        (("src.search", "resume=latest"), "latest: there is no search"),
        (("src.train", *SMALL, "name=latest"), "name=latest: must not be latest"),
        (("src.train", *SMALL, "tags=[a,-b]"), "must be 1 to 64 letters"),
    ]
    for arguments, fault in refused:
        done = command(*arguments)
        assert (done.returncode, done.stdout) == (2, ""), (arguments, done.stdout)
        assert fault in done.stderr


def test_labels_and_removal(command: Command, named: Path) -> None:
    done = command("src.runs", "label", "base", "--name", "old", "--tag", "x", "--untag", "small")
    assert done.stdout.endswith(": name old, tags x\n")
    asked = command("src.runs", "rm", "old", "rates")
    assert asked.returncode == 2
    assert "type --yes" in asked.stderr
    assert len(asked.stdout.splitlines()) == 2
    assert command("src.runs", "rm", "old", "rates", "--yes").stdout.startswith(
        "removed: 2 folders, "
    )
    assert not list(named.glob("*/*"))
    assert command("src.runs").stdout == "no run in runs, sweeps, searches\n"
    assert command("src.runs", "clean").stdout == "nothing to remove\n"


def test_a_name_belongs_to_one_sweep(command: Command, named: Path) -> None:
    """A copy of the sweep has the same name, and neither is taken for the other."""
    (swept,) = (path.parent for path in named.glob("sweeps/*/*/multirun.yaml"))
    shutil.copytree(swept, swept.with_name("copy"))
    done = command("src.report", "rates")
    assert done.returncode == 2
    assert "rates: may be one of 2 folders" in done.stderr
