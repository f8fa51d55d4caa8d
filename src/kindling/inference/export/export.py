"""Exports a trained model as a file, and compares the file with the model on the whole test set.

ONNX is for every runtime, torch.export's archive for torch without this project, safetensors for
this project. The first two contain the scaling, so they take pictures as bytes, and give numbers of
a regression in their own unit. Of classes, a model gives logits; of several labels, probabilities.
"""

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kindling.config import registry, schema
from kindling.config.faults import check
from kindling.config.measures import QUANTILES, in_words, score_of
from kindling.data.loader import CHUNK
from kindling.data.sources.csv import rows_of_test
from kindling.data.sources.source import Split, as_float
from kindling.data.tables.columns import DateColumn, NumberColumn, TextColumn
from kindling.data.targets import Targets, require_scaling, spread
from kindling.inference.export.formats import (
    ANOTHER,
    FORMATS,
    INPUT,
    MEMBERS,
    ExportPlan,
    FormatName,
    Metadata,
    input_shape,
    no_columns,
    open_onnx,
    session_of,
)
from kindling.inference.export.raw_columns import input_names, raw_inputs, with_columns
from kindling.inference.samples import source_of
from kindling.models.committee import Committee, logits_dtype
from kindling.records.loading import Reading, Trained, open_trained, rebuild, rebuild_committee
from kindling.records.outcome import format_metric
from kindling.system.errors import InputError, first_line, parsing
from kindling.system.files import open_regular, replacing, sha256
from kindling.system.process import status_line
from kindling.system.resources import versions
from kindling.system.units import MIB, size
from kindling.tasks.task import Task, build_task

if TYPE_CHECKING:
    import onnx

# The largest allowed difference of two logits, as a share of the largest logit, or of 1 where all
# are smaller: about a thousand roundings. A wrong weight or scale shows in the first digits.
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-12}
DTYPES = {torch.uint8: "uint8", torch.float32: "float32", torch.float64: "float64"}
SAFETENSORS_LIMIT = 16 * 1024 * MIB  # bytes
HEADER_LIMIT = MIB  # bytes of a safetensors file's own description
INPUTS_SHOWN = 8  # names, in a line about them
INPUTS_IN_WORDS = {
    NumberColumn: "numbers double, NaN where empty",
    TextColumn: 'texts string, "" where empty',
    DateColumn: "dates double, seconds since 1970, NaN where empty",
}
ARCHIVE_NOTE = "kindling.json"  # the metadata, within torch.export's archive

Outputs = Tensor | tuple[Tensor, Tensor]  # a committee has a second output, of its members
Runner = Callable[[Tensor], Outputs]
Loader = Callable[[Path], Runner]
Rows = Mapping[str, NDArray[Any]]  # of a table, by the names of the inputs
Asked = Callable[[slice], Outputs]  # what an exported model says of some samples of the test set


@dataclass(frozen=True)
class Exported:
    """A file that was written, and its comparison with the model on the test set."""

    output: Path
    metadata: Metadata
    bytes: int
    samples: int
    difference: float  # of two logits, probabilities, or numbers in deviations, at most
    allowed: float
    score: float  # of the exported model, as config/measures.py names it


