"""The arguments of an export, what the file says of itself, and ONNX files of strangers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from safetensors import safe_open
from torch import nn

from kindling.inference.export import formats
from kindling.inference.export.formats import FormatName, open_onnx, plan
from kindling.records.folder import Run
from kindling.system import extras
from kindling.system.errors import InputError
from kindling.system.files import sha256
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
        "task": "classification",
        "data": "digits",
        "targets": "null",
        "quantiles": "null",
        "shape": "[1, 28, 28]",
        "columns": "null",
        "raw_columns": "false",
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


# --- ONNX files of strangers are refused ----------------------------------------------------------


def test_a_foreign_onnx_model(files: dict[FormatName, Path], tmp_path: Path) -> None:
    path = tmp_path / "foreign.onnx"
    model = onnx.load(files["onnx"])
    said = list(model.metadata_props)
    del model.metadata_props[:]
    onnx.save(model, path)
    with pytest.raises(InputError, match="was not exported by this project"):
        open_onnx(path)
    model.metadata_props.extend(said)
    next(p for p in model.metadata_props if p.key == "input_shape").value = "[14, 14]"
    onnx.save(model, path)
    with pytest.raises(InputError, match=r"has .*\[28, 28\].* its metadata say .*\[14, 14\]"):
        open_onnx(path)


def test_a_model_that_names_files_outside_itself(
    files: dict[FormatName, Path], tmp_path: Path
) -> None:
    model = onnx.load(files["onnx"])
    weight = model.graph.initializer[0]
    (tmp_path / "secret").write_bytes(weight.raw_data)
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="secret")
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(InputError, match=r"its weights lie in another file"):
        open_onnx(path)


def _of_nodes(*nodes: onnx.NodeProto, **weights: np.ndarray[Any, Any]) -> onnx.ModelProto:
    """A model from inputs (N, 4) to logits (N, 2)."""
    shaped = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "g",
        [shaped("inputs", onnx.TensorProto.FLOAT, ["N", 4])],
        [shaped("logits", onnx.TensorProto.FLOAT, ["N", 2])],
        [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)])


NODE = onnx.helper.make_node


LARGE = np.zeros((2**20, 1), np.float32)


HARMFUL = {
    "a chosen size": _of_nodes(NODE("Expand", ["inputs", "to"], ["logits"]), to=np.array([9, 4])),
    "random": _of_nodes(NODE("RandomNormalLike", ["inputs"], ["logits"])),
    "of another domain": _of_nodes(NODE("Gelu", ["inputs"], ["logits"], domain="com.microsoft")),
    "a subgraph": _of_nodes(
        NODE("Loop", ["most", "yes"], ["logits"], body=_of_nodes().graph),
        most=np.array(2**60), yes=np.array(True),
    ),
    "an outer product": _of_nodes(
        NODE("MatMul", ["large", "across"], ["all"]), NODE("Identity", ["inputs"], ["logits"]),
        large=LARGE, across=LARGE.T,
    ),
    "growing sums": _of_nodes(
        NODE("Add", ["inputs", "one"], ["sum"]), NODE("Add", ["sum", "other"], ["all"]),
        NODE("Reshape", ["all", "flat"], ["logits"]),
        one=np.zeros((4096, 1, 1), np.float32), other=np.zeros((9999, 1, 1, 1), np.float32),
        flat=np.array([-1, 2]),
    ),
    "padding": _of_nodes(
        NODE("Reshape", ["inputs", "square"], ["picture"]),
        NODE("MaxPool", ["picture"], ["logits"], kernel_shape=[9, 9], pads=[10**9] * 4),
        square=np.array([-1, 1, 2, 2]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", HARMFUL)
def test_operators_that_the_export_never_writes(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(HARMFUL[kind].SerializeToString())
    with pytest.raises(InputError, match=r"model\.onnx: cannot be read as ONNX"):
        open_onnx(path)


class Varied(nn.Module):
    """What modules of users have beside layers of ours."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, 1)
        x = nn.functional.glu(torch.cat([first, second.sin()], 1))
        x = x / x.norm(dim=1, keepdim=True) + nn.functional.softplus(x).cumsum(1)
        x = torch.where(x > 0.5, x.abs().sqrt(), -x)
        return x.topk(2, 1).values + x.amin(1, keepdim=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_operators_of_ordinary_modules_are_trusted() -> None:
    shapes = {"x": {0: torch.export.Dim("N")}}
    program = torch.export.export(Varied(), (torch.ones(2, 8),), dynamic_shapes=shapes)
    exported = torch.onnx.export(program, dynamo=True, verbose=False)
    assert exported is not None
    formats._check_graph(exported.model_proto.SerializeToString())


def test_a_wrong_input_type_is_an_error(files: dict[FormatName, Path]) -> None:
    model = open_onnx(files["onnx"], threads=1)
    assert model.logits(np.zeros((2, 28, 28), np.float32)).shape == (2, 10)
    with pytest.raises(Exception, match="Unexpected input data type"):
        model.logits(np.zeros((2, 28, 28), np.uint8))
