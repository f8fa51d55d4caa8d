"""A trained model as a file for other programs, equal to the model on the whole test set.

ONNX for every runtime, torch.export's archive for torch without this project, safetensors for this
project and for whoever wants the weights alone. The first two take samples as their data set has
them: of pictures the bytes, with the scaling part of the graph.
"""

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from src.config import schema
from src.data.loader import CHUNK
from src.data.sources.source import Source, Split, as_float
from src.inference.evaluation import source_of
from src.inference.formats import (
    ANOTHER,
    INPUT,
    OUTPUT,
    Description,
    FormatName,
    Plan,
    input_shape,
    open_onnx,
)
from src.runs.loading import Trained, open_trained, rebuild
from src.system.errors import InputError, first_line
from src.system.files import MIB, open_regular, replacing, sha256
from src.system.resources import versions

if TYPE_CHECKING:
    import onnx

# Largest difference of two logits, as a part of the largest logit, or of 1 where all are smaller:
# some thousand roundings, while a wrong weight or scale shows in the first digits.
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-12}
SAFETENSORS_LIMIT = 16 * 1024 * MIB  # bytes
HEADER_LIMIT = MIB  # bytes of a safetensors file's own description
ARCHIVE_NOTE = "kindling.json"  # the metadata, within torch.export's archive

Runner = Callable[[Tensor], Tensor]


class Raw(nn.Module):
    """A model behind its normalisation, as it is exported.

    Takes (N, *input_shape) of the data set's own type, and gives logits (N, classes).
    """

    def __init__(self, model: nn.Module, *, adds_channel: bool) -> None:
        super().__init__()
        self.model, self.adds_channel = model, adds_channel
        self.dtype = next(model.parameters()).dtype

    def forward(self, inputs: Tensor) -> Tensor:
        features = as_float(inputs).to(self.dtype)
        logits: Tensor = self.model(features.unsqueeze(1) if self.adds_channel else features)
        return logits


@dataclass(frozen=True)
class Exported:
    """A file that was written, and how far its logits are from the model's."""

    output: Path
    description: Description
    bytes: int
    samples: int
    difference: float
    allowed: float
    accuracy: float


def export(plan: Plan) -> Exported:
    """Writes the file, loads it again, compares it with the model, and only then puts it there.

    Raises InputError when the checkpoint is damaged, the test set cannot be had, the logits
    differ, or onnxruntime lacks an operation; whatever was at the target is then as it was.
    """
    digest = sha256(plan.checkpoint)  # before it is opened: a run that goes on may replace it
    trained = open_trained(plan.checkpoint)
    source = source_of(trained)
    if source.name != trained.data:
        reason = (source.instead_of or source.name).partition(", because ")[2]
        raise InputError(
            f"data={trained.data}: the exported model is compared on its test set, which cannot be "
            f"had: {reason}; type DATA_ROOT=FOLDER before the command, with the folder that has it"
        )
    description = describe_model(trained, source, digest)
    write, load = FORMS[plan.format]
    with replacing(plan.output) as part:
        write(trained, description, part)
        try:
            run = load(part)
        except InputError as error:
            reason = str(error).removeprefix(f"{part}: ")
            raise InputError(f"{plan.output}: was not written: {reason}{ANOTHER}") from None
        difference, allowed, accuracy = compare(trained, source.test, run)
        if not difference <= allowed:  # also for NaN
            raise InputError(
                f"{plan.output}: was not written: the logits of --format {plan.format} differ "
                f"from the model's by up to {difference:.2g} on {len(source.test)} test samples "
                f"of {source.name}, allowed is {allowed:.2g}{ANOTHER}"
            )
        size = part.stat().st_size
    return Exported(plan.output, description, size, len(source.test), difference, allowed, accuracy)


def describe_model(trained: Trained, source: Source, digest: str) -> Description:
    example = source.test.take(slice(1)).features
    dtypes = {torch.uint8: "uint8", torch.float32: "float32", torch.float64: "float64"}
    return Description.model_validate(
        {
            "version": versions().get("kindling", "unknown"),
            "config_hash": trained.config.hash(),
            "checkpoint_sha256": digest,
            "data": trained.data,
            "labels": list(trained.labels),
            "columns": trained.columns,
            "shape": list(trained.shape),
            "input_shape": input_shape(trained.shape),
            "input_dtype": dtypes[example.dtype],
            "dtype": dtypes[next(trained.model.parameters()).dtype],
            "config": trained.config.to_primitives(),
        }
    )


