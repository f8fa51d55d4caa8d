"""An exported ONNX model, opened and run without torch."""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from src.inference.formats import INPUT, MEMBERS, OUTPUT, Description
from src.system.errors import InputError, parsing
from src.system.files import MIB, read_bounded

ONNX_LIMIT = 2048 * MIB  # bytes; protobuf has no larger message
# The operators of exported classifiers. None of them takes a size, a path, a subgraph or a random
# number from the file.
OPERATORS = frozenset(
    (
        "Add", "AveragePool", "BatchNormalization", "Cast", "Clip", "Concat", "Conv", "Div", "Elu",
        "Erf", "Exp", "Flatten", "Gelu", "Gemm", "GlobalAveragePool", "Identity",
        "InstanceNormalization", "LayerNormalization", "LeakyRelu", "Log", "LogSoftmax", "MatMul",
        "MaxPool", "Mul", "Pow", "ReduceMax", "ReduceMean", "ReduceSum", "Relu", "Reshape",
        "Sigmoid", "Softmax", "Softplus", "Sqrt", "Squeeze", "Sub", "Tanh", "Transpose",
        "Unsqueeze",
    )
)  # fmt: skip
ELEMENTS = 2**26  # at most, of any value in the graph for one sample


@dataclass(frozen=True)
class OnnxModel:
    """A model that onnxruntime runs on the CPU."""

    session: Any  # an onnxruntime.InferenceSession; the package has no types
    description: Description

    def logits(self, inputs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Logits (N, classes) of `dtype` for inputs (N, *input_shape) of `input_dtype`."""
        (logits,) = self.session.run([OUTPUT], {INPUT: inputs})
        assert isinstance(logits, np.ndarray)
        return logits

    def member_log_probabilities(self, inputs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The logarithm of the probabilities of a committee's members, (N, members, classes)."""
        (found,) = self.session.run([MEMBERS], {INPUT: inputs})
        assert isinstance(found, np.ndarray)
        return found


def _check_graph(content: bytes) -> None:
    """Raises ValueError for a graph that the export never writes: with other operators, weights in
    other files, or a value of more than ELEMENTS elements per sample.

    Without this check, a file of few bytes could keep onnxruntime busy for ever or fill the memory.
    """
    import onnx

    model = onnx.load_model_from_string(content)
    graph = model.graph
    for node in graph.node:
        if node.domain or node.op_type not in OPERATORS:
            raise ValueError(f"it has the operator {node.op_type[:80]}, which no export has")
    if model.functions or graph.sparse_initializer:
        raise ValueError("it has functions or sparse weights, which no export has")
    if any(tensor.external_data for tensor in graph.initializer):
        raise ValueError("its weights lie in another file")
    del graph.value_info[:]  # the shapes that the file claims
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    for value in graph.input:
        value.type.tensor_type.shape.dim[0].dim_value = 1
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph
    sizes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*inferred.value_info, *inferred.output)
        if value.type.tensor_type.HasField("shape")
    }
    for name in (name for node in graph.node for name in node.output if name):
        if not 0 < math.prod(sizes.get(name, [0])) <= ELEMENTS:
            raise ValueError(f"the size of its value {name[:80]} is not known, or too large")


def open_onnx(path: Path, *, threads: int = 0) -> OnnxModel:
    """Opens an exported model; `threads` 0 means one per core.

    Raises InputError when the file is not an ONNX model of this project, when inputs or outputs
    differ from its metadata, and when onnxruntime lacks an operation in its precision. onnxruntime
    gets the content, not the path, so that it cannot open files that the content names.
    """
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # onnxruntime reports home, and warns if it cannot
    import onnxruntime

    content = read_bounded(path, ONNX_LIMIT)
    with parsing(f"{path}: cannot be read as ONNX"):
        _check_graph(content)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # the exceptions say the same
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    with parsing(f"{path}: onnxruntime cannot run it"):
        session = onnxruntime.InferenceSession(
            content, options, ["CPUExecutionProvider"], enable_fallback=0
        )
        metadata = session.get_modelmeta().custom_metadata_map
        actual = [
            (value.name, value.type, value.shape[1:])
            for value in (*session.get_inputs(), *session.get_outputs())
        ]
    description = Description.from_metadata(metadata, path)
    kinds = {"uint8": "uint8", "float32": "float", "float64": "double"}
    expected = [
        (INPUT, f"tensor({kinds[description.input_dtype]})", description.input_shape),
        (OUTPUT, f"tensor({kinds[description.dtype]})", [len(description.labels)]),
    ]
    if description.members is not None:
        shape = [len(description.members), len(description.labels)]
        expected.append((MEMBERS, f"tensor({kinds[description.dtype]})", shape))
    if actual != expected:
        raise InputError(f"{path}: has {actual}, its metadata say {expected}")
    return OnnxModel(session, description)