def export(plan: ExportPlan) -> Exported:
    """Writes a temporary file, compares it with the model, and moves it to its target. Raises
    InputError when the checkpoint is damaged, the test set cannot be loaded, the logits differ, or
    onnxruntime lacks an operation. The target is then unchanged."""
    digest = sha256(plan.checkpoint)  # before it is opened: a resumed run may replace it
    trained = open_trained(plan.checkpoint)
    source = source_of(trained)
    if source.name != trained.data:
        reason = (source.instead_of or source.name).partition(", because ")[2]
        raise InputError(
            f"data={trained.data}: the test set is needed for a comparison, but cannot be loaded: "
            f"{reason}; type DATA_ROOT=FOLDER before the command, with the folder that has it"
        )
    test = source.test
    more = {
        "version": versions().get("kindling", "unknown"),
        "config_hash": trained.config.hash(),
        "checkpoint_sha256": digest,
        "input_shape": input_shape(trained.shape),
        "input_dtype": DTYPES[test.take(slice(1)).features.dtype],
        "dtype": DTYPES[logits_dtype(trained.model)],
        "raw_columns": plan.columns,
        "quantiles": [*QUANTILES] if trained.task.quantiles else None,
    }
    metadata = Metadata.model_validate(facts_of(trained) | more)
    rows = _test_rows(trained, metadata) if plan.columns else None
    write, load = WRITERS[plan.format]
    with replacing(plan.output) as temporary:
        with status_line(f"writing {plan.output} ..."):
            temporary.write_bytes(write(trained, metadata))
        try:
            asked = _asked(load, temporary, test, rows, metadata)
        except InputError as error:
            reason = str(error).removeprefix(f"{temporary}: ")
            raise InputError(f"{plan.output}: was not written: {reason}{ANOTHER}") from None
        difference, allowed, score = compare(trained, test, asked)
        if not difference <= allowed:  # also for NaN
            raise InputError(
                f"{plan.output}: was not written: the {metadata.output} of --format {plan.format} "
                f"differ from the model's by up to {difference:.2g} on {len(test):,} test samples "
                f"of {source.name}, allowed is {allowed:.2g}{ANOTHER}"
            )
        count = temporary.stat().st_size
    return Exported(plan.output, metadata, count, len(test), difference, allowed, score)


def facts_of(trained: Trained) -> dict[str, Any]:
    """What the file of a model says of it and of its data, in primitives."""
    members = None
    if isinstance(trained.model, Committee):
        pairs = zip(trained.members, trained.model.votes, strict=True)
        members = [_as_member(trained, each) | {"votes": votes} for each, votes in pairs]
    return {
        "config": trained.config.to_primitives(),
        "members": members,
        "task": trained.config.task.name,
        "data": trained.data,
        "shape": list(trained.shape),
        "labels": list(trained.labels),
        "digest": trained.digest,
        "columns": None if trained.columns is None else trained.columns.model_dump(),
        "targets": None if trained.targets is None else trained.targets.model_dump(),
    }


def _as_member(committee: Trained, member: Trained) -> dict[str, Any]:
    """The facts of a member that its committee does not have."""
    found: dict[str, Any] = {"config": member.config.to_primitives()}
    if committee.columns is not None and committee.columns != member.columns:
        assert member.columns is not None
        found["columns"] = committee.columns.places_of(member.columns.columns)
    if member.targets is not None and committee.targets != member.targets:
        found["targets"] = member.targets.model_dump()
    return found


def compare(trained: Trained, test: Split, asked: Asked) -> tuple[float, float, float]:
    """The largest difference of what the model says, the allowed difference, and the score of
    the exported model. Numbers are compared in their deviations.

    The model computes in the precision of its weights. The first batch has one sample, so that two
    batch sizes are tried. Raises InputError for infinite or NaN logits, and for another shape.
    """
    bounds = sorted({0, 1, *range(0, len(test), CHUNK), len(test)})
    difference, largest, total = 0.0, 1.0, 0.0
    dtype, task, targets = logits_dtype(trained.model), trained.task, trained.targets
    with torch.inference_mode():
        for first, last in pairwise(bounds):
            batch = test.take(slice(first, last))
            said = trained.model(as_float(batch.features).to(dtype))
            expected = _answers(task, targets, said)
            if not expected.isfinite().all():
                raise InputError(
                    f"{trained.checkpoint}: its logits on {trained.data} are not all finite, the "
                    "run diverged; name another run"
                )
            outputs = asked(slice(first, last))
            actual = outputs[0] if isinstance(outputs, tuple) else outputs
            if actual.shape != expected.shape or actual.dtype != expected.dtype:
                raise InputError(
                    f"{trained.checkpoint}: its export gives {actual.dtype} {tuple(actual.shape)}, "
                    f"expected {expected.dtype} {tuple(expected.shape)}{ANOTHER}"
                )
            outputs, numbers, differences = actual, expected, (actual - expected).abs()
            if targets is not None:
                outputs, numbers = map(targets.standardised, (actual, expected))
                one, zero = torch.ones_like(actual), torch.zeros_like(actual)
                differences /= targets.restored(one) - targets.restored(zero)
            elif task.says == "probabilities":
                outputs = actual.logit()
            difference = max(difference, differences.nan_to_num(torch.inf).max().item())
            largest = max(largest, numbers.abs().max().item())
            total += float(task.judge.scores(outputs.mT[None], batch.labels[None]).sum())
    score = task.score(total, len(test), spread(test.labels))
    return difference, TOLERANCE[dtype] * largest, score


