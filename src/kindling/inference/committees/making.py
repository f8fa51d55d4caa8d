"""Makes a committee of trained models: chooses the members, tests it, and writes its run folder."""

import math
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kindling.config.measures import sort_key
from kindling.config.written import printable
from kindling.data.sources.source import Source
from kindling.inference.committees.members import (
    METRICS,
    CommitteeRequest,
    differing_keys,
    relative_name,
)
from kindling.inference.evaluation import aligned, evaluate
from kindling.inference.export.export import facts_of
from kindling.inference.logits import compute_logits, log_probabilities
from kindling.inference.samples import source_of, validation_of
from kindling.models import count_parameters
from kindling.models.committee import Committee
from kindling.records import checkpoint
from kindling.records.config_files import create_run_folder
from kindling.records.folder import Run
from kindling.records.loading import Trained, open_trained
from kindling.records.lookup import date_last
from kindling.records.outcome import Outcome, best_places, format_metric, largest_class
from kindling.system import machine
from kindling.system.colour import with_best
from kindling.system.errors import InputError
from kindling.system.files import made_whole
from kindling.system.resources import require_memory, versions
from kindling.system.terminal import progress
from kindling.tasks import classification

ROUNDING = 1e-9  # a smaller improvement by greedy selection is rounding
ADDED = ("arrays", "data.empty")  # facts that runs from before them do not have


def make_committee(request: CommitteeRequest) -> Run:
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
    counts = [1] * len(models) if request.greedy is None else _greedy(request, models, source)
    chosen = [each for each in zip(request.candidates, models, counts, strict=True) if each[2]]
    outcomes, members, votes = zip(*chosen, strict=True)
    if len(members) < 2:
        raise InputError(
            f"--greedy {request.greedy}: chose {outcomes[0].run.folder} alone, because no "
            f"mean with another run has a better {request.by}; use that run, or type --best N"
        )
    model = Committee([member.model for member in members], votes).eval()
    committee = replace(members[0], model=model, members=members)
    validation = validation_of(committee, source)
    logits = compute_logits(committee, validation)
    found = {
        "val/loss": classification.loss(logits, validation.labels).item(),
        "val/acc": (classification.decide(logits) == validation.labels).double().mean().item(),
    }
    chosen_at = time.perf_counter()
    tested = evaluate(committee, source)
    result = {
        "status": "finished",
        "monitor": request.by,
        "best": {"epoch": None, "train/loss": None, "train/acc": None, **found},
        "test/loss": tested.loss,
        "test/acc": tested.accuracy,
        "parameters": count_parameters(model),
        "config_hash": committee.config.hash(),
        "committee": _record(request, outcomes, votes),
        "seconds": {"selection": chosen_at - began, "test": time.perf_counter() - chosen_at},
        "data": {
            **outcomes[0].run.result["data"],
            "test": len(source.test),
            "val": len(validation),
            "val_most_frequent_class": validation.most_frequent(),
            "test_most_frequent_class": source.test.most_frequent(),
        },
        "hardware": machine.hardware(torch.device("cpu")),
        "versions": versions(),
        "commit": machine.commit(),
    }
    with made_whole(request.folder) as folder:
        run = Run(folder)
        create_run_folder(run, committee.config.to_primitives())
        checkpoint.write(content_of(committee), run.best_checkpoint)
        run.write_result(result)
        date_last(run.config_file)
    return Run(request.folder)


def require_same_task(models: Sequence[Trained]) -> None:
    """Raises InputError, which names the model, unless all read samples alike and know the same
    classes: a committee reads a sample once, as its first member does."""
    first, *others = models
    asked = _reading(first)
    for model in others:
        read = _reading(model)
        for name in {**asked, **read}:
            expected, given = asked.get(name), read.get(name)
            unknown = name in ADDED and None in (expected, given)
            if given != expected and not unknown:
                raise InputError(
                    f"{model.checkpoint}: its {name} differs from that of {first.checkpoint}: "
                    f"{str(given)[:80]}, expected {str(expected)[:80]}; name runs on the same data"
                )


def _reading(trained: Trained) -> dict[str, Any]:
    """What decides how a model reads a sample and what it answers, by names for messages. What
    only warns of unusual samples is not among it."""
    facts: dict[str, Any] = {
        name: getattr(trained, name) for name in ("data", "shape", "labels", "digest", "arrays")
    }
    columns = trained.columns
    if columns is not None:
        facts["list of columns"] = [column.name for column in columns.columns]
        for column in columns.columns:
            facts[f"column {column.name}"] = column.model_dump(exclude={"low", "high"})
        facts["data.empty"] = columns.empty
    return facts


def content_of(committee: Trained) -> dict[str, Any]:
    """The content of the committee's checkpoint, for records/loading.py."""
    arrays = None if committee.arrays is None else committee.arrays.model_dump()
    return {
        "kindling": {"format": checkpoint.FORMAT, **facts_of(committee), "arrays": arrays},
        "state_dict": {
            f"model.{name}": weight.detach().clone()
            for name, weight in committee.model.state_dict().items()
        },
    }


def _record(
    request: CommitteeRequest, outcomes: Sequence[Outcome], votes: Sequence[int]
) -> dict[str, Any]:
    """The entry `committee` of result.json."""
    folder = request.folder
    return {
        "paths": [relative_name(path, folder) for path in request.paths],
        "by": request.by,
        "best": request.best,
        "greedy": request.greedy,
        "differing": differing_keys([outcome.run for outcome in outcomes]),
        "members": [
            {
                "folder": relative_name(outcome.run.folder, folder),
                "votes": count,
                **{name: outcome.metric(name) for name in ("val/loss", "val/acc")},
            }
            for outcome, count in zip(outcomes, votes, strict=True)
        ],
    }


def _greedy(request: CommitteeRequest, models: Sequence[Trained], source: Source) -> list[int]:
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
    return (classification.decide(mean) != labels).double().mean().item()


def summary(run: Run) -> str:
    """A committee as a table for people."""
    result = run.result
    made, best = result["committee"], result["best"]
    names = [printable(os.path.normpath(run.folder / each["folder"])) for each in made["members"]]
    votes = [member["votes"] for member in made["members"]]
    found: list[Mapping[str, Any]] = [*made["members"], best]
    rows = [
        [name, count, *(format_metric(metric, values[metric]) for metric in METRICS)]
        for name, count, values in zip(
            [*names, "committee"], [*votes, sum(votes)], found, strict=True
        )
    ]
    keys = [sort_key(made["by"], values[made["by"]]) for values in found]
    table = aligned(["member", "votes", *METRICS], *rows)
    table = with_best(table, *best_places(("", key) for key in keys))
    worse = (
        f"\nby {made['by']}, the best member alone is better; with a sweep, --greedy takes only "
        "members that improve the mean"
        if min(keys) < keys[-1]
        else ""
    )
    chosen = f" chosen by {made['by']}," if made["best"] or made["greedy"] else ""
    return (
        f"{table}\n\n{len(names)} members,{chosen} {result['parameters']:,} parameters; "
        f"test accuracy {format_metric('test/acc', result['test/acc'])} "
        f"({largest_class(result['data']['test_most_frequent_class'])}), "
        f"loss {format_metric('test/loss', result['test/loss'])}{worse}\n"
        f"folder {run.folder}"
    )
