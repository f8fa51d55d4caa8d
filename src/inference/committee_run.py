"""Makes a committee of trained models: chooses the members, tests it, and writes its run folder."""

import math
import os
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor
from torch.nn import functional as F

from src.config.schema import sort_key
from src.data.sources.source import Source
from src.inference.evaluation import (
    compute_logits,
    evaluate,
    log_probabilities,
    source_of,
    validation_of,
)
from src.inference.exporters import members_of
from src.inference.members import METRICS, Request, differing_keys, relative_name
from src.models import count_parameters
from src.models.committee import Committee
from src.runs import checkpoint
from src.runs.config_files import create_run_folder
from src.runs.folder import Run
from src.runs.loading import Trained, open_trained
from src.runs.outcome import Outcome, best_places, format_metric
from src.system import machine
from src.system.colour import with_best
from src.system.errors import InputError
from src.system.resources import require_memory, versions
from src.system.terminal import progress

ROUNDING = 1e-9  # a smaller improvement by greedy selection is rounding


@dataclass(frozen=True)
class Chosen:
    """A member: its run, its model, and its weight in the mean."""

    outcome: Outcome
    trained: Trained
    votes: int


def make_committee(request: Request) -> Run:
    """Writes the run folder of the requested committee. The test set is used once, at the end.

    Raises InputError when a checkpoint is damaged or does not fit the others, when the data cannot
    be loaded, and when greedy selection finds no committee.
    """
    began = time.perf_counter()
    models = [
        open_trained(outcome.run.folder) for outcome in progress(request.candidates, "models read")
    ]
    require_same_task(models)
    source = source_of(models[0])
    votes = [1] * len(models) if request.greedy is None else _greedy(request, models, source)
    members = [
        Chosen(outcome, model, count)
        for outcome, model, count in zip(request.candidates, models, votes, strict=True)
        if count
    ]
    if len(members) < 2:
        raise InputError(
            f"--greedy {request.greedy}: chose {members[0].outcome.run.folder} alone, because no "
            f"mean with another run has a better {request.by}; use that run, or type --best N"
        )
    committee = join(members)
    validation = validation_of(committee, source)
    logits = compute_logits(committee, validation)
    found = {
        "val/loss": F.cross_entropy(logits, validation.labels).item(),
        "val/acc": (logits.argmax(-1) == validation.labels).double().mean().item(),
    }
    chosen_at = time.perf_counter()
    tested = evaluate(committee, source)
    first = members[0].outcome
    result = {
        "status": "finished",
        "monitor": request.by,
        "best": {"epoch": None, "train/loss": None, "train/acc": None, **found},
        "test/loss": tested.loss,
        "test/acc": tested.accuracy,
        "parameters": count_parameters(committee.model),
        "config_hash": committee.config.hash(),
        "committee": _record(request, members),
        "seconds": {"selection": chosen_at - began, "test": time.perf_counter() - chosen_at},
        "data": {
            **first.run.result["data"],
            "test": len(source.test),
            "val": len(validation),
            "val_most_frequent_class": validation.most_frequent(),
        },
        "hardware": machine.hardware(torch.device("cpu")),
        "versions": versions(),
        "commit": machine.commit(),
    }
    run = Run(request.folder)
    run.checkpoints.mkdir(parents=True)
    try:
        create_run_folder(run, committee.config.to_primitives())
        checkpoint.write(content_of(committee), run.best_checkpoint)
        run.write_result(result)
    except BaseException:  # half a folder would have to be removed before the next attempt
        shutil.rmtree(run.folder, ignore_errors=True)
        raise
    return run


def require_same_task(models: Sequence[Trained]) -> None:
    """Raises InputError, which names the model, unless all take the same samples and know the same
    classes."""
    first = models[0]
    for model in models[1:]:
        for name in ("data", "shape", "labels", "digest", "columns"):
            expected, given = getattr(first, name), getattr(model, name)
            if given != expected:
                raise InputError(
                    f"{model.checkpoint}: its {name} differs from that of {first.checkpoint}: "
                    f"{str(given)[:80]}, expected {str(expected)[:80]}; name runs on the same data"
                )


def join(members: Sequence[Chosen]) -> Trained:
    """The committee of the members, in eval mode. Its tensors are those of the members."""
    models = tuple(member.trained for member in members)
    model = Committee([each.model for each in models], [member.votes for member in members])
    return replace(models[0], model=model.eval(), members=models)