def _test_rows(trained: Trained, metadata: Metadata) -> Rows:
    """The columns of the test set, by the names of the inputs. Raises InputError without them."""
    section, columns = trained.config.data, trained.columns
    if not isinstance(section, schema.Csv) or columns is None:
        raise InputError(no_columns(trained.checkpoint, trained.data))
    table = rows_of_test(section, trained.config.task)
    return raw_inputs(columns, input_names(columns, metadata.output_names), table)


def _asked(load: Loader, path: Path, test: Split, rows: Rows | None, metadata: Metadata) -> Asked:
    """Asks the file for the features of the test set, or for its `rows`."""
    if rows is None:
        run = load(path)
        return lambda part: run(test.take(part).features.reshape(-1, *metadata.input_shape))
    session = session_of(path.read_bytes(), path)

    def asked(part: slice) -> Tensor:
        inputs = {name: values[part] for name, values in rows.items()}
        return torch.from_numpy(session.run([metadata.output], inputs)[0])

    return asked


def _answers(task: Task, targets: Targets | None, outputs: Tensor) -> Tensor:
    """What an exported model says; numbers in their unit, in float64."""
    found = task.answers(outputs)
    return found if targets is None else targets.restored(found)


def report(exported: Exported) -> str:
    """The file, its inputs and outputs, and the comparison, in three lines."""
    about = exported.metadata
    sizes, score = ", ".join(map(str, about.input_shape)), score_of(about.task)
    unit = "" if about.targets is None or about.targets.get("raw") else " deviations"
    second = ""
    if about.members is not None and exported.output.suffix != FORMATS["safetensors"].suffix:
        second = f"; {MEMBERS} {about.output_dtype} (N, {len(about.members)}, {about.outputs})"
    takes = f"{INPUT} {about.input_dtype} (N, {sizes}), "
    if about.columns is None:
        takes += "0 to 255" if about.input_dtype == "uint8" else "as in the data set"
    elif about.raw_columns:
        names = input_names(about.columns, about.output_names)
        shown = ", ".join(names[:INPUTS_SHOWN]) + (", …" if names[INPUTS_SHOWN:] else "")
        kinds = {type(column) for column in about.columns.columns}
        told = "; ".join(words for kind, words in INPUTS_IN_WORDS.items() if kind in kinds)
        takes = f"an input (N, 1) for each column ({shown}): {told}"
    else:
        takes += "the table's columns prepared as the metadata `columns` say"
    return (
        f"{exported.output}: {size(exported.bytes)}\n"
        f"{takes}; "
        f"{about.output} {about.output_dtype} (N, {about.outputs}){second}\n"
        f"equal to the model on {exported.samples:,} test samples of {about.data}: {about.output} "
        f"differ by at most {exported.difference:.2g}{unit} (allowed {exported.allowed:.2g}), "
        f"{in_words(score)} {format_metric(score, exported.score)}"
    )


# --- the formats ---------------------------------------------------------------------------------


class Raw(nn.Module):
    """A model with the scaling of its inputs and of numbers, as it is exported. Takes inputs
    (N, *input_shape) in the data set's own type; returns logits (N, classes), probabilities or
    numbers. A committee also returns what its members say, (N, members, outputs); of classes, the
    logarithm of their probabilities."""

    def __init__(self, model: nn.Module, metadata: Metadata) -> None:
        super().__init__()
        self.model, self.adds_channel = model, metadata.input_shape != metadata.shape
        self.dtype = logits_dtype(model)
        self.task = build_task(check(metadata.config).task, len(metadata.labels))
        known = metadata.targets
        self.targets = None if known is None else Targets.model_validate(known)
        require_scaling(self.targets, self.task.section.name, len(metadata.labels))

    def forward(self, inputs: Tensor) -> Outputs:
        features = as_float(inputs).to(self.dtype)
        features = features.unsqueeze(1) if self.adds_channel else features
        if isinstance(self.model, Committee):
            members = self.model.opinions(features)
            mean = self.task.mean(members, self.model.votes)
            return self._answers(mean), self._answers(members)
        return self._answers(self.model(features))

    def _answers(self, outputs: Tensor) -> Tensor:
        return _answers(self.task, self.targets, outputs)


