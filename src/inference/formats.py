"""Exported models as files: their formats, what each says of itself, and how ONNX is opened.

Nothing in this module imports torch: a wrong argument costs no more than looking, and an exported
model is served without it.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from src.data.tables import Columns
from src.runs.folder import Size, checkpoint_of
from src.system.errors import InputError, all_at_once
from src.system.extras import missing
from src.system.files import MIB, read_bounded

FormatName = Literal["onnx", "torch", "safetensors"]
INPUT, OUTPUT = "inputs", "logits"
ANOTHER = "; try another --format"  # what to type when a model does not come to a file
ONNX_LIMIT = 2048 * MIB  # bytes; protobuf has no larger message
# What layers of classifiers are exported as: no operator that takes a size, a path, a subgraph or
# a random number from the file.
OPERATORS = frozenset(
    (
        "Add", "AveragePool", "BatchNormalization", "Cast", "Clip", "Concat", "Conv", "Div", "Elu",
        "Erf", "Flatten", "Gelu", "Gemm", "GlobalAveragePool", "Identity", "InstanceNormalization",
        "LayerNormalization", "LeakyRelu", "MatMul", "MaxPool", "Mul", "Pow", "ReduceMean", "Relu",
        "Reshape", "Sigmoid", "Softmax", "Softplus", "Sqrt", "Squeeze", "Sub", "Tanh", "Transpose",
        "Unsqueeze",
    )
)  # fmt: skip
ELEMENTS = 2**26  # of a sample within the model, at most


@dataclass(frozen=True)
class Format:
    """A file's suffix, and the packages beyond the project's own that writing it needs."""

    suffix: str
    packages: tuple[str, ...] = ()


FORMATS: dict[FormatName, Format] = {
    "onnx": Format(".onnx", ("onnx", "onnxscript", "onnxruntime")),
    "torch": Format(".pt2"),
    "safetensors": Format(".safetensors", ("safetensors",)),
}


@dataclass(frozen=True)
class Plan:
    """What is exported and where to, checked as far as it can be without torch."""

    checkpoint: Path
    format: FormatName
    output: Path


def plan(path: Path, format_: FormatName, output: Path | None, *, force: bool) -> Plan:
    """`path` is a run folder or a checkpoint file; `output` None is the model beside it.

    Raises InputError with every fault at once: no model there, a file in the way without `force`,
    a suffix of another format, and packages that are not installed.
    """
    faults: list[str | None] = []
    checkpoint = None
    try:
        checkpoint = checkpoint_of(path)
    except InputError as error:
        faults.append(str(error))
    faults.append(missing(f"--format {format_}", "export", FORMATS[format_].packages))
    if output is not None or checkpoint is not None:
        output = output or default_output(path, format_)
        faults += _output_faults(output, format_, force)
    found = [fault for fault in faults if fault is not None]
    if found or checkpoint is None or output is None:
        raise all_at_once(found, "nothing was exported")
    return Plan(checkpoint, format_, output)


def default_output(path: Path, format_: FormatName) -> Path:
    """RUN/model.onnx of a run folder; of a checkpoint file its own name with the suffix."""
    suffix = FORMATS[format_].suffix
    return path / f"model{suffix}" if path.is_dir() else path.with_suffix(suffix)


def _output_faults(output: Path, format_: FormatName, force: bool) -> list[str]:
    suffix = FORMATS[format_].suffix
    others = {other.suffix: name for name, other in FORMATS.items() if name != format_}
    faults = []
    if output.suffix in others:
        faults.append(
            f"--output {output}: names another format; type --format {others[output.suffix]}, or "
            f"--output {output.with_suffix(suffix)}"
        )
    if output.is_dir():
        faults.append(f"--output {output}: is a folder; type --output {output / f'model{suffix}'}")
    elif output.exists() and not force:
        faults.append(f"{output}: is there already; type --force to replace it, or --output FILE")
    elif not output.parent.is_dir():
        faults.append(f"--output {output}: there is no folder {output.parent}; make it first")
    return faults


# --- what a file says of itself --------------------------------------------------------------


class Description(BaseModel):
    """The metadata of an exported model: enough to feed it, to name its answers, to rebuild it.

    Each field is one text of the file's metadata, in JSON where it is no text already.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    version: str  # of the project
    config_hash: str
    checkpoint_sha256: str  # of the checkpoint file that was exported
    data: str  # the data set that the model was trained on
    labels: list[str]  # of the logits, in their order
    shape: list[Size]  # of one sample within the model
    input_shape: list[Size]  # of one sample as the exported model takes it
    input_dtype: Literal["uint8", "float32"]  # uint8 is divided by 255 within
    dtype: Literal["float32", "float64"]  # of weights and logits
    columns: Columns | None  # of a table: what makes its rows the inputs
    config: dict[str, Any]

    def to_metadata(self) -> dict[str, str]:
        return {
            key: value if isinstance(value, str) else json.dumps(value)
            for key, value in self.model_dump().items()
        }

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str], path: Path) -> "Description":
        """Raises InputError when a text is absent or not what it should be."""
        texts = {name for name, field in cls.model_fields.items() if field.annotation is str}
        texts |= {"input_dtype", "dtype"}
        try:
            values = {
                name: metadata[name] if name in texts else json.loads(metadata[name])
                for name in cls.model_fields
                if name in metadata
            }
            return cls.model_validate(values)
        except (ValidationError, ValueError, RecursionError) as error:
            raise InputError(
                f"{path}: was not exported by this project, its metadata cannot be read "
                f"({_first_words(error)})"
            ) from None


