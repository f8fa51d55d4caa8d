"""ONNX files of strangers are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from src.inference.formats import FormatName
from src.inference.onnx_model import open_onnx
from src.system.errors import InputError


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


def test_a_wrong_input_type_is_an_error(files: dict[FormatName, Path]) -> None:
    model = open_onnx(files["onnx"], threads=1)
    assert model.logits(np.zeros((2, 28, 28), np.float32)).shape == (2, 10)
    with pytest.raises(Exception, match="Unexpected input data type"):
        model.logits(np.zeros((2, 28, 28), np.uint8))
