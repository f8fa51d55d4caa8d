"""`python -m src.runs`, and short names in every command that takes a folder."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.helpers.commands import SMALL, Command
from tests.helpers.runs import ended
from tests.helpers.warm import Warm


@pytest.fixture(scope="module")
def trained(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run `base` and the sweep `rates`."""
    folder = tmp_path_factory.mktemp("named")
    sweep = ("-m", "hydra/launcher=fused", "optimizer.lr=0.1,0.3", "seed=0,1", "name=rates")
    for settings in (("name=base", "tags=small"), sweep):
        done = warm(folder, "src.train", *SMALL, *settings)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def named(trained: Path, tmp_path: Path) -> Path:
    """The same, in the folder of `command`."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.mark.slow
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
    assert compared.stdout.splitlines()[-1].startswith("base and sweeps/")
    assert command("src.runs", "base", "--json").stdout == json.dumps(rows[1:], indent=2) + "\n"
    misspelt = command("src.runs", "lst")
    assert misspelt.stderr == (
        "error: lst: is neither a command nor a folder; did you mean list?\n"
    )
    refused = command("src.runs", "compare", "base", "rates")
    assert refused.returncode == 2
    assert "is a sweep; name a trial" in refused.stderr


@pytest.mark.slow
def test_commands_with_names(command: Command, named: Path) -> None:
    (folder,) = (path.parent for path in named.glob("runs/*/*/result.json"))
    (swept,) = (path.parent for path in named.glob("sweeps/*/*/multirun.yaml"))
    paths = {"base": folder.relative_to(named), "rates": swept.relative_to(named)}
    accuracy = json.loads((folder / "result.json").read_text())["test/acc"]
    found = command("src.evaluate", "latest", "--json")  # the newest run, not the sweep
    assert json.loads(found.stdout)["accuracy"] == accuracy
    works: list[tuple[Sequence[str], str]] = [
        (("src.evaluate", "rates/0", "--json"), '"accuracy"'),
        (("src.train", "resume=base"), f"{paths['base']}: finished after 2 epochs"),
        (("src.train", "resume=latest"), f"{paths['rates']}/results.csv"),
    ]
    for arguments, expected in works:
        done = command(*arguments)
        assert done.returncode == 0, (arguments, done.stderr)
        assert expected in done.stdout, (arguments, done.stdout)
    refused: list[tuple[Sequence[str], str]] = [
        (("src.evaluate", "rates"), f"{paths['rates']}: is a sweep; name one of its trials"),
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


@pytest.mark.parametrize(
    "arguments",
    [
        ("src.evaluate", "same"), ("src.predict", "same", "x.png"), ("src.export", "same"),
        ("src.demo", "same"), ("src.report", "same"),
        ("src.committee", "same"), ("src.confirm", "same"), ("src.cancel", "same"),
        ("src.train", "resume=same"), ("src.search", "resume=same"),
        ("src.runs", "compare", "same", "same"), ("src.runs", "label", "same"),
        ("src.runs", "rm", "same"),
    ],
)  # fmt: skip
def test_a_name_of_several_means_the_newest_unless_something_would_change(
    arguments: Sequence[str], command: Command, tmp_path: Path
) -> None:
    for number, day in enumerate((2, 3)):
        ended(tmp_path / "runs" / f"2026-01-0{day}" / f"10-00-0{number}", 0.5, "name=same")
    done = command(*arguments)
    newest = "same: the newest of 2 folders with this name is runs/2026-01-03/10-00-01"
    asks = "same: may be one of 2 folders; type one of them"
    changes = {"src.cancel", "label", "rm"} & {*arguments}
    assert (asks if changes else newest) in done.stderr
    assert (newest if changes else asks) not in done.stderr
    if changes:
        assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.slow
def test_labels_and_removal(command: Command, named: Path) -> None:
    done = command("src.runs", "label", "base", "--name", "old", "--tag", "x", "--untag", "small")
    assert done.stdout.endswith(": name old, tags x\n")
    again = command("src.runs", "label", "old", "--tag", "x", "--untag", "small")
    assert again.stdout.endswith(": name old, tags x; it had no tag small\n")
    noted = command("src.runs", "label", "old", "--note", "a note")
    assert noted.stdout.endswith(": name old, tags x, note a note\n")
    asked = command("src.runs", "rm", "old", "rates")
    assert asked.returncode == 2
    assert "type --yes" in asked.stderr
    assert len(asked.stdout.splitlines()) == 2
    removed = command("src.runs", "rm", "old", "rates", "--yes")
    assert removed.stdout.splitlines()[:2] == asked.stdout.splitlines()
    assert removed.stdout.splitlines()[2].startswith("removed: 2 folders, ")
    assert not list(named.glob("*/*"))
    assert command("src.runs").stdout == "no run in runs, sweeps, searches\n"
    assert command("src.runs", "clean").stdout == "nothing to remove\n"
