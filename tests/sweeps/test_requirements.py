"""Data and devices that a configuration needs and this machine does not have."""

from pathlib import Path

import pytest

from kindling.config.compose import compose
from kindling.data.paths import FOLDERS
from kindling.sweeps.command_line import check_command_line
from tests.helpers.faults import faults


def test_a_named_root_must_have_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nope, empty, file = tmp_path / "nope", tmp_path / "empty", tmp_path / "file"
    empty.mkdir()
    file.write_text("")
    for data, folder in FOLDERS.items():
        assert f"there is no such folder; name the folder that has {folder}, or make it" in faults(
            f"data={data}", f"data.root={nope}"
        )
        check_command_line([f"data={data}", f"data.root={empty}"])  # to be downloaded there
    for key, given in (("data.root", ["data.root={}"]), ("DATA_ROOT", [])):
        for root, answer in (
            (nope, "there is no such folder; name the folder that has MNIST/raw, or leave it out"),
            (empty, "has no MNIST/raw; name the folder that has, or type data=mnist"),
            (file, "is not a folder"),
        ):
            if not given:
                monkeypatch.setenv("DATA_ROOT", str(root))
            told = faults(*(text.format(root) for text in given), "optimizer.lr=-1")
            assert f"{key}={root}: {answer}" in told
            assert "optimizer.lr=-1" in told
    (empty / "MNIST" / "raw").mkdir(parents=True)
    check_command_line([f"data.root={empty}"])


@pytest.mark.parametrize("accelerator", ["cuda", "mps"])
def test_an_absent_accelerator_is_named(accelerator: str) -> None:
    from kindling.system import machine

    if accelerator == machine.resolve(compose().trainer).accelerator:
        pytest.skip(f"there is {accelerator} here")
    assert "torch sees no such device" in faults(f"trainer.accelerator={accelerator}")


def test_a_run_to_start_from_must_be_there_unless_a_run_is_resumed(tmp_path: Path) -> None:
    gone = f"start_from={tmp_path / 'gone'}"
    assert f"{gone}: " in faults(gone)
    check_command_line([gone, "resume=auto", f"hydra.run.dir={tmp_path}/run"])
