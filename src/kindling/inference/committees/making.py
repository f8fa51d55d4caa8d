"""Makes a committee of trained models: chooses the members, tests it, and writes its run folder."""

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kindling.config.measures import CLASSIFICATION, in_words, score_of, sort_key
from kindling.config.written import counted, printable
from kindling.data.sources.source import Source, Split
from kindling.data.tables.columns import united
from kindling.data.targets import spread
from kindling.inference.committees.members import CommitteeRequest, differing_keys
from kindling.inference.evaluation import evaluate
from kindling.inference.export.export import facts_of
from kindling.inference.logits import compute_logits
from kindling.inference.samples import held_out_parts, require_same_content, source_of
from kindling.models import count_parameters
from kindling.models.committee import Committee
from kindling.records import checkpoint
from kindling.records.config_files import create_run_folder
from kindling.records.folder import Run
from kindling.records.loading import Trained, adapter_of, lesson_of, open_trained
from kindling.records.lookup import date_last
from kindling.records.outcome import (
    cross_validated,
    format_metric,
    largest_class,
    read_outcome,
    text_table,
)
from kindling.system import machine
from kindling.system.errors import InputError
from kindling.system.files import made_whole, removed_meanwhile
from kindling.system.resources import require_memory, versions
from kindling.system.terminal import progress
from kindling.tasks import classification
from kindling.tasks.task import Task

EXTREME = 1e-12  # the least probability of a label, where the choice takes a logarithm
ROUNDING = 1e-9  # a smaller improvement by greedy selection is rounding
ADDED = ("arrays", "data.empty")  # facts that runs from before them do not have


def make_committee(
    request: CommitteeRequest,
    source: Source | None = None,
    more: Callable[[Trained, Source], Mapping[str, Any]] | None = None,
    again: Callable[[Run], Trained | None] | None = None,
) -> Run:
    """Writes the run folder of the requested committee. The test set is used once, at the end.
    By greedy selection it may have one member, if no mean is better. `source` is the data set of
    the training, by default opened again; `more` returns further entries of the result. `again`
    trains a member once more, on all rows (see twins.py): its twin joins it, with as many votes.

    Raises InputError when a checkpoint is damaged or does not fit the others, and when the data
    cannot be loaded.
    """
    began = time.perf_counter()
    settings = [
        [open_trained(outcome.run.folder) for outcome in setting]
        for setting in progress(request.candidates, "models read")
    ]
    require_same_task([model for setting in settings for model in setting])
    source = source or source_of(_committee_of(settings[0], [1] * len(settings[0])))
    require_same_content(settings[0][0], source)
    counts = [1] * len(settings) if request.greedy is None else _greedy(request, settings, source)
    chosen = [each for each in zip(request.candidates, settings, counts, strict=True) if each[2]]
    outcomes = [outcome for setting, _, _ in chosen for outcome in setting]
    votes = [count for setting, _, count in chosen for _ in setting]
    voting = [(model, count) for _, setting, count in chosen for model in setting]
    if again is not None:
        pairs = [*zip(outcomes, votes, strict=True)]
        for outcome, count in progress(pairs, "members trained on all rows"):
            twin = again(outcome.run)
            voting += [] if twin is None else [(twin, count)]
    committee = _committee_of([model for model, _ in voting], [count for _, count in voting])
    twins = len(voting) - len(outcomes)
    if twins and committee.columns is not None:
        source = source_of(committee)
    score = score_of(committee.config.task.name)
    said, validation = _held_out(committee, source)
    found = _judged(committee.task, said, validation.labels)
    chosen_at = time.perf_counter()
    tested = evaluate(committee, source, trained_on=source)
    result = {
        "status": "finished",
        "task": committee.config.task.name,
        "monitor": request.by,
        "best": {"epoch": None, "train/loss": None, f"train/{score}": None, **found},
        "test/loss": tested.loss,
        f"test/{score}": tested.score,
        "parameters": count_parameters(committee.model),
        "config_hash": committee.config.hash(),
        "committee": {
            "paths": [os.path.relpath(path, request.folder) for path in request.paths],
            "by": request.by,
            "best": request.best,
            "greedy": request.greedy,
            **({"start": request.start} if request.start else {}),
            **({"folds": len(committee.folds)} if committee.folds else {}),
            **({"twins": twins} if twins else {}),
            "differing": differing_keys([outcome.run for outcome in outcomes]),
            "members": [
                {
                    "folder": os.path.relpath(outcome.run.folder, request.folder),
                    "votes": count,
                    **{name: outcome.metric(name) for name in ("val/loss", f"val/{score}")},
                }
                for outcome, count in zip(outcomes, votes, strict=True)
            ],
        },
        "seconds": {"selection": chosen_at - began, "test": time.perf_counter() - chosen_at},
        "data": {
            **outcomes[0].result["data"],
            "test": len(source.test),
            "val": len(validation),
            "val_most_frequent_class": validation.most_frequent,
            "test_most_frequent_class": source.test.most_frequent,
        },
        "hardware": machine.hardware(torch.device("cpu")),
        "versions": versions(),
        "commit": machine.commit(),
        **(more(committee, source) if more else {}),
    }
    around = request.folder.parent  # if it is the sweep, it must still be there
    with made_whole(request.folder, around if around in request.paths else None) as folder:
        run = Run(folder)
        create_run_folder(run, committee.config.to_primitives())
        arrays = None if committee.arrays is None else committee.arrays.model_dump()
        facts = {"format": checkpoint.FORMAT, **facts_of(committee), "arrays": arrays}
        state = committee.model.state_dict()
        weights = {f"model.{name}": each.clone() for name, each in state.items()}
        checkpoint.write({"kindling": facts, "state_dict": weights}, run.best_checkpoint)
        run.write_result(result)
        date_last(run.config_file)
    return Run(request.folder)


