"""The arguments of an export, and what the file says of itself."""

import json
from pathlib import Path

import onnx
import pytest
import torch
from safetensors import safe_open

from src.inference.formats import FormatName, plan
from src.inference.onnx_model import open_onnx
from src.runs.folder import Run
from src.system import extras
from src.system.errors import InputError
from src.system.files import sha256
from tests.helpers.commands import require_told_without_torch


def test_the_metadata_of_a_file(run: Run, files: dict[FormatName, Path]) -> None:
    said: dict[str, dict[str, str]] = {}
    said["onnx"] = {p.key: p.value for p in onnx.load(files["onnx"]).metadata_props}
    extra = {"kindling.json": ""}
    torch.export.load(files["torch"], extra_files=extra)
    said["torch"] = json.loads(extra["kindling.json"])
    with safe_open(files["safetensors"], "pt") as content:
        said["safetensors"] = content.metadata()
    assert said["onnx"] == said["torch"] == said["safetensors"]
    about = said["onnx"]
    assert json.loads(about["labels"]) == [*"0123456789"]
    assert json.loads(about["config"]) == run.config.to_primitives()
    del about["labels"], about["config"]
    assert about == {
        "version": "0.1.0",
        "config_hash": run.result["config_hash"],
        "checkpoint_sha256": sha256(run.best_checkpoint),
        "data": "digits",
        "shape": "[1, 28, 28]",
        "columns": "null",
        "input_shape": "[28, 28]",
        "input_dtype": "float32",
        "dtype": "float32",
        "members": "null",
    }


def test_arguments_cost_no_torch(run: Run, tmp_path: Path) -> None:
    taken = tmp_path / "model.pt2"
    taken.write_text("the user's")
    told = {
        ("nowhere",): "error: nowhere: there is no such file or folder; name a run, runs/DATE/TIME",
        (str(tmp_path),): "is not a run folder, it has no checkpoints/best.ckpt; name a folder",
        (str(run.folder), "--format", "torch", "--output", str(taken)): (
            f"error: --output {taken}: exists already; name another file, or type --force to "
            "replace it"
        ),
        (str(run.folder), "--format", "keras"): "--format keras: must be one of",
    }
    require_told_without_torch("export", told)
    assert taken.read_text() == "the user's"


def test_every_fault_at_once(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "_installed", lambda name: "onnxr" not in name)
    with pytest.raises(InputError) as raised:
        plan(tmp_path / "nowhere", "onnx", tmp_path / "away" / "model.pt2", force=False)
    assert str(raised.value).splitlines() == [
        "4 faults, nothing was exported",
        f"  {tmp_path / 'nowhere'}: there is no such file or folder; name a run, runs/DATE/TIME",
        '  --format onnx: needs onnxruntime; type pip install -e ".[export]"',
        f"  --output {tmp_path / 'away/model.pt2'}: names another format; type --format torch, or "
        f"--output {tmp_path / 'away/model.onnx'}",
        f"  --output {tmp_path / 'away/model.pt2'}: there is no folder {tmp_path / 'away'}; make "
        "it first",
    ]
    with pytest.raises(InputError, match=r"is a folder; type --output .*model\.safetensors"):
        plan(run.folder, "safetensors", tmp_path, force=True)


def test_a_checkpoint_file_is_exported_beside_itself(run: Run) -> None:
    planned = plan(run.last_checkpoint, "safetensors", None, force=False)
    assert planned.output == run.checkpoints / "last.safetensors"


def test_metadata_that_are_not_text(files: dict[FormatName, Path], tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    content = files["onnx"].read_bytes()
    assert content.count(b'["0", "1"') == 1
    path.write_bytes(content.replace(b'["0", "1"', b'["\xff", "1"'))
    with pytest.raises(InputError, match=r"model\.onnx: onnxruntime cannot run it"):
        open_onnx(path)