def input_shape(shape: Sequence[int]) -> list[int]:
    """Of one sample for an exported model: a picture of one channel comes without its channel."""
    return list(shape[1:] if len(shape) == 3 and shape[0] == 1 else shape)


def _first_words(error: Exception) -> str:
    return str(error).replace("\n", " ")[:200]


# --- ONNX ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OnnxModel:
    """A model that onnxruntime runs, on the CPU."""

    session: Any  # an onnxruntime.InferenceSession; the package has no types
    description: Description

    def logits(self, inputs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Inputs (N, *input_shape) of input_dtype, to logits (N, classes) of dtype."""
        (found,) = self.session.run([OUTPUT], {INPUT: inputs})
        assert isinstance(found, np.ndarray)
        return found


def _check_graph(content: bytes) -> None:
    """Raises ValueError for a model that the export never writes: one with other operators, with
    weights in other files, or whose values may be larger for a sample than ELEMENTS.

    Without it a file of some bytes lets onnxruntime compute for ever, or fill the memory.
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
    del graph.value_info[:]  # what it says itself of its shapes
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
    """`threads` 0: as many as there are cores.

    Raises InputError when the file is no ONNX model, is none of this project, does not take and
    give what its metadata say, or has an operation that onnxruntime lacks for its precision. The
    content is read here, not by onnxruntime, which so follows no path out of it.
    """
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # it reports home, and tells when it cannot
    import onnxruntime

    content = read_bounded(path, ONNX_LIMIT)
    try:
        _check_graph(content)
    except Exception as error:  # a parser over what may be hostile bytes
        raise InputError(f"{path}: cannot be read as ONNX ({_first_words(error)})") from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what it has to say is in the exception too
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        session = onnxruntime.InferenceSession(
            content, options, ["CPUExecutionProvider"], enable_fallback=0
        )
        metadata = session.get_modelmeta().custom_metadata_map
        found = [
            (value.name, value.type, value.shape[1:])
            for value in (*session.get_inputs(), *session.get_outputs())
        ]
    except Exception as error:
        raise InputError(f"{path}: onnxruntime cannot run it ({_first_words(error)})") from None
    description = Description.from_metadata(metadata, path)
    kinds = {"uint8": "uint8", "float32": "float", "float64": "double"}
    expected = [
        (INPUT, f"tensor({kinds[description.input_dtype]})", description.input_shape),
        (OUTPUT, f"tensor({kinds[description.dtype]})", [len(description.labels)]),
    ]
    if found != expected:
        raise InputError(f"{path}: has {found}, its metadata say {expected}")
    return OnnxModel(session, description)