def _committee_of(members: Sequence[Trained], votes: Sequence[int]) -> Trained:
    """The committee, which reads samples and says numbers as its first member does. Members that
    learned from different rows take what each has learned: the committee has the columns of all."""
    first, task, adapters = members[0], members[0].task, None
    if not _taught_apart(members):
        members = [
            replace(each, shape=first.shape, columns=first.columns, targets=first.targets)
            for each in members
        ]
    else:
        if first.columns is not None:
            columns = united([each.columns for each in members if each.columns is not None])
            first = replace(first, columns=columns, shape=(columns.width,))
        adapters = [adapter_of(each, first, task) for each in members]
    model = Committee([each.model for each in members], votes, task, adapters).eval()
    return replace(first, model=model, members=tuple(members))


def _taught_apart(models: Sequence[Trained]) -> bool:
    return len({lesson_of(model.config) for model in models}) > 1


def _held_out(committee: Trained, source: Source) -> tuple[Tensor, Split]:
    """What a model says of the validation samples, (N, outputs) in float64, and the samples."""
    parts = held_out_parts(committee, source)
    said = torch.cat([compute_logits(model, split).double() for model, split in parts])
    labels = torch.cat([split.labels for _, split in parts])
    return said, Split(labels, labels)  # whose features are not needed


def _judged(task: Task, outputs: Tensor, labels: Tensor) -> dict[str, float]:
    total = float(task.scores(outputs.mT[None], labels[None]).sum())
    return {
        "val/loss": task.loss(outputs, labels).item(),
        f"val/{score_of(task.section.name)}": task.score(total, len(labels), spread(labels)),
    }


def require_same_task(models: Sequence[Trained]) -> None:
    """Raises InputError, which names the model, unless all read samples alike and know the same
    classes: a committee reads a sample once, as its first member does. What models of different
    folds have learned of the columns and numbers of a table may differ."""
    first, *others = models
    taught = not _taught_apart(models)
    asked = _reading(first, taught=taught)
    for model in others:
        read = _reading(model, taught=taught)
        for name in {**asked, **read}:
            expected, given = asked.get(name), read.get(name)
            unknown = name in ADDED and None in (expected, given)
            if given != expected and not unknown:
                raise InputError(
                    f"{model.checkpoint}: its {name} differs from that of {first.checkpoint}: "
                    f"{str(given)[:80]}, expected {str(expected)[:80]}; name runs on the same data"
                )


def _reading(trained: Trained, *, taught: bool) -> dict[str, Any]:
    """What decides how a model reads a sample and what it answers, by names for messages; with what
    the training samples taught if `taught`. What only warns of unusual samples is not among it."""
    facts: dict[str, Any] = {
        name: getattr(trained, name) for name in ("data", "labels", "digest", "arrays")
    }
    facts |= {"task": trained.config.task.name, "number of outputs": trained.task.outputs}
    columns = trained.columns
    if taught:
        facts |= {"shape": trained.shape, "scaling of numbers": trained.targets}
    if taught and columns is not None:
        facts["list of columns"] = columns.names
        for column in columns.columns:
            facts[f"column {column.name}"] = column.model_dump(exclude={"low", "high"})
        facts["data.empty"] = columns.empty
    return facts


def _greedy(
    request: CommitteeRequest, settings: Sequence[Sequence[Trained]], source: Source
) -> list[int]:
    """The votes of each setting by greedy selection on the held-out samples."""
    assert request.greedy is not None
    require_memory(
        f"--greedy: the probabilities of {len(settings)} runs need",
        8 * len(settings) * len(source.train) * source.classes,
        "--best N instead",
    )
    models = [
        each[0] if len(each) == 1 else _committee_of(each, [1] * len(each)) for each in settings
    ]
    task, outputs, labels = models[0].task, list[Tensor](), torch.empty(0)
    for model in progress(models, "models"):
        said, validation = _held_out(model, source)
        outputs.append(task.opinions(said))
        labels = validation.labels
    if task.section.name == CLASSIFICATION:
        said = torch.stack(outputs).exp_()
        picks = greedy_selection(said, labels, request.greedy, request.by, request.start)
    else:
        said = torch.stack(outputs if task.real_scores else list(map(task.probabilities, outputs)))
        badness = partial(_badness_of_mean, task, labels, request.by)
        picks = select(said, request.greedy, badness, request.start)
    counts = Counter(picks)
    return [counts[number] for number in range(len(settings))]


