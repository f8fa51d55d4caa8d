"""The formats of exported models: how each is written, and run again.

ONNX is for every runtime, torch.export's archive for torch without this project, safetensors for
this project. The first two contain the scaling, so they take pictures as bytes.
"""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from src.config.faults import check
from src.data.sources.source import as_float
from src.inference.formats import INPUT, MEMBERS, OUTPUT, Description, FormatName
from src.inference.onnx_model import open_onnx
from src.models.committee import Committee, log_mean, logits_dtype
from src.runs.loading import Trained, rebuild, rebuild_committee
from src.system.errors import InputError, first_line, parsing
from src.system.files import MIB, open_regular

if TYPE_CHECKING:
    import onnx

SAFETENSORS_LIMIT = 16 * 1024 * MIB  # bytes
HEADER_LIMIT = MIB  # bytes of a safetensors file's own description
ARCHIVE_NOTE = "kindling.json"  # the metadata, within torch.export's archive

Runner = Callable[[Tensor], Tensor]


class Raw(nn.Module):
    """A model with its input scaling, as it is exported. Takes inputs (N, *input_shape) in the data
    set's own type; returns logits (N, classes). A committee also returns the logarithm of its
    members' probabilities, (N, members, classes)."""

    def __init__(self, model: nn.Module, *, adds_channel: bool) -> None:
        super().__init__()
        self.model, self.adds_channel = model, adds_channel
        self.dtype = logits_dtype(model)

    def forward(self, inputs: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        features = as_float(inputs).to(self.dtype)
        features = features.unsqueeze(1) if self.adds_channel else features
        if isinstance(self.model, Committee):
            members = self.model.log_probabilities(features)
            return log_mean(members, self.model.votes), members
        logits: Tensor = self.model(features)
        return logits


def _program(trained: Trained, description: Description) -> torch.export.ExportedProgram:
    """The graph of the model with its input scaling, for any number of samples."""
    raw = Raw(trained.model, adds_channel=description.input_shape != description.shape).eval()
    dtype = torch.uint8 if description.input_dtype == "uint8" else torch.float32
    example = torch.zeros(2, *description.input_shape, dtype=dtype)
    with torch.no_grad():
        program = torch.export.export(
            raw, (example,), dynamic_shapes={INPUT: {0: torch.export.Dim("N")}}
        )
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                node.meta.pop("stack_trace", None)  # it names files of this machine
    return program


def _write_onnx(trained: Trained, description: Description, path: Path) -> None:
    program = torch.onnx.export(
        _program(trained, description),
        dynamo=True,
        verbose=False,
        input_names=[INPUT],
        output_names=[OUTPUT, *[MEMBERS] * (description.members is not None)],
        dynamic_shapes={INPUT: {0: torch.export.Dim("N")}},
    )
    assert program is not None
    model: onnx.ModelProto = program.model_proto
    for node in model.graph.node:
        del node.metadata_props[:]  # torch's own notes, longer than the graph itself
    del model.metadata_props[:]
    for key, value in description.to_metadata().items():
        model.metadata_props.add(key=key, value=value)
    path.write_bytes(model.SerializeToString())


def _run_onnx(path: Path) -> Runner:
    model = open_onnx(path)
    return lambda inputs: torch.from_numpy(model.logits(inputs.numpy()))


def _write_torch(trained: Trained, description: Description, path: Path) -> None:
    archive = io.BytesIO()
    notes = {ARCHIVE_NOTE: json.dumps(description.to_metadata())}
    torch.export.save(_program(trained, description), archive, extra_files=notes)
    path.write_bytes(archive.getvalue())


def _run_torch(path: Path) -> Runner:
    """Only for an archive that was just written: torch may unpickle parts of it."""
    return _logits_of(torch.export.load(io.BytesIO(path.read_bytes())).module())


def _logits_of(model: Callable[[Tensor], Tensor | tuple[Tensor, Tensor]]) -> Runner:
    """Leaves out the second output of a committee."""

    def run(inputs: Tensor) -> Tensor:
        outputs = model(inputs)
        return outputs[0] if isinstance(outputs, tuple) else outputs

    return run


def _write_safetensors(trained: Trained, description: Description, path: Path) -> None:
    from safetensors.torch import save

    weights = {name: value.contiguous() for name, value in trained.model.state_dict().items()}
    path.write_bytes(save(weights, description.to_metadata()))


def open_safetensors(path: Path) -> tuple[Raw, Description]:
    """The model in eval mode and the metadata of an exported .safetensors file. Raises InputError
    when the file is too large or was not exported by this project."""
    from safetensors import safe_open

    with parsing(f"{path}: cannot be read as safetensors"):
        with open_regular(path) as file:
            header = int.from_bytes(file.read(8), "little")
        if path.stat().st_size > SAFETENSORS_LIMIT or header > HEADER_LIMIT:
            raise ValueError(f"a header of {header:,} bytes")
        with safe_open(path, "pt") as content:
            metadata = content.metadata() or {}
            weights = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
    description = Description.from_metadata(metadata, path)
    try:
        config = check(description.config)
        shape, classes = tuple(description.shape), len(description.labels)
        model: nn.Module
        if description.members is None:
            model = rebuild(config, shape, classes, weights)
        else:
            _, model = rebuild_committee(description.members, shape, classes, weights)
    except (KeyError, TypeError, ValueError, RuntimeError, InputError) as error:
        reason = first_line(error)
        raise InputError(f"{path}: was not exported by this project ({reason})") from None
    adds_channel = description.input_shape != description.shape
    return Raw(model, adds_channel=adds_channel).eval(), description


Writer = Callable[[Trained, Description, Path], None]
WRITERS: dict[FormatName, tuple[Writer, Callable[[Path], Runner]]] = {
    "onnx": (_write_onnx, _run_onnx),
    "torch": (_write_torch, _run_torch),
    "safetensors": (_write_safetensors, lambda path: _logits_of(open_safetensors(path)[0])),
}
