"""The formats of exported models, the checks of an export's arguments, a file's metadata, and ONNX
models, opened and run.

Imports no torch: wrong arguments are reported at once, and models are served without torch.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict

from kindling.config import schema
from kindling.config.measures import CLASSIFICATION, MULTILABEL, REGRESSION
from kindling.data.tables.columns import Columns
from kindling.records.folder import Members, Size
from kindling.records.lookup import checkpoint_of, config_of
from kindling.system.errors import InputError, all_at_once, parsing
from kindling.system.extras import missing
from kindling.system.files import read_bounded, why_not_writable
from kindling.system.units import MIB

FormatName = Literal["onnx", "torch", "safetensors"]
INPUT = "inputs"
OUTPUTS = {CLASSIFICATION: "logits", REGRESSION: "numbers", MULTILABEL: "probabilities"}
# The second output of a committee: of classes, log probabilities (N, members, classes); of other
# tasks, what each member says.
MEMBERS = "members"
ANOTHER = "; try another --format"  # the end of messages about a failed export
ONNX_LIMIT = 2048 * MIB  # bytes; protobuf has no larger message
# The operators of exported models. None of them takes a size, a path, a subgraph or a random
# number from the file.
OPERATORS = frozenset(
    (
        "Abs", "Add", "And", "ArgMax", "ArgMin", "AveragePool", "BatchNormalization", "Cast",
        "Ceil", "Celu", "Clip", "Concat", "Conv", "Cos", "CumSum", "Div", "Elu", "Equal", "Erf",
        "Exp", "Flatten", "Floor", "Gather", "Gelu", "Gemm", "GlobalAveragePool",
        "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity",
        "InstanceNormalization", "LayerNormalization", "LeakyRelu", "Less", "LessOrEqual", "Log",
        "LogSoftmax", "MatMul", "Max", "MaxPool", "Mean", "Min", "Mish", "Mul", "Neg", "Not", "Or",
        "PRelu", "Pow", "Reciprocal", "ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceMax",
        "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Relu", "Reshape",
        "Round", "Selu", "Shape", "Sigmoid", "Sign", "Sin", "Slice", "Softmax", "Softplus",
        "Softsign", "Split", "Sqrt", "Squeeze", "Sub", "Sum", "Tanh", "TopK", "Transpose",
        "Unsqueeze", "Where",
    )
)  # fmt: skip
ELEMENTS = 2**26  # at most, of any value in the graph for one sample


class Format(NamedTuple):
    """The suffix of the file, and the optional packages that writing it needs."""

    suffix: str
    packages: tuple[str, ...] = ()


FORMATS: dict[FormatName, Format] = {
    "onnx": Format(".onnx", ("onnx", "onnxscript", "onnxruntime")),
    "torch": Format(".pt2"),
    "safetensors": Format(".safetensors", ("safetensors",)),
}


@dataclass(frozen=True)
class ExportPlan:
    """The arguments of an export, checked as far as possible without torch."""

    checkpoint: Path
    format: FormatName
    output: Path
    columns: bool = False  # whether the model takes a table's columns as they are


def plan(
    path: Path,
    format_: FormatName,
    output: Path | None,
    *,
    force: bool = False,
    columns: bool = False,
) -> ExportPlan:
    """Checks the arguments; `path` is a run folder or a checkpoint file.

    Raises InputError with all faults: no model in the path, an existing file without `force`, a
    suffix of another format, missing packages; `columns` with another format than ONNX or without a
    table.
    """
    faults: list[str] = []
    checkpoint = None
    try:
        checkpoint = checkpoint_of(path)
        output = output or default_output(path, format_)
    except InputError as error:
        faults.append(str(error))
    suffix, packages = FORMATS[format_]
    faults += missing(f"--format {format_}", "export", packages)
    if output is not None:
        named = next((name for name in FORMATS if FORMATS[name].suffix == output.suffix), format_)
        if named != format_:
            faults.append(
                f"--output {output}: names another format; type --format {named}, or "
                f"--output {output.with_suffix(suffix)}"
            )
        faults += why_not_writable("--output", output, f"model{suffix}", force=force)
    if columns and format_ != "onnx":
        faults.append(f"--columns: works with --format onnx, not {format_}; leave one of them out")
    config = config_of(path) if checkpoint else None
    if columns and config and not isinstance(config.data, schema.Csv):
        faults.append(no_columns(path, config.data.name))
    if faults or checkpoint is None or output is None:
        raise all_at_once(faults, "nothing was exported")
    return ExportPlan(checkpoint, format_, output, columns)


def no_columns(path: Path, data: str) -> str:
    """The fault of --columns for a model that was not trained on a table."""
    return f"--columns: {path} was trained on data={data}, not on a table; leave --columns out"


def default_output(path: Path, format_: FormatName) -> Path:
    """RUN/model.onnx for a run folder; for a checkpoint file, its name with the new suffix."""
    suffix = FORMATS[format_].suffix
    return path / f"model{suffix}" if path.is_dir() else path.with_suffix(suffix)


class Metadata(BaseModel):
    """The metadata of an exported model: its inputs, its outputs, and how to rebuild it. Each field
    is a text in the file's metadata, in JSON unless it is a text already."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    version: str  # of the project
    config_hash: str
    checkpoint_sha256: str  # of the checkpoint file that was exported
    data: str  # the data set that the model was trained on
    task: Literal["classification", "regression", "multilabel"] = "classification"
    labels: list[str]  # the names of the classes, labels or numbers, in the order of the outputs
    shape: list[Size]  # of one sample within the model
    input_shape: list[Size]  # of one sample as the exported model takes it
    input_dtype: Literal["uint8", "float32"]  # the exported model divides uint8 by 255
    dtype: Literal["float32", "float64"]  # of weights and logits; numbers are float64
    columns: Columns | None  # of a table: how its rows become inputs
    # Whether the model contains `columns`, so that each column is an input of its own.
    raw_columns: bool = False
    config: dict[str, Any]
    # Of a regression. The exported model contains them: its numbers are in their own unit.
    targets: dict[str, list[float] | bool] | None = None
    # Of each label, the quantiles that are its outputs, side by side.
    quantiles: list[float] | None = None
    members: Members | None = None  # of a committee, whose `config` is that of the first

    @property
    def outputs(self) -> int:
        return len(self.labels) * len(self.quantiles or [0.5])

    @property
    def output(self) -> str:
        """The name of the first output."""
        return OUTPUTS[self.task]

    @property
    def output_names(self) -> list[str]:
        return [self.output, *[MEMBERS] * (self.members is not None)]

    @property
    def output_dtype(self) -> str:
        return self.dtype if self.targets is None else "float64"

    def to_texts(self) -> dict[str, str]:
        return {
            key: value if isinstance(value, str) else json.dumps(value)
            for key, value in self.model_dump().items()
        }

    @classmethod
    def from_texts(cls, metadata: Mapping[str, str], path: Path) -> "Metadata":
        """Raises InputError when a field is absent or wrong; `path` is named in the message."""
        texts = {name for name, field in cls.model_fields.items() if field.annotation is str}
        texts |= {"input_dtype", "dtype", "task"}
        with parsing(f"{path}: was not exported by this project, its metadata cannot be read"):
            values = {
                name: metadata[name] if name in texts else json.loads(metadata[name])
                for name in cls.model_fields
                if name in metadata
            }
            return cls.model_validate(values)