def greedy_selection(
    probabilities: Tensor, labels: Tensor, most: int, by: str, start: int = 0
) -> list[int]:
    """As `select`, for probabilities of classes (models, N, classes) and `labels` (N,); `by` is
    val/acc or val/loss."""

    def cross_entropy(mean: Tensor) -> float:
        return -mean.log().mean().item()

    def mistakes(mean: Tensor) -> float:
        return (classification.decide(mean) != labels).double().mean().item()

    if by != "val/loss":
        return select(probabilities, most, mistakes, start)
    of_true = probabilities[:, torch.arange(len(labels)), labels]
    return select(of_true, most, cross_entropy, start)


def select(
    said: Tensor, most: int, badness: Callable[[Tensor], float], start: int = 0
) -> list[int]:
    """Numbers of models, perhaps repeated, the mean of whose probabilities, or numbers, is best.

    `said` is (models, N, …). Each pick is the model that improves the mean of all picks so far the
    most, or harms it the least; of equal models the first. Of all beginnings of the `most` picks,
    the best is returned, of equal ones the shortest. The first `start` picks are the best models,
    each once, and always stay. After Caruana et al., Ensemble Selection from Libraries of Models,
    2004: forward selection with replacement, and sorted initialization.
    """
    alone = [badness(each) for each in said] if start else []
    picks = sorted(range(len(alone)), key=alone.__getitem__)[:start]
    total = torch.zeros_like(said[0])
    for pick in picks:
        total += said[pick]
    best, length = badness(total / len(picks)) if picks else math.inf, len(picks)
    for count in range(len(picks) + 1, most + 1):
        scores = [badness((total + each) / count) for each in said]
        pick = scores.index(min(scores))
        total += said[pick]
        picks.append(pick)
        if scores[pick] < best - ROUNDING:
            best, length = scores[pick], count
    return picks[:length]


def _badness_of_mean(task: Task, labels: Tensor, by: str, mean: Tensor) -> float:
    """The mean loss, or the score with the other sign, for mean numbers or probabilities of labels
    (N, outputs)."""
    outputs = (mean if task.real_scores else mean.logit(EXTREME)).mT[None]
    if by == "val/loss":
        return task.losses(outputs, labels[None]).mean().item()
    total = float(task.scores(outputs, labels[None]).sum())
    return -task.score(total, len(labels), spread(labels))


def summary(run: Run) -> str:
    """A committee as a table for people."""
    result = run.result
    if not result:
        raise removed_meanwhile(run.folder)
    made, best = result["committee"], result["best"]
    folds = made.get("folds", 0)
    names = [printable(os.path.normpath(run.folder / each["folder"])) for each in made["members"]]
    votes = [member["votes"] for member in made["members"]]
    found: list[Mapping[str, Any]] = [*made["members"], best]
    score = score_of(result.get("task"))
    metrics, most = (f"val/{score}", "val/loss"), result["data"]["test_most_frequent_class"]
    against = "" if most is None else f" ({largest_class(most)})"
    tested = format_metric(score, read_outcome(run).metric(f"test/{score}"))
    rows = [
        [name, str(count), *(format_metric(metric, values[metric]) for metric in metrics)]
        for name, count, values in zip(
            [*names, "committee"], [*votes, sum(votes)], found, strict=True
        )
    ]
    keys = [sort_key(made["by"], values[made["by"]]) for values in found]
    numbers = ["votes", *metrics]
    table = text_table(["member", *numbers], rows, (("", key) for key in keys), numbers)
    worse = (
        f"\nby {made['by']}, the best member alone is better; with a sweep, --greedy takes only "
        "members that improve the mean"
        if min(keys) < keys[-1] and not made["greedy"] and not folds
        else ""
    )
    if folds:
        worse = f"\n{cross_validated(folds)}"
    chosen = f" chosen by {made['by']}," if made["best"] or made["greedy"] else ""
    twins = ""
    if count := made.get("twins", 0):
        which = "each" if count == len(names) else f"{count} of them"
        twins = f" {which} with a twin that was trained on the validation rows too,"
    return (
        f"{table}\n\n{counted(len(names), 'member')},{chosen}{twins} {result['parameters']:,} "
        "parameters; "
        f"test {in_words(score)} {tested}{against}, "
        f"loss {format_metric('test/loss', result['test/loss'])}{worse}\n"
        f"folder {run.folder}"
    )
