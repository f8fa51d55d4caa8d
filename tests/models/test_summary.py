"""What a model consists of."""

import re
from pathlib import Path

import pytest
from torch import nn

from kindling.config.compose import compose
from kindling.models.mlp import Mlp
from kindling.models.summary import in_a_line, summarise
from kindling.training.fit import fit
from tests.helpers.commands import SMALL, Command


def test_sizes_and_parameters_in_a_line() -> None:
    model = Mlp(20, [5, 4], 3, norm="batch", dropout=0.1)
    weights = 20 * 5 + 2 * 5 + 5 * 4 + 2 * 4 + 4 * 3 + 3  # before a norm there is no bias
    assert in_a_line("mlp", model) == f"mlp 20-5-4-3, {weights} parameters"
    assert in_a_line("linear", nn.Linear(7, 2)) == "linear 7-2, 16 parameters"
    other = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))
    assert in_a_line("none", nn.Flatten()) == "none, 0 parameters"
    assert in_a_line("cnn", other) == "cnn, 38 parameters"


def test_a_table_of_the_layers() -> None:
    text = summarise(compose(*SMALL, "model.hidden_sizes=[16]"))
    assert text.splitlines()[0] == f"mlp 784-16-10, {785 * 16 + 17 * 10:,} parameters"
    rows = [line.split("|") for line in text.splitlines() if "Linear" in line]
    assert [row[2].strip() for row in rows] == ["Linear"] * 2
    assert [re.sub(r"\s", "", row[-1]) for row in rows] == ["[2,16]", "[2,10]"]


def test_a_run_begins_with_the_line(tmp_path: Path) -> None:
    run = fit(compose(*SMALL), tmp_path / "run")
    first = run.log_file.read_text().splitlines()[0]
    assert first.endswith(f"mlp 784-32-10, 25,450 parameters; {run.result['step']} steps on cpu")
    fit(compose(*SMALL, "trainer.max_epochs=3"), run.folder, resume=True)
    assert run.log_file.read_text().count("25,450 parameters") == 1


@pytest.mark.slow
def test_the_command_trains_nothing(command: Command, tmp_path: Path) -> None:
    done = command("src.train", "--summary", *SMALL, "model=logistic_regression")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("logistic_regression 784-10, 7,850 parameters\n")
    assert not list(tmp_path.iterdir())
    for arguments, fault in (
        (("--summary", "-m", "seed=1,2"), "--multirun, --summary: exclude each other"),
        (("--summary", "sed=1"), "did you mean seed"),
        (("--summary", "resume=nix"), "there is no such folder"),
        (("--summary", "data=csv", "data.path=x.csv", "data.target=y"), "there is no such file"),
    ):
        done = command("src.train", *arguments)
        assert (done.returncode, done.stdout) == (2, ""), done.stdout
        assert fault in done.stderr
