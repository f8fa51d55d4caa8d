"""How runs differ: in their settings, their metrics, their environment and their weights."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from tabulate import tabulate

from src.config.written import flat
from src.runs.comparison import between_histories, between_weights
from src.runs.folder import Run, is_sweep
from src.runs.labels import read_labels
from src.runs.loading import open_trained
from src.runs.outcome import UNKNOWN, all_metrics, differing, format_metric, read_outcome
from src.runs.weights import checkpoint_of
from src.system.errors import InputError


def describe(folders: Sequence[Path]) -> str:
    """Tables with a column for each run, and the distances of histories and weights from those of
    the first run. Raises InputError for a folder that holds no run."""
    runs = [Run(folder) for folder in folders]
    columns = [_called(folder) for folder in folders]
    settings = [dict(flat(run.config.identity_values())) for run in runs]
    changed = differing(settings)
    parts = []
    if changed:
        rows = [[key, *(each.get(key, UNKNOWN) for each in settings)] for key in changed]
        parts.append(tabulate(rows, ["setting", *columns], disable_numparse=True))
    else:
        parts.append("settings: the same")
    alignment = ["left", *["right"] * len(runs)]
    parts.append(
        tabulate(
            _metrics(runs), ["", *columns], disable_numparse=True, colalign=alignment
        )
    )  # fmt: skip
    facts = [_facts(run) for run in runs]
    rows = [[key, *(each.get(key, UNKNOWN) for each in facts)] for key in differing(facts)]
    if rows:
        parts.append(tabulate(rows, ["environment", *columns], disable_numparse=True))
    parts += [
        f"{columns[0]} and {called}: {_distances(runs[0], run)}"
        for called, run in zip(columns[1:], runs[1:], strict=True)
    ]
    return "\n\n".join(parts)


def _metrics(runs: Sequence[Run]) -> list[list[str]]:
    outcomes = [read_outcome(run) for run in runs]
    names = dict.fromkeys(name for each in outcomes for name in all_metrics(each.monitor))
    rows = [
        [name, *(format_metric(name, each.metric(name)) for each in outcomes)] for name in names
    ]
    values: Mapping[str, Sequence[float | None]] = {
        "epochs": [each.epochs for each in outcomes],
        "parameters": [each.result.get("parameters") for each in outcomes],
        "seconds": [each.seconds for each in outcomes],
    }
    rows += [[key, *(format_metric(key, value) for value in row)] for key, row in values.items()]
    return [["status", *(each.status for each in outcomes)], *rows]


def _facts(run: Run) -> dict[str, str]:
    result = run.result
    own = {key: result.get(key) for key in ("commit", "step", "stacked")}
    found = {**own, **result.get("hardware", {}), **result.get("versions", {})}
    return {key: str(value) for key, value in found.items() if value is not None}


def _distances(first: Run, other: Run) -> str:
    rows = [run.history if run.history_file.exists() else [] for run in (first, other)]
    history = between_histories(*rows)
    try:
        for run in (first, other):
            checkpoint_of(run.folder)
    except InputError:
        weights = "one has no weights"
    else:
        models = [open_trained(run.folder).model for run in (first, other)]
        distance = between_weights(*models)
        if distance == history == 0:
            return "identical, history and best weights, bit for bit"
        weights = _told("best weights", distance, "shapes")
    return f"{weights}; {_told('histories', history, 'epochs')}"


def _told(what: str, distance: float, parts: str) -> str:
    if math.isinf(distance):
        return f"the {what} have other {parts}"
    return f"the {what} differ by at most {distance:.2g}"


def _called(folder: Path) -> str:
    """The name that a run was given, else its path. A trial has the name of its sweep."""
    name = None if is_sweep(folder.parent) else read_labels(folder).name
    return name or str(folder)