def _program(trained: Trained, metadata: Metadata) -> torch.export.ExportedProgram:
    """The graph of the model with its input scaling, for any number of samples."""
    raw = Raw(trained.model, metadata).eval()
    example = torch.zeros(2, *metadata.input_shape, dtype=getattr(torch, metadata.input_dtype))
    try:
        with torch.no_grad():
            program = torch.export.export(
                raw, (example,), dynamic_shapes={INPUT: {0: torch.export.Dim("N")}}
            )
    except Exception as error:
        own = ", ".join(registry.origins(trained.config.to_primitives()))
        if not own:
            raise
        raise InputError(
            f"{trained.checkpoint}: torch.export cannot follow what is not Kindling's ({own}): "
            f"{first_line(error)}; write it in operations of torch for any number of samples, or "
            "type --format safetensors"
        ) from error
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                node.meta.pop("stack_trace", None)  # it names files of this machine
    return program


def _write_onnx(trained: Trained, metadata: Metadata) -> bytes:
    program = torch.onnx.export(
        _program(trained, metadata),
        dynamo=True,
        verbose=False,
        input_names=[INPUT],
        output_names=metadata.output_names,
        dynamic_shapes={INPUT: {0: torch.export.Dim("N")}},
    )
    assert program is not None
    model: onnx.ModelProto = program.model_proto
    for node in model.graph.node:
        del node.metadata_props[:]  # torch's own notes, longer than the graph itself
    del model.metadata_props[:]
    if metadata.raw_columns:
        assert trained.columns is not None
        model = with_columns(model, trained.columns, INPUT)
    for key, value in metadata.to_texts().items():
        model.metadata_props.add(key=key, value=value)
    content: bytes = model.SerializeToString()
    return content


def _write_torch(trained: Trained, metadata: Metadata) -> bytes:
    archive = io.BytesIO()
    notes = {ARCHIVE_NOTE: json.dumps(metadata.to_texts())}
    torch.export.save(_program(trained, metadata), archive, extra_files=notes)
    return archive.getvalue()


def _write_safetensors(trained: Trained, metadata: Metadata) -> bytes:
    from safetensors.torch import save

    weights = {name: value.contiguous() for name, value in trained.model.state_dict().items()}
    return save(weights, metadata.to_texts())


def open_safetensors(path: Path) -> tuple[Raw, Metadata]:
    """The model in eval mode and the metadata of an exported .safetensors file. Raises InputError
    when the file is too large or was not exported by this project."""
    from safetensors import safe_open

    with parsing(f"{path}: cannot be read as safetensors"):
        with open_regular(path) as file:
            header = int.from_bytes(file.read(8), "little")
        if path.stat().st_size > SAFETENSORS_LIMIT or header > HEADER_LIMIT:
            raise ValueError(f"a header of {header:,} bytes")
        with safe_open(path, "pt") as content:
            texts = content.metadata() or {}
            weights = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
    metadata = Metadata.from_texts(texts, path)
    try:
        config = check(metadata.config)
        shape, classes = tuple(metadata.shape), len(metadata.labels)
        model: nn.Module
        if metadata.members is None:
            model = rebuild(config, shape, classes, weights)
        else:
            known = metadata.targets and Targets.model_validate(metadata.targets)
            committee = Reading(config, shape, metadata.columns, known or None)
            model, _ = rebuild_committee(metadata.members, committee, classes, weights)
        raw = Raw(model, metadata).eval()
    except (KeyError, TypeError, ValueError, RuntimeError, InputError) as error:
        reason = first_line(error)
        raise InputError(f"{path}: was not exported by this project ({reason})") from None
    return raw, metadata


Writer = Callable[[Trained, Metadata], bytes]


def _run_onnx(path: Path) -> Runner:
    model = open_onnx(path)
    return lambda inputs: torch.from_numpy(model.logits(inputs.numpy()))


def _run_torch(path: Path) -> Runner:
    """Only for an archive that was just written: torch may unpickle parts of it."""
    return torch.export.load(io.BytesIO(path.read_bytes())).module()


WRITERS: dict[FormatName, tuple[Writer, Loader]] = {
    "onnx": (_write_onnx, _run_onnx),
    "torch": (_write_torch, _run_torch),
    "safetensors": (_write_safetensors, lambda path: open_safetensors(path)[0]),
}
