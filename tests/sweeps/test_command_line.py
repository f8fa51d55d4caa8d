"""Command lines are checked as a whole, before torch is imported."""

import subprocess
import sys
from pathlib import Path

from src.sweeps.command_line import check_command_line
from tests.helpers.commands import ROOT
from tests.helpers.faults import faults


def test_every_point_of_a_sweep_is_checked() -> None:
    text = faults("-m", "model.hidden_sizes=16,0", "optimizer.lr=0.1,0.5,-1")
    assert "trials 2, 5: optimizer.lr=-1" in text
    assert "trials 3, 4, 5: model.hidden_sizes=0" in text


def test_groups_can_be_swept() -> None:
    check_command_line(["-m", "model=mlp,logistic_regression", "seed=range(0,3)"])
    assert "trial 1: data.batch_size=0" in faults("-m", "model=mlp", "data.batch_size=1,0")


def test_a_sweep_gets_its_folder_before_it_starts() -> None:
    first, second = (check_command_line(["-m", "seed=1,2"]) for _ in range(2))
    assert first.sweep_dir != second.sweep_dir
    assert first.argv[-1] == f"hydra.sweep.dir={first.sweep_dir}"
    assert check_command_line(["seed=1"]).sweep_dir is None


def _door(folder: Path, argument: str) -> "subprocess.CompletedProcess[str]":
    """src.train with an argument; the last thing printed is its status and if torch is loaded."""
    script = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.argv = ['train', {argument!r}]\n"
        "from src import train\n"
        "try: train.main()\n"
        "except SystemExit as end: print(end.code, 'torch' in sys.modules)"
    )
    return subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=True
    )


def test_faults_cost_no_torch_and_exit_with_2(tmp_path: Path) -> None:
    done = _door(tmp_path, "model.hiden=1")
    assert done.stdout.strip() == "2 False"
    assert done.stderr.startswith("error: 1 fault in the configuration, nothing was started")
    assert not list(tmp_path.iterdir())


def test_help_lists_groups_and_costs_no_torch(tmp_path: Path) -> None:
    done = _door(tmp_path, "--help")
    assert "optimizer: adam, adamw, sgd" in done.stdout
    assert done.stdout.strip().endswith("0 False")
