"""What `kindling.fit` prints in a script and in a notebook."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from lightning.pytorch import Callback, LightningModule, Trainer
from nbclient import NotebookClient

import kindling
from kindling.system.errors import Interrupted
from tests.helpers.commands import PYTHONPATH, SMALL

SCRIPT = """
{before}
import kindling
kindling.{call}
"""
FIT = 'fit(kindling.compose("data=digits", "trainer=cpu", "trainer.max_epochs=2"{more}), "run")'


def printed(tmp_path: Path, call: str, before: str = "") -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(before=before, call=call)],
        cwd=tmp_path, env={"PYTHONPATH": PYTHONPATH, "PATH": ""},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


class Sends(Callback):
    """Sends a signal to this process after the second epoch."""

    def __init__(self, number: int) -> None:
        self.number = number

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch == 1:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_a_script_says_how_python_goes_on(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = kindling.compose(*SMALL, "trainer.max_epochs=4")
    with pytest.raises(Interrupted) as caught:
        kindling.fit(config, "it's my run", callbacks=[Sends(number)])
    assert isinstance(caught.value, KeyboardInterrupt) == (number == signal.SIGINT)
    told = str(caught.value)
    assert told.startswith("stopped after 2 epochs, ")
    assert told.endswith('; to go on, call fit(config, "it\'s my run", resume=True)')
    assert kindling.fit(config, "it's my run", resume=True).result["epochs"] == 4


@pytest.mark.slow
def test_a_script_prints_what_the_command_prints(tmp_path: Path) -> None:
    done = printed(tmp_path, FIT.format(more=', "optimizer.lr=1e6"'))
    lines = done.stdout.splitlines()
    assert lines[0].startswith("mlp 784-32-10, 25,450 parameters; ")
    assert [line.split()[1] for line in lines if line.startswith("epoch ")] == ["0/2", "1/2"]
    (divergence,) = [line for line in lines if line.startswith("! ")]
    assert "diverged at step" in divergence
    assert done.stderr == ""


@pytest.mark.slow
def test_a_key_makes_it_silent(tmp_path: Path) -> None:
    done = printed(tmp_path, FIT.format(more=', "trainer.progress_bar=false"'))
    assert (done.stdout, done.stderr) == ("", "")
    assert "epoch 2/2" in (tmp_path / "run" / "train.log").read_text()


@pytest.mark.slow
def test_the_handlers_of_a_program_get_the_lines(tmp_path: Path) -> None:
    logs = 'import logging; logging.basicConfig(format="mine %(message)s")'
    done = printed(tmp_path, FIT.format(more=""), logs)
    assert done.stdout == ""
    epochs = [line for line in done.stderr.splitlines() if line.startswith("mine epoch")]
    assert [line.split()[2] for line in epochs] == ["0/2", "1/2", "2/2"]


@pytest.mark.slow
def test_a_sweep_prints_lines_too(tmp_path: Path) -> None:
    call = 'sweep("data=digits", "trainer=cpu", "trainer.max_epochs=2", "seed=0,1"{more})'
    done = printed(tmp_path, call.format(more=""))
    assert "epoch 2/2  2 trials" in done.stdout
    assert "2 trials: 1 stack of 2" in done.stdout
    silent = printed(tmp_path, call.format(more=', "trainer.progress_bar=false"'))
    assert silent.stdout == ""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Proactor event loop")
def test_a_notebook_shows_a_bar_and_the_lines_and_the_estimator_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    estimator = (
        "from sklearn.datasets import load_iris\nfrom kindling import KindlingClassifier\n"
        "KindlingClassifier(max_epochs=2).fit(*load_iris(return_X_y=True)); None"
    )
    sources = ["import kindling", f"kindling.{FIT.format(more='')}; None", estimator]
    cells = [nbformat.v4.new_code_cell(source) for source in sources]  # type: ignore[no-untyped-call]
    notebook = nbformat.v4.new_notebook(cells=cells)  # type: ignore[no-untyped-call]
    NotebookClient(notebook, timeout=600, kernel_name="python3").execute(cwd=tmp_path)
    outputs = notebook.cells[1].outputs
    lines, bar = (
        "".join(each["text"] for each in outputs if each["name"] == name)
        for name in ("stdout", "stderr")
    )
    assert "epoch 2/2  train loss" in lines
    assert "best validation" in lines
    assert "%|" in bar
    assert notebook.cells[2].outputs == []