def input_shape(shape: Sequence[int]) -> list[int]:
    """The shape of one sample for an exported model: grey pictures have no channel axis."""
    return list(shape[1:] if len(shape) == 3 and shape[0] == 1 else shape)


@dataclass(frozen=True)
class OnnxModel:
    """A model that onnxruntime runs on the CPU."""

    session: Any  # an onnxruntime.InferenceSession; the package has no types
    metadata: Metadata

    def logits(self, inputs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Logits (N, classes) of `dtype` for inputs (N, *input_shape) of `input_dtype`; of other
        tasks, the first output: numbers in their unit, float64, or the probability of each label.
        """
        (logits,) = self.session.run([self.metadata.output], {INPUT: inputs})
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
            raise ValueError(
                f"it has the operator {node.op_type[:80]}, which is none of those that are trusted"
            )
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


def session_of(content: bytes, path: Path, threads: int = 0) -> Any:
    """onnxruntime's session, for the CPU, of a model that is trusted; `path` is for messages.
    `threads` 0 means one per core. Raises InputError when onnxruntime lacks an operation in its
    precision."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # onnxruntime reports home, and warns if it cannot
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # the exceptions say the same
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    with parsing(f"{path}: onnxruntime cannot run it"):
        return onnxruntime.InferenceSession(
            content, options, ["CPUExecutionProvider"], enable_fallback=0
        )


def open_onnx(path: Path, *, threads: int = 0) -> OnnxModel:
    """Opens an exported model that takes prepared features; `threads` as in `session_of`.

    Raises InputError when the file is not an ONNX model of this project, when inputs or outputs
    differ from its metadata, and as `session_of`. onnxruntime gets the content, not the path, so
    that it cannot open files that the content names.
    """
    content = read_bounded(path, ONNX_LIMIT)
    with parsing(f"{path}: cannot be read as ONNX"):
        _check_graph(content)
    session = session_of(content, path, threads)
    with parsing(f"{path}: onnxruntime cannot run it"):
        texts = session.get_modelmeta().custom_metadata_map
        actual = [
            (value.name, value.type, value.shape[1:])
            for value in (*session.get_inputs(), *session.get_outputs())
        ]
    metadata = Metadata.from_texts(texts, path)
    kinds = {"uint8": "uint8", "float32": "float", "float64": "double"}
    expected = [
        (INPUT, f"tensor({kinds[metadata.input_dtype]})", metadata.input_shape),
        (metadata.output, f"tensor({kinds[metadata.output_dtype]})", [metadata.outputs]),
    ]
    if metadata.members is not None:
        shape = [len(metadata.members), metadata.outputs]
        expected.append((MEMBERS, f"tensor({kinds[metadata.output_dtype]})", shape))
    if actual != expected:
        raise InputError(f"{path}: has {actual}, its metadata say {expected}")
    return OnnxModel(session, metadata)
