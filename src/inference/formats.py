"""The formats of exported models, the checks of an export's arguments, and a file's metadata.

Imports no torch: wrong arguments are reported at once, and models are served without torch.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from src.data.tables import Columns
from src.runs.folder import Members, Size
from src.runs.weights import checkpoint_of
from src.system.errors import InputError, all_at_once, parsing
from src.system.extras import missing
from src.system.files import why_not_writable

FormatName = Literal["onnx", "torch", "safetensors"]
INPUT, OUTPUT = "inputs", "logits"
MEMBERS = "members"  # the second output of a committee: log probabilities (N, members, classes)
ANOTHER = "; try another --format"  # the end of messages about a failed export


@dataclass(frozen=True)
class Format:
    """The suffix of the file, and the optional packages that writing it needs."""

    suffix: str
    packages: tuple[str, ...] = ()


FORMATS: dict[FormatName, Format] = {
    "onnx": Format(".onnx", ("onnx", "onnxscript", "onnxruntime")),
    "torch": Format(".pt2"),
    "safetensors": Format(".safetensors", ("safetensors",)),
}


@dataclass(frozen=True)
class Plan:
    """The arguments of an export, checked as far as possible without torch."""

    checkpoint: Path
    format: FormatName
    output: Path


def plan(path: Path, format_: FormatName, output: Path | None, *, force: bool) -> Plan:
    """Checks the arguments; `path` is a run folder or a checkpoint file.

    Raises InputError with all faults: no model in the path, an existing file without `force`, a
    suffix of another format, missing packages.
    """
    faults: list[str] = []
    checkpoint = None
    try:
        checkpoint = checkpoint_of(path)
        output = output or default_output(path, format_)
    except InputError as error:
        faults.append(str(error))
    faults += missing(f"--format {format_}", "export", FORMATS[format_].packages)
    if output is not None:
        faults += _output_faults(output, format_, force)
    if faults or checkpoint is None or output is None:
        raise all_at_once(faults, "nothing was exported")
    return Plan(checkpoint, format_, output)


def default_output(path: Path, format_: FormatName) -> Path:
    """RUN/model.onnx for a run folder; for a checkpoint file, its name with the new suffix."""
    suffix = FORMATS[format_].suffix
    return path / f"model{suffix}" if path.is_dir() else path.with_suffix(suffix)


def _output_faults(output: Path, format_: FormatName, force: bool) -> list[str]:
    suffix = FORMATS[format_].suffix
    others = {other.suffix: name for name, other in FORMATS.items() if name != format_}
    faults = why_not_writable("--output", output, f"model{suffix}", force=force)
    if output.suffix not in others:
        return faults
    another = (
        f"--output {output}: names another format; type --format {others[output.suffix]}, or "
        f"--output {output.with_suffix(suffix)}"
    )
    return [another, *faults]


class Description(BaseModel):
    """The metadata of an exported model: its inputs, its outputs, and how to rebuild it. Each field
    is a text in the file's metadata, in JSON unless it is a text already."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    version: str  # of the project
    config_hash: str
    checkpoint_sha256: str  # of the checkpoint file that was exported
    data: str  # the data set that the model was trained on
    labels: list[str]  # the names of the classes, in the order of the logits
    shape: list[Size]  # of one sample within the model
    input_shape: list[Size]  # of one sample as the exported model takes it
    input_dtype: Literal["uint8", "float32"]  # the exported model divides uint8 by 255
    dtype: Literal["float32", "float64"]  # of weights and logits
    columns: Columns | None  # of a table: how its rows become inputs
    config: dict[str, Any]
    members: Members | None = None  # of a committee, whose `config` is that of the first

    def to_metadata(self) -> dict[str, str]:
        return {
            key: value if isinstance(value, str) else json.dumps(value)
            for key, value in self.model_dump().items()
        }

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str], path: Path) -> "Description":
        """Raises InputError when a field is absent or wrong; `path` is named in the message."""
        texts = {name for name, field in cls.model_fields.items() if field.annotation is str}
        texts |= {"input_dtype", "dtype"}
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