def compare(trained: Trained, test: Split, run: Runner) -> tuple[float, float, float]:
    """Largest difference of the logits, what is allowed, and the accuracy of what was loaded.

    The model is asked by itself, in the precision of its weights; the first sample goes alone, so
    that batches of several sizes are tried.
    """
    bounds = sorted({0, 1, *range(0, len(test), CHUNK), len(test)})
    difference, largest, hits = 0.0, 1.0, 0
    dtype = next(trained.model.parameters()).dtype
    with torch.inference_mode():
        for first, last in pairwise(bounds):
            part = test.take(slice(first, last))
            features = part.features
            expected = trained.model(as_float(features).to(dtype))
            if not expected.isfinite().all():
                raise InputError(
                    f"{trained.checkpoint}: its logits on {trained.data} are not all finite, it "
                    "diverged; name another run"
                )
            found = run(features.reshape(-1, *input_shape(trained.shape)))
            if found.shape != expected.shape or found.dtype != expected.dtype:
                raise InputError(
                    f"{trained.checkpoint}: its export gives {found.dtype} {tuple(found.shape)}, "
                    f"expected {expected.dtype} {tuple(expected.shape)}{ANOTHER}"
                )
            differences = (found - expected).abs()
            difference = max(difference, differences.nan_to_num(torch.inf).max().item())
            largest = max(largest, expected.abs().max().item())
            hits += int((found.argmax(-1) == part.labels).sum())
    return difference, TOLERANCE[dtype] * largest, hits / len(test)


def report(found: Exported) -> str:
    about = found.description
    sizes = ", ".join(str(size) for size in about.input_shape)
    scaled = "0 to 255" if about.input_dtype == "uint8" else "as the data set has them"
    return (
        f"{found.output}: {found.bytes:,} bytes\n"
        f"{INPUT} {about.input_dtype} (N, {sizes}), {scaled}; "
        f"{OUTPUT} {about.dtype} (N, {len(about.labels)})\n"
        f"equal to the model on {found.samples:,} test samples of {about.data}: logits differ by "
        f"at most {found.difference:.1e} (allowed {found.allowed:.1e}), "
        f"accuracy {found.accuracy:.2%}"
    )


# --- the formats: how each is written, and run again -----------------------------------------


def _program(trained: Trained, description: Description) -> torch.export.ExportedProgram:
    """The graph of the model behind its normalisation, for any number of samples."""
    raw = Raw(trained.model, adds_channel=description.input_shape != description.shape).eval()
    dtype = torch.uint8 if description.input_dtype == "uint8" else torch.float32
    example = torch.zeros(2, *description.input_shape, dtype=dtype)
    with torch.no_grad():
        program = torch.export.export(
            raw, (example,), dynamic_shapes={INPUT: {0: torch.export.Dim("N")}}
        )
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:  # names of files and folders of this machine
                node.meta.pop("stack_trace", None)
    return program


def _write_onnx(trained: Trained, description: Description, path: Path) -> None:
    program = torch.onnx.export(
        _program(trained, description),
        dynamo=True,
        verbose=False,
        input_names=[INPUT],
        output_names=[OUTPUT],
        dynamic_shapes={INPUT: {0: torch.export.Dim("N")}},
    )
    assert program is not None
    model: onnx.ModelProto = program.model_proto
    for node in model.graph.node:  # how torch came to it, longer than the graph itself
        del node.metadata_props[:]
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
    """Of an archive that was written here: torch's own parts of it may be pickled."""
    return torch.export.load(io.BytesIO(path.read_bytes())).module()


def _write_safetensors(trained: Trained, description: Description, path: Path) -> None:
    from safetensors.torch import save

    weights = {name: value.contiguous() for name, value in trained.model.state_dict().items()}
    path.write_bytes(save(weights, description.to_metadata()))


def open_safetensors(path: Path) -> tuple[Raw, Description]:
    """The model of an exported .safetensors file behind its normalisation, rebuilt from its
    metadata and in eval mode.

    Raises InputError when the file is none, too large, or was not exported by this project.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with open_regular(path) as file:
            header = int.from_bytes(file.read(8), "little")
        if path.stat().st_size > SAFETENSORS_LIMIT or header > HEADER_LIMIT:
            raise ValueError(f"a header of {header:,} bytes")
        with safe_open(path, "pt") as content:
            metadata = content.metadata() or {}
            weights = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
    except (OSError, ValueError, SafetensorError) as error:
        raise InputError(f"{path}: cannot be read as safetensors ({error})") from None
    about = Description.from_metadata(metadata, path)
    try:
        config = schema.check(about.config)
        model = rebuild(config, tuple(about.shape), len(about.labels), weights)
    except (KeyError, TypeError, ValueError, RuntimeError, InputError) as error:
        raise InputError(
            f"{path}: was not exported by this project ({first_line(error)})"
        ) from None
    return Raw(model, adds_channel=about.input_shape != about.shape).eval(), about


def _run_safetensors(path: Path) -> Runner:
    return open_safetensors(path)[0]


Writer = Callable[[Trained, Description, Path], None]
FORMS: dict[FormatName, tuple[Writer, Callable[[Path], Runner]]] = {
    "onnx": (_write_onnx, _run_onnx),
    "torch": (_write_torch, _run_torch),
    "safetensors": (_write_safetensors, _run_safetensors),
}