def content_of(committee: Trained) -> dict[str, Any]:
    """The content of the committee's checkpoint, for src/runs/loading.py."""
    model = committee.model
    assert isinstance(model, Committee)
    columns = committee.columns
    return {
        "kindling": {
            "format": checkpoint.FORMAT,
            "config": committee.config.to_primitives(),
            "members": members_of(committee),
            "data": committee.data,
            "shape": list(committee.shape),
            "labels": list(committee.labels),
            "digest": committee.digest,
            "columns": None if columns is None else columns.model_dump(),
        },
        "state_dict": {
            f"model.{name}": weight.detach().clone() for name, weight in model.state_dict().items()
        },
    }


def _record(request: Request, members: Sequence[Chosen]) -> dict[str, Any]:
    """The entry `committee` of result.json."""
    folder = request.folder
    return {
        "paths": [relative_name(path, folder) for path in request.paths],
        "by": request.by,
        "best": request.best,
        "greedy": request.greedy,
        "differing": differing_keys([member.outcome.run for member in members]),
        "members": [
            {
                "folder": relative_name(member.outcome.run.folder, folder),
                "votes": member.votes,
                "val/loss": member.outcome.metric("val/loss"),
                "val/acc": member.outcome.metric("val/acc"),
            }
            for member in members
        ],
    }


def _greedy(request: Request, models: Sequence[Trained], source: Source) -> list[int]:
    """The votes of each model by greedy selection on the validation set."""
    assert request.greedy is not None
    validation = validation_of(models[0], source)
    require_memory(
        f"--greedy: the probabilities of {len(models)} runs need",
        8 * len(models) * len(validation) * source.classes,
        "--best N instead",
    )
    probabilities = torch.stack(
        [log_probabilities(model, validation).exp() for model in progress(models, "models")]
    )
    picks = greedy_selection(probabilities, validation.labels, request.greedy, request.by)
    counts = Counter(picks)
    return [counts[number] for number in range(len(models))]


def greedy_selection(probabilities: Tensor, labels: Tensor, most: int, by: str) -> list[int]:
    """Numbers of models, perhaps repeated, whose mean probabilities are best.

    `probabilities` are (models, N, classes), `labels` (N,), `by` is val/acc or val/loss. Each pick
    is the model that improves the mean of all picks so far the most, or harms it the least; of
    equal models the first. Of all beginnings of the `most` picks, the best is returned, of equal
    ones the shortest. After Caruana et al., Ensemble Selection from Libraries of Models, 2004:
    forward selection with replacement.
    """
    if by == "val/loss":  # only the probability of the true class matters
        rows = torch.arange(len(labels))
        probabilities = probabilities[:, rows, labels].unsqueeze(-1)
    total = torch.zeros_like(probabilities[0])
    picks: list[int] = []
    best, length = math.inf, 0
    for count in range(1, most + 1):
        scores = [_badness((total + each) / count, labels, by) for each in probabilities]
        pick = scores.index(min(scores))
        total += probabilities[pick]
        picks.append(pick)
        if scores[pick] < best - ROUNDING:
            best, length = scores[pick], count
    return picks[:length]


def _badness(mean: Tensor, labels: Tensor, by: str) -> float:
    """Mean cross entropy for mean probabilities of the true class (N, 1); or the share of mistakes
    for those of all classes (N, classes)."""
    if by == "val/loss":
        return -mean.log().mean().item()
    return (mean.argmax(-1) != labels).double().mean().item()


def summary(run: Run) -> str:
    """A committee as a table for people."""
    result = run.result
    made = result["committee"]
    total = sum(member["votes"] for member in made["members"])
    rows = [
        [
            os.path.normpath(run.folder / member["folder"]),
            member["votes"],
            *_cells(member),
        ]
        for member in made["members"]
    ]
    best = result["best"]
    rows.append(["committee", total, *_cells(best)])
    table = tabulate(
        rows, ["member", "votes", *METRICS], disable_numparse=True,
        colalign=("left", "right", "right", "right"),
    )  # fmt: skip
    values = [*(member[made["by"]] for member in made["members"]), best[made["by"]]]
    keys = [sort_key(made["by"], value) for value in values]
    table = with_best(table, *best_places(("", key) for key in keys))
    worse = (
        f"\nby {made['by']}, the best member alone is better; with a sweep, --greedy takes only "
        "members that improve the mean"
        if min(keys) < keys[-1]
        else ""
    )
    chosen = f" chosen by {made['by']}," if made["best"] or made["greedy"] else ""
    return (
        f"{table}\n\n{len(made['members'])} members,{chosen} "
        f"{result['parameters']:,} parameters; "
        f"test accuracy {format_metric('test/acc', result['test/acc'])}, "
        f"loss {format_metric('test/loss', result['test/loss'])}{worse}\n"
        f"folder {run.folder}"
    )


def _cells(values: Mapping[str, Any]) -> list[str]:
    return [format_metric(name, values[name]) for name in METRICS]
