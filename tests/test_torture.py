"""A few kills of each kind; `make torture` gives two hundred."""

import json

import pytest

from src.crashes import describe, torture
from tests.conftest import Command

QUICK = {
    "single": ("data.samples=10000", "trainer.max_epochs=4"),
    "sweep": ("data.samples=10000", "trainer.max_epochs=3"),
    "ranks": ("data.samples=4000", "trainer.max_epochs=3"),
}


@pytest.mark.parametrize(("scenario", "kills"), [("single", 4), ("sweep", 3), ("ranks", 1)])
def test_killed_runs_come_to_the_same(scenario: str, kills: int) -> None:
    (tally,) = torture(kills, [scenario], overrides=QUICK[scenario])
    assert tally.kills == kills
    assert tally.runs >= 1
    assert (tally.identical, tally.different) == (tally.runs, [])
    assert scenario in describe([tally])


def test_the_command_reports_what_it_did(command: Command) -> None:
    done = command("src.torture", "--kills", "2", "--scenario", "single", "data.samples=5000")
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout.splitlines()[-1])
    assert found["kills"] == 2
    assert found["identical"] == found["runs"]
    assert 0 <= found["during_write"] <= 2
    assert found["lost_seconds"] >= 0


def test_a_difference_is_seen(command: Command) -> None:
    """Runs that depend on when they were killed: what the comparison is for."""
    done = command(
        "src.torture", "--kills", "1", "--scenario", "single", "data.samples=5000",
        "trainer.max_epochs=100000", "trainer.max_time='00:00:00:02'",
    )  # fmt: skip
    assert done.returncode == 1
    assert "a run came to something else" in done.stderr


def test_wrong_input(command: Command) -> None:
    done = command("src.torture", "--kills", "0")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--kills: 0 is less than 1" in done.stderr


@pytest.mark.torture
def test_two_hundred_kills() -> None:
    tallies = torture(200, ["single", "sweep"])
    assert sum(tally.kills for tally in tallies) == 200
    assert all(tally.identical == tally.runs for tally in tallies)
    assert all(tally.during_write > 10 for tally in tallies)


@pytest.mark.torture
def test_killed_ranks_come_to_the_same() -> None:
    (tally,) = torture(10, ["ranks"])
    assert (tally.kills, tally.identical) == (10, tally.runs)
