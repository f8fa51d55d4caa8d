"""Exports a trained model as a file, and compares the file with the model on the whole test set."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from src.data.loader import CHUNK
from src.data.sources.source import Source, Split, as_float
from src.inference.evaluation import source_of
from src.inference.formats import (
    ANOTHER,
    FORMATS,
    INPUT,
    MEMBERS,
    OUTPUT,
    Description,
    Plan,
    input_shape,
)
from src.inference.writers import WRITERS, Runner
from src.models.committee import Committee, logits_dtype
from src.runs.loading import Trained, open_trained
from src.runs.outcome import format_metric
from src.system.errors import InputError
from src.system.files import replacing, sha256
from src.system.process import status_line
from src.system.resources import versions
from src.system.units import size

# The largest allowed difference of two logits, as a share of the largest logit, or of 1 where all
# are smaller: about a thousand roundings. A wrong weight or scale shows in the first digits.
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-12}


@dataclass(frozen=True)
class Exported:
    """A file that was written, and its comparison with the model on the test set."""

    output: Path
    description: Description
    bytes: int
    samples: int
    difference: float  # of two logits, at most
    allowed: float
    accuracy: float  # of the exported model


def export(plan: Plan) -> Exported:
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
    description = describe_model(trained, source, digest)
    write, load = WRITERS[plan.format]
    with replacing(plan.output) as temporary:
        with status_line(f"writing {plan.output} ..."):
            write(trained, description, temporary)
        try:
            run = load(temporary)
        except InputError as error:
            reason = str(error).removeprefix(f"{temporary}: ")
            raise InputError(f"{plan.output}: was not written: {reason}{ANOTHER}") from None
        difference, allowed, accuracy = compare(trained, source.test, run)
        if not difference <= allowed:  # also for NaN
            raise InputError(
                f"{plan.output}: was not written: the logits of --format {plan.format} differ "
                f"from the model's by up to {difference:.2g} on {len(source.test):,} test samples "
                f"of {source.name}, allowed is {allowed:.2g}{ANOTHER}"
            )
        count = temporary.stat().st_size
    return Exported(
        plan.output, description, count, len(source.test), difference, allowed, accuracy
    )


def describe_model(trained: Trained, source: Source, digest: str) -> Description:
    """The metadata of an export; `digest` is the checksum of the checkpoint file."""
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
            "dtype": dtypes[logits_dtype(trained.model)],
            "config": trained.config.to_primitives(),
            "members": members_of(trained),
        }
    )


def members_of(trained: Trained) -> list[dict[str, Any]] | None:
    """The configurations and votes of a committee's members; None for a single model."""
    if not isinstance(trained.model, Committee):
        return None
    return [
        {"config": member.config.to_primitives(), "votes": votes}
        for member, votes in zip(trained.members, trained.model.votes, strict=True)
    ]


def compare(trained: Trained, test: Split, run: Runner) -> tuple[float, float, float]:
    """The largest difference of the logits, the allowed difference, and the accuracy of `run`.

    The model computes in the precision of its weights. The first batch has one sample, so that two
    batch sizes are tried. Raises InputError for infinite or NaN logits, and for another shape.
    """
    bounds = sorted({0, 1, *range(0, len(test), CHUNK), len(test)})
    difference, largest, hits = 0.0, 1.0, 0
    dtype = logits_dtype(trained.model)
    with torch.inference_mode():
        for first, last in pairwise(bounds):
            batch = test.take(slice(first, last))
            expected = trained.model(as_float(batch.features).to(dtype))
            if not expected.isfinite().all():
                raise InputError(
                    f"{trained.checkpoint}: its logits on {trained.data} are not all finite, the "
                    "run diverged; name another run"
                )
            actual = run(batch.features.reshape(-1, *input_shape(trained.shape)))
            if actual.shape != expected.shape or actual.dtype != expected.dtype:
                raise InputError(
                    f"{trained.checkpoint}: its export gives {actual.dtype} {tuple(actual.shape)}, "
                    f"expected {expected.dtype} {tuple(expected.shape)}{ANOTHER}"
                )
            differences = (actual - expected).abs()
            difference = max(difference, differences.nan_to_num(torch.inf).max().item())
            largest = max(largest, expected.abs().max().item())
            hits += int((actual.argmax(-1) == batch.labels).sum())
    return difference, TOLERANCE[dtype] * largest, hits / len(test)


def report(exported: Exported) -> str:
    """The file, its inputs and outputs, and the comparison, in three lines."""
    about = exported.description
    sizes = ", ".join(map(str, about.input_shape))
    second = ""
    if about.members is not None and exported.output.suffix != FORMATS["safetensors"].suffix:
        second = f"; {MEMBERS} {about.dtype} (N, {len(about.members)}, {len(about.labels)})"
    scaled = "0 to 255" if about.input_dtype == "uint8" else "as in the data set"
    if about.columns is not None:
        scaled = "the table's columns prepared as the metadata `columns` say"
    return (
        f"{exported.output}: {size(exported.bytes)}\n"
        f"{INPUT} {about.input_dtype} (N, {sizes}), {scaled}; "
        f"{OUTPUT} {about.dtype} (N, {len(about.labels)}){second}\n"
        f"equal to the model on {exported.samples:,} test samples of {about.data}: logits differ "
        f"by at most {exported.difference:.2g} (allowed {exported.allowed:.2g}), "
        f"accuracy {format_metric('acc', exported.accuracy)}"
    )
