"""Command lines are checked as a whole, before torch is imported."""

import subprocess
import sys
from pathlib import Path

import pytest

from kindling.commands import train
from kindling.sweeps.command_line import check_command_line
from kindling.system.errors import InputError
from kindling.system.installation import PATHS
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
        f"import sys; sys.path[:0] = {PATHS}; sys.argv = ['train', {argument!r}]\n"
        "from kindling.commands import train; import src\n"
        "try: train.main()\n"
        "except SystemExit as end: print(end.code)\n"
        "print('torch' in sys.modules)"
    )
    return subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=True
    )


@pytest.mark.slow
def test_faults_cost_no_torch_and_exit_with_2(tmp_path: Path) -> None:
    done = _door(tmp_path, "model.hiden=1")
    assert done.stdout == "2\nFalse\n"
    assert done.stderr.startswith("error: 1 fault in the configuration, nothing was started")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_help_lists_groups_and_costs_no_torch(tmp_path: Path) -> None:
    done = _door(tmp_path, "--help")
    assert done.stdout.startswith("usage: python -m src.train ")
    assert "  optimizer=     adam, adamw, sgd\n" in done.stdout
    assert done.stdout.endswith("\nFalse\n")


def test_help_shows_the_keys_of_its_command_line() -> None:
    """Also those without a value yet, which a run would refuse."""
    shown = check_command_line(["data=csv", "-m", "optimizer=adam", "seed=1,2", "--help"]).help
    whole = check_command_line(["--help"], train.__doc__).help
    assert shown is not None
    assert whole is not None
    assert "python -m src.train -m hydra/launcher=fused " in whole
    assert "python -m src.train --cfg job " in whole
    for text in ("  data.target=null  ", "  optimizer.lr=0.01  ", "  seed=1  "):
        assert text in shown, text
    for flag in ("--cfg", "--summary", "--config-dir", "--multirun", "--version"):
        assert flag in shown
    for refused in ("--experimental-rerun", "--config-name", "--config-path", "--shell"):
        assert refused not in shown
    chosen_later = check_command_line(["-m", "optimizer.lr=interval(0.1,1)", "--help"]).help
    assert "  optimizer.lr=0.5  " in (chosen_later or "")
    assert "lr=-1: unknown key; did you mean optimizer.lr?" in faults("lr=-1", "--help")


def test_flags_are_checked() -> None:
    for argv, told in {
        ("--foo",): "--foo: unknown argument; did you mean --info?",
        ("--lr=0.1",): "--lr=0.1: unknown argument; settings have no dashes, for example "
        "optimizer.lr=0.1",
        ("--sumary", "seed=1"): "--sumary: unknown argument; did you mean --summary?",
        ("--cfg", "jobs"): "--cfg/-c jobs: must be one of job, hydra, all; did you mean job?",
        ("-sc", "install=bash"): "--shell-completion: Hydra would complete a script alone; for all "
        'commands, type eval "$(activate-global-python-argcomplete --dest=-)"',
        ("--resolve",): "--resolve: goes with --cfg; type --cfg job --resolve too",
    }.items():
        with pytest.raises(InputError) as error:
            check_command_line(argv)
        assert str(error.value) == told
