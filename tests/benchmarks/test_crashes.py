"""A few kills of each kind; `make torture` makes two hundred."""

import json
import math
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch

from benchmarks.crashes import Torture, describe_tallies, digest, torture
from benchmarks.torture import main as torture_main
from kindling.records.folder import Run
from tests.helpers.commands import Command

QUICK = {
    "sweep": ("data.samples=10000", "trainer.max_epochs=3"),
    "ranks": ("data.samples=4000", "trainer.max_epochs=3"),
    "local": (),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "kills"),
    [
        ("sweep", 2),
        pytest.param("ranks", 1, marks=pytest.mark.torture),
        pytest.param("local", 6, marks=pytest.mark.torture),
    ],
)
def test_killed_runs_end_as_an_undisturbed_run(scenario: str, kills: int) -> None:
    (tally,) = torture(kills, [scenario], overrides=QUICK[scenario])
    assert tally.kills == kills
    assert tally.runs >= 1
    assert (tally.identical, tally.different) == (tally.runs, [])
    assert scenario in describe_tallies([tally])


@pytest.mark.slow
def test_the_command_reports_what_it_did(command: Command) -> None:
    done = command("src.torture", "--kills", "2", "--scenario", "single", "data.samples=5000")
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout.splitlines()[-1])
    assert found["kills"] == 2
    assert found["identical"] == found["runs"]
    assert 0 <= found["during_write"] <= 2
    assert found["lost_seconds"] >= 0


@pytest.mark.slow
def test_a_difference_is_detected(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A killed run whose last loss differs in its last bit."""
    finish = Torture._finish

    def altered(self: Torture, process: BaseProcess, folder: Path) -> None:
        finish(self, process, folder)
        if folder.name.startswith("killed"):
            run = Run(folder / "run")
            *rows, last = run.history
            loss = math.nextafter(float(last["val/loss"] or 0), math.inf)
            run.write_history([*rows, last | {"val/loss": loss}])

    monkeypatch.setattr(Torture, "_finish", altered)
    few = ("data.samples=5000", "trainer.max_epochs=3")
    monkeypatch.setattr("sys.argv", ["torture", "--kills", "1", "--scenario", "single", *few])
    with pytest.raises(SystemExit) as ended:
        torture_main()
    assert ended.value.code == 1
    printed = capsys.readouterr()
    assert "a resumed run differs" in printed.err
    (tally,) = json.loads(printed.out.splitlines()[-1])
    assert len(tally["different"]) == tally["runs"] - tally["identical"] == 1


def test_wrong_input(command: Command) -> None:
    done = command("src.torture", "--kills", "0")
    assert (done.returncode, done.stdout) == (2, "")
    assert "error: --kills 0: must be 1 or more" in done.stderr


@pytest.mark.torture
def test_two_hundred_kills() -> None:
    tallies = torture(200, ["single", "sweep"])
    assert sum(tally.kills for tally in tallies) == 200
    assert all(tally.identical == tally.runs for tally in tallies)
    assert all(tally.during_write > 10 for tally in tallies)


@pytest.mark.torture
def test_killed_ranks_end_as_an_undisturbed_run() -> None:
    (tally,) = torture(10, ["ranks"])
    assert (tally.kills, tally.identical) == (10, tally.runs)


def test_digests_see_the_last_bit() -> None:
    weights = {"a": torch.zeros(3), "b": [1, 2.0, None]}
    changed = {"a": torch.tensor([0.0, 0.0, 1e-45]), "b": [1, 2.0, None]}
    assert digest(weights) == digest({"a": torch.zeros(3), "b": [1, 2.0, None]})
    assert len({digest(weights), digest(changed), digest(weights | {"b": [1, 2, None]})}) == 3
