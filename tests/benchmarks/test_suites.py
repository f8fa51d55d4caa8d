"""A tiny run of each suite: it runs the contenders that it names, and reports all of them."""

import hashlib
import io
import itertools
import json
import subprocess
import tarfile
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_iris
from sklearn.model_selection import PredefinedSplit, cross_val_score
from torch import Tensor
from torch.nn import functional as F
from torchvision.transforms.v2 import Compose

from benchmarks import peak, questions, run_suite
from benchmarks.contenders import Contender, can_compile
from benchmarks.measure import ROOT, few_ticks, time_command
from benchmarks.settings import SHARED, read_settings
from benchmarks.suites import (
    augmentation,
    busy,
    commands,
    estimator,
    gpu_check,
    pack,
    pieces,
    real_tables,
    report,
    search,
    sweep,
    tables,
    vmap,
)
from benchmarks.suites.search import Outcome
from kindling.config.compose import compose
from kindling.data.augmentation import Augmentation
from kindling.data.loader import Block
from kindling.data.module import DataModule
from kindling.inference.evaluation import evaluate_path
from kindling.models import build_model
from kindling.records.confidence import t_interval
from kindling.records.folder import Run
from kindling.steps.autograd import AutogradLearner
from kindling.steps.choice import choose_step
from kindling.steps.vmap import VmapLearner
from kindling.sweeps.command_line import check_command_line as check_train
from kindling.sweeps.packs.command import check_command_line as check_pack
from kindling.sweeps.packs.loop import make_pack
from kindling.sweeps.search.command import check_command_line as check_search
from kindling.training.fit import fit
from tests.helpers.steps import AUTO


@pytest.fixture(autouse=True)
def _small_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak, "SIDE", 64)


def share(found: dict[str, Any], contender: str, operations: float) -> float:
    """The contender's part of the peak, computed from the rest of a report."""
    rate = operations / found["rows"][contender]["median"] / 1e9
    return float(rate / max(found["peak"]["gflops"].values()))


def test_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without waiting for a compiler: tests/benchmarks/test_contenders.py compiles."""
    monkeypatch.setattr(torch, "compile", lambda function: function)
    table, line = run_suite(read_settings(["suite=loops", "rounds=1", "data=digits"]))
    found = json.loads(line)
    contenders = {
        "tutorial", "bare", "numpy", "lightning", "sklearn", "ours", "steps alone",
        "products",
    }  # fmt: skip
    contenders |= {name for name in ("jax", "keras") if find_spec(name)}
    contenders |= {"compiled"} if can_compile() else set()
    assert set(found["rows"]) == contenders
    others = contenders - {"bare", "ours", "steps alone", "products"}
    assert {"ours/bare", "ours/products", *(f"{name}/ours" for name in others)} <= {
        *found["ratios"]
    }
    assert found["suite"] == "loops"
    assert found["data"] == "digits"
    assert {"hardware", "engine", "versions", "blas", "commit"} <= set(found)
    rows = {name: row["median"] for name, row in found["rows"].items()}
    assert found["ratios"]["ours/bare"] == pytest.approx(rows["ours"] / rows["bare"])
    for name in ("ours", "steps alone"):  # of 1,150 samples
        expected = share(found, name, 2 * 1150 * 32 * (2 * 784 + 3 * 10))
        assert found["ratios"][f"share of the peak, {name}"] == pytest.approx(expected)
    assert all(name in table for name in contenders)
    assert found["hardware"]["model"] in table
    assert found["peak"]["library"] in table


def test_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands are the default run and the README's sweep, each with all threads and with
    one, while other processes run."""
    ran: list[tuple[tuple[str, ...], str | None]] = []

    def quick(*arguments: str, environment: Mapping[str, str] | None = None) -> float:
        threads = (environment or {}).get("OMP_NUM_THREADS")
        ran.append((arguments, threads))
        return 3.0 if threads is None else 2.0

    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def note(*arguments: Any, **named: Any) -> "subprocess.Popen[bytes]":
        started.append(popen(*arguments, **named))
        return started[-1]

    monkeypatch.setattr(busy, "seconds_of_training", quick)
    monkeypatch.setattr(busy, "LOOPS", 2)
    monkeypatch.setattr(subprocess, "Popen", note)
    table, line = run_suite(read_settings(["suite=busy", "rounds=1", "data=digits"]))
    assert [threads for _, threads in ran] == [None, "1", None, "1"]
    single, _, sweep_, _ = (arguments for arguments, _ in ran)
    config = compose(*(text for text in single if not text.startswith("hydra.")))
    assert choose_step([config], [build_model(config.model, (784,), 10)]).kind == AUTO
    assert len(check_train([*single]).points) == 1
    assert len(check_train([*sweep_]).points) == 64
    assert json.loads(line)["ratios"] == {"run/one thread": 1.5, "sweep/one thread": 1.5}
    assert "sweep, one thread" in table
    assert [loop.returncode for loop in started[:2]] == [-9, -9]


@pytest.mark.slow
def test_estimator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both train as many epochs on the same samples, and know them afterwards."""
    few = {told: (60, *sizes[1:3], 30, 3) for told, sizes in estimator.FITS.items()}
    monkeypatch.setattr(estimator, "FITS", few)
    monkeypatch.setattr(estimator, "JOBS", 1)
    monkeypatch.setattr(estimator, "MANY", 100)
    monkeypatch.setattr(estimator, "CALLS", 1)
    fitted = []
    fit_one = estimator._fit

    def note(model: Any, x: Any, y: Any) -> float:
        seconds = fit_one(model, x, y)
        if hasattr(model, "n_iter_"):
            fitted.append((type(model).__name__, len(x), model.n_iter_, model.score(x, y)))
        return seconds

    monkeypatch.setattr(estimator, "_fit", note)
    table, line = run_suite(read_settings(["suite=estimator", "rounds=1"]))
    found = json.loads(line)
    tasks = [f"fit {told}" for told in few] + ["search of 40 fits", "a row", "a million rows"]
    both = ("KindlingClassifier", "MLPClassifier")
    assert {*found["rows"]} == {f"{task}, {name}" for task in tasks for name in both}
    for task in tasks:
        ours, theirs = (found["rows"][f"{task}, {name}"]["median"] for name in both)
        shown = found["ratios"][f"{task}: MLPClassifier/KindlingClassifier"]
        assert shown == pytest.approx(theirs / ours)
        assert task in table
    assert {name for name, *_ in fitted} == {*both}
    assert {(rows, epochs) for _, rows, epochs, _ in fitted} == {(60, 3)}


def test_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands match their names: a grid, a search space, a sweep and its halved version."""
    ran: list[tuple[str, ...]] = []

    def quick(command: tuple[str, ...], *others: str) -> Outcome:
        ran.append((*command, *others))
        return Outcome(
            float(len(ran)), len(ran) ** 2, f"{len(ran)}: optimizer.lr=0.1", 0.9 + len(ran) / 100
        )

    monkeypatch.setattr(search, "outcome", quick)
    table, line = run_suite(read_settings(["suite=search", "rounds=2", "data=digits"]))
    assert [command[0] for command in ran] == ["src.train", "src.search", *["src.train"] * 2] * 2
    grid, searched, sweep_, halved = ran[:4]
    assert len(check_train([*grid[1:], "hydra.sweep.dir=nowhere"]).points) == 64
    assert len(check_train([*sweep_[1:], "hydra.sweep.dir=nowhere"]).points) == 64
    assert [text for text in halved if text not in sweep_] == ["hydra.launcher.halving=2"]
    found = check_search(searched[1:])
    assert found.settings.trials == 64
    assert [parameter.key.partition(".")[2] for parameter in found.space] == [
        "hidden_sizes", "lr", "momentum", "weight_decay",
    ]  # fmt: skip
    content = json.loads(line)
    assert content["ratios"]["search/grid"] == pytest.approx((2 / 1 + 6 / 5) / 2)
    assert content["ratios"]["halved sweep/sweep"] == pytest.approx((4 / 3 + 8 / 7) / 2)
    training = content["ratios"]["halved sweep, training/sweep, training"]
    assert training == pytest.approx((16 / 9 + 64 / 49) / 2)
    assert content["best"]["search"] == {"trial": "6: optimizer.lr=0.1", "val/acc": 0.96}
    assert "halved sweep" in table


@pytest.mark.parametrize("suite", [*gpu_check.SUITES, "devices", "dataset_size"])
def test_questions(suite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each contender is the run that its label names; timing is replaced by a counter."""
    asked: list[object] = []

    def quick(*overrides: str, **others: object) -> float:
        compose("data=synthetic", *overrides)  # a configuration that there is
        asked.append((overrides, *others.items()))
        return float(len(asked))

    def quick_part(*arguments: object, **others: object) -> Callable[[], float]:
        def part() -> float:
            asked.append((arguments, *others.items()))
            return float(len(asked))

        return part

    monkeypatch.chdir(tmp_path)
    module = import_module(f"benchmarks.suites.{SHARED.get(suite, suite)}")
    parts = dict.fromkeys(("products", "gathering", "augmenting"), quick_part)
    stacks = {
        "stack": lambda _, configs, **others: Contender(quick_part(str(configs), *others), F.relu)
    }
    for name, stand_in in {"epoch": quick, **parts, **stacks}.items():
        if hasattr(module, name):
            monkeypatch.setattr(module, name, stand_in)
    table, line = run_suite(read_settings([f"suite={suite}", "rounds=1"]))
    found = json.loads(line)
    assert found["suite"] == suite
    assert len(set(asked)) >= len(found["rows"]) >= 2
    assert len(found["devices"]) == len(questions.devices())
    assert all(name in table for name in found["rows"])
    assert (tmp_path / f"{suite}.png").read_bytes().startswith(b"\x89PNG")
    if suite == "hidden_size":
        expected = share(found, "512 on cpu", 2 * 4950 * 512 * (2 * 784 + 3 * 10))
        assert found["ratios"]["share of the peak, 512 on cpu"] == pytest.approx(expected)
        assert "share of the peak, 2048 on cpu, steps alone" in found["ratios"]


@pytest.mark.parametrize("way", ["ours", "sample", "batch"])
def test_augmenting_is_done_to_every_batch(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def counting(self: object, given: Any, *_place: int) -> Tensor:
        pictures: Tensor = given.features if isinstance(given, Block) else given
        calls.append(pictures.numel() // 784)
        return pictures

    monkeypatch.setattr(Augmentation, "__call__", counting)
    monkeypatch.setattr(Compose, "forward", counting)
    assert augmentation.augmenting(way, "cpu")() > 0
    expected = {"ours": [100] * 50, "batch": [100] * 50, "sample": [1] * 100}
    assert calls == expected[way]


@pytest.mark.slow
def test_checkpoints() -> None:
    _, line = run_suite(read_settings(["suite=checkpoints", "rounds=1", "data=digits"]))
    found = json.loads(line)
    rows = {name: row["median"] for name, row in found["rows"].items()}
    assert set(rows) == {"none", "every second", "default", "every epoch", "one write"}
    ratios = found["ratios"]
    assert ratios["every epoch/none"] == pytest.approx(rows["every epoch"] / rows["none"])
    assert 0 < ratios["write/second"] == rows["one write"] < rows["every epoch"]


def test_a_command_has_the_code_of_the_checkout_and_the_packages_of_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packages may lie in a folder of their own, which PYTHONPATH names."""
    code = "import sys, kindling.system.units as m; open(sys.argv[1], 'w').write(m.__file__)"
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "own_probe.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    assert time_command(tmp_path, "own_probe", "found") > 0
    assert (tmp_path / "found").read_text() == str(
        ROOT / "src" / "kindling" / "system" / "units.py"
    )
    given = {"PYTHONPATH": str(tmp_path)}
    with pytest.raises(subprocess.CalledProcessError):
        time_command(tmp_path, "own_probe", "found", environment=given)


def test_a_command_is_timed_until_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_probe.py").write_text("print('begins', 'epoch 0', 'epoch 0', sep=chr(10))")
    given = {"PYTHONPATH": str(tmp_path)}
    clock = itertools.count()
    monkeypatch.setattr("time.perf_counter", lambda: next(clock) ** 2)
    assert time_command(tmp_path, "own_probe", environment=given) == 1 - 0
    assert time_command(tmp_path, "own_probe", environment=given, until="epoch ") == 9 - 4
    with pytest.raises(ValueError, match="begins with epoch 1"):
        time_command(tmp_path, "own_probe", environment=given, until="epoch 1")


def test_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each contender reports on the number of runs in its label."""

    def counting(_folder: Path, module: str, runs: str) -> float:
        assert module == "src.report"
        return float(sum(Run(run).ended for run in Path(runs).iterdir()))

    monkeypatch.setattr(report, "time_command", counting)
    monkeypatch.setattr(report, "MANY", 3)
    _, line = run_suite(read_settings(["suite=report", "rounds=1", "data=digits"]))
    rows = {name: row["median"] for name, row in json.loads(line)["rows"].items()}
    assert rows == {"1 run": 1.0, "3 runs": 3.0}


@pytest.mark.slow
def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All train the same network as well."""
    monkeypatch.chdir(tmp_path)
    _, line = run_suite(read_settings(["suite=commands", "rounds=1", "data=digits"]))
    found = json.loads(line)
    assert found["data"] == "digits"
    absent = set() if find_spec("keras") else {"a script of Keras"}
    trained = {commands.OURS, commands.WARM, *commands.SCRIPTS} - absent
    surrounding = {commands.FIRST, commands.RANKS, commands.REPORT, commands.EVALUATION}
    assert {*found["rows"]} == trained | surrounding
    assert {*found["test_accuracy"]} == trained
    assert found["test_accuracy"][commands.OURS] == found["test_accuracy"][commands.WARM]
    assert all(0.85 < accuracy <= 1 for accuracy in found["test_accuracy"].values())
    assert (tmp_path / "commands.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweep, "MANY", 128)
    settings = ["suite=sweep", "rounds=1", "data=digits", "commands=false", "full=true"]
    table, line = run_suite(read_settings(settings))
    found = json.loads(line)
    rows = {name: row["median"] for name, row in found["rows"].items()}
    stacks = [
        f"{kind}@{size}"
        for kind in ("products", "fused", "fused_own_seeds")
        for size in (1, 64, 256)
    ]
    assert {"bare", *stacks} <= set(rows)
    ratios = found["ratios"]
    assert ratios["bare*64/fused@64"] == pytest.approx(64 * rows["bare"] / rows["fused@64"])
    assert ratios["fused/products@64"] == pytest.approx(rows["fused@64"] / rows["products@64"])
    own = rows["fused_own_seeds@64"] / rows["fused@64"]
    assert ratios["fused_own_seeds/fused@64"] == pytest.approx(own)
    few, many = rows["fused@64, 72 samples"], rows["fused@128, 72 samples"]
    assert ratios["a trial of 128/of 64"] == pytest.approx((many / 128) / (few / 64))
    expected = share(found, "fused@16", 16 * 2 * 1150 * 32 * (2 * 784 + 3 * 10))
    assert ratios["share of the peak, fused@16"] == pytest.approx(expected)
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert "sweep.png" in table


def test_commands_are_the_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks only the launcher of each command; whole commands take too long."""
    commands: list[Sequence[str]] = []

    def note(_folder: Path, *command: str) -> float:
        commands.append(command)
        return 1.0

    monkeypatch.setattr(sweep, "time_command", note)
    seconds = sweep.interleave_commands(2, "digits")
    assert {name: len(values) for name, values in seconds.items()} == {
        "fused": 2,
        "basic": 2,
        "joblib": 2,
    }
    assert [command[2] for command in commands[:3]] == [
        "hydra/launcher=fused",
        "hydra/launcher=basic",
        "hydra/launcher=joblib",
    ]
    assert len({tuple(command[-5:]) for command in commands}) == 1  # the same 64 trials
    widths, rates = commands[0][-5], commands[0][-4]
    assert (widths.count(",") + 1) * (rates.count(",") + 1) == 64


@pytest.fixture
def iris(monkeypatch: pytest.MonkeyPatch) -> tuple[tables.Features, tables.Labels]:
    """The only table of the suite. Its trials train for two epochs, at a learning rate so high that
    the second is not always the better one."""
    monkeypatch.setattr(tables, "TABLES", {"iris": tables.TABLES["iris"]})
    short = ("trainer.max_epochs=2", "optimizer.lr=1")
    monkeypatch.setattr(tables, "RECIPE", (*tables.RECIPE, *short))
    return load_iris(return_X_y=True)  # type: ignore[no-any-return]


@pytest.mark.slow
def test_tables(iris: tuple[tables.Features, tables.Labels], tmp_path: Path) -> None:
    """A figure of scikit-learn is that of cross_val_score in the same folds; one of ours is the
    mean of runs of the sweep, each after its last epoch."""
    table, line = run_suite(read_settings(["suite=tables", "rounds=1"]))
    rows = json.loads(line)["rows"]
    assert [*rows] == [*tables.OURS, *tables.OTHERS]
    assert all(name in table for name in rows)
    features, labels = iris
    tables.write_table(tmp_path / "table.csv", features, labels)
    configs = tables.sweep(tmp_path, *tables.OURS[tables.MLP], rounds=1)
    part_of = np.full(len(labels), -1)
    for number, config in enumerate(configs):
        part_of[tables.rows_of(config.data, labels)[1]] = number
    used = part_of >= 0
    folds = PredefinedSplit(part_of[used])
    svc = tables.OTHERS["SVC, RBF kernel"](0)
    theirs = cross_val_score(svc, features[used], labels[used], cv=folds).tolist()
    ours = [fit(config, tmp_path / str(n)).history[-1] for n, config in enumerate(configs)]
    assert [row["epoch"] for row in ours] == [2] * 5
    own = [row["val/acc"] or 0.0 for row in ours]
    for name, values in ((tables.MLP, own), ("SVC, RBF kernel", theirs)):
        low, high = t_interval(values, folds=5)
        assert rows[name]["iris"]["mean"] == pytest.approx(np.mean(values))
        assert rows[name]["iris"]["half"] == pytest.approx((high - low) / 2)
    differences = [a - b for a, b in zip(theirs, own, strict=True)]
    difference = t_interval(differences, folds=5)
    assert rows["SVC, RBF kernel"]["iris"]["difference"] == pytest.approx([*difference])
    shown = f"{100 * np.mean(theirs):.1f} ± "
    assert shown in next(line for line in table.splitlines() if line.startswith("SVC"))


def test_both_sides_of_a_table_get_the_same_rows(
    iris: tuple[tables.Features, tables.Labels], tmp_path: Path
) -> None:
    """In each round and fold."""
    features, labels = iris
    tables.write_table(tmp_path / "table.csv", features, labels)
    configs = tables.sweep(tmp_path, rounds=2)
    assert [(c.seed, c.data.split_seed) for c in configs] == [(0, 0), (1, 1)] * 5
    for config in configs:
        training, validation = tables.rows_of(config.data, labels)
        data = DataModule(config.data)
        data.setup()
        [own], fold = data.validations, config.data.fold
        assert fold is not None
        scaled = (features - features[training].mean(0)) / features[training].std(0)
        assert own.features.numpy() == pytest.approx(scaled[validation], abs=1e-5)
        assert own.labels.tolist() == labels[validation].tolist()
        ours = data.train.take(data.rows[fold])
        assert ours.features.numpy() == pytest.approx(scaled[training], abs=1e-5)
        assert ours.labels.tolist() == labels[training].tolist()
        assert len({*training, *validation}) == len(training) + len(validation) == 147
    rounds = [{*tables.rows_of(c.data, labels)[1]} for c in configs]
    assert {*range(150)} > set().union(*rounds[::2]) != set().union(*rounds[1::2])


@pytest.mark.parametrize(
    ("difference", "mark"),
    [((0.01, 0.02), "+"), ((-0.02, -0.01), "-"), ((-0.01, 0.01), " "), ((0.0, 0.0), " ")],
)
def test_only_a_difference_beyond_its_interval_is_marked(
    difference: tuple[float, float], mark: str
) -> None:
    assert str(tables.Cell(0.9512, 0.0213, difference, 1.0)) == f"95.1 ± 2.1{mark}"


def test_vmap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each contender trains as many samples as it names, in the way that it names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(vmap, "CASES", (([2, 3], 4, 5, 20),))
    monkeypatch.setattr(vmap, "TRIALS", 3)
    trained: list[tuple[str, int, int]] = []

    def counted(learner: Any, block: Block, *_: int) -> None:
        trained.append((type(learner).__name__, len(learner.models), block.labels.numel()))

    monkeypatch.setattr(VmapLearner, "train", counted)
    monkeypatch.setattr(AutogradLearner, "train", counted)
    table, line = run_suite(read_settings(["suite=vmap", "rounds=1", "accelerators=[cpu]"]))
    found = json.loads(line)
    operations = 2 * 5 * 9 * (16 * 2 + 4 * 2 * 3) + 2 * 5 * 3 * 10
    name = f"{operations / 1e6:.3g} on cpu"
    assert list(found["ratios"]) == [f"alone/vmap, {name}"]
    assert f"{name}, vmap" in table
    by_kind = {kind: sum(m * n for k, m, n in trained if k == kind) for kind, _, _ in trained}
    # An epoch to warm up and a measured one, of 20 samples and 3 models.
    assert by_kind == {"AutogradLearner": 120, "VmapLearner": 120}
    assert (tmp_path / "vmap.png").exists()


@pytest.mark.parametrize(
    ("seconds", "ticks"),
    [((0.01, 1.0), 15), ((0.0115, 0.0138), 5), ((0.02, 0.021), 5)],
)
def test_a_logarithmic_axis_has_ticks_for_all_times(
    seconds: tuple[float, float], ticks: int
) -> None:
    """Also where they hardly differ."""
    axis = Figure().subplots()
    axis.set(yscale="log", ylim=seconds)
    few_ticks(axis)
    shown = [tick for tick in axis.get_yticks() if seconds[0] <= tick <= seconds[1]]
    assert len(shown) >= 2
    assert len(shown) <= ticks


def packed(contents: dict[str, str]) -> bytes:
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w:gz") as archive:
        for name, text in contents.items():
            member = tarfile.TarInfo(f"csv/{name}.csv")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return body.getvalue()


@pytest.mark.slow
def test_real_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the names are test tables, for classes, numbers, or both. The scores are those
    of a run, and of boosting on the same rows."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(150, 2)).round(4)
    rows = [f"{n},{a},{b},{'xy'[int(a + b > 0)]}" for n, (a, b) in enumerate(x.tolist(), 1)]
    text = "\n".join([",a,b,kind", *rows])
    names = [f"t{number}" for number in range(12)]
    chosen = [n for n in names if int(hashlib.sha256(n.encode()).hexdigest()[0], 16) % 2]
    first, second, *_ = chosen
    contents = dict.fromkeys(names, "a,b\n1,2\n")
    contents |= {first: text, second: text.replace("\n7,", "\n7,1,"), "._t": text}
    found = [*real_tables.tables(packed(contents))]
    others = {table.name for table in real_tables.tables(packed(contents), development=True)}
    assert not others & {*chosen}
    assert [(table.name, table.target, table.task) for table in found][:2] == [
        (first, "kind", "classification"), (first, "a", "regression")
    ]  # fmt: skip
    monkeypatch.setattr(real_tables, "archive", lambda: packed(contents))
    monkeypatch.setattr(real_tables, "NETWORKS", 3)
    more: dict[str, Any] = {
        "five trees": ("sklearn.ensemble", "ExtraTrees", {"n_estimators": 5}),
        "absent": ("not_installed", "Any", {}),
    }
    monkeypatch.setattr(real_tables, "OTHERS", real_tables.OTHERS | more)
    monkeypatch.chdir(tmp_path)
    shown, line = run_suite(read_settings(["suite=real_tables", "rounds=1"]))
    result = json.loads(line)
    (scores,) = result["scores"]["classification"].values()
    path = tmp_path / "t.csv"
    path.write_text(text)
    config = compose("data=csv", f"data.path={path}", "data.target=kind", "trainer=cpu", "seed=0")
    run = fit(config, tmp_path / "run")
    assert scores[real_tables.OURS] == run.result["test/acc"]
    assert scores[real_tables.BOOSTING] > 0.8
    overrides = ["task=classification", "trainer=cpu", "data.split_seed=0"]
    checked = check_pack(path, "kind", overrides, networks=3, folder=tmp_path / "pack")
    made = make_pack(checked)
    assert scores[real_tables.PACK] == made.result["test/acc"]
    ece = evaluate_path(made.folder, None, calibrated=True).calibration.before.ece
    assert scores[f"{real_tables.PACK}: ECE"] == pytest.approx(ece)
    assert 0 < scores[f"{real_tables.BOOSTING}: ECE"] < 0.3
    assert [*result["faults"]] == [second]
    assert "has 5 of 4 cells" in result["faults"][second]
    assert "2 of 3 tables train as they are" in shown
    assert (tmp_path / "real_tables.png").stat().st_size > 5000
    assert scores["five trees"] > 0.7
    assert "absent" not in shown
    shown, line = run_suite(read_settings(["suite=real_tables", "rounds=1", "every=2"]))
    fewer = json.loads(line)
    assert "1 of 2 tables train as they are" in shown
    assert fewer["scores"]["classification"].keys() == result["scores"]["classification"].keys()
    assert not fewer["scores"]["regression"]


def test_places_among_contenders() -> None:
    found = {"one": {"a": 0.9, "b": 0.8, "c": 0.8}, "two": {"a": 0.1, "b": 0.3, "c": -1.0}}
    assert real_tables.mean_ranks(found, ["a", "b", "c"]) == {"a": 1.5, "b": 1.75, "c": 2.75}


@pytest.mark.slow
def test_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gain of a piece is the score of a run with this piece less that of a run without."""
    x = np.random.default_rng(0).normal(size=(150, 2)).round(4).tolist()
    rows = [f"{n},{a},{b},{'xy'[int(a + b > 0)]}" for n, (a, b) in enumerate(x, 1)]
    text = "\n".join([",a,b,kind", *rows])
    names = [f"t{number}" for number in range(12)]
    name = next(n for n in names if int(hashlib.sha256(n.encode()).hexdigest()[0], 16) % 2 == 0)
    monkeypatch.setattr(real_tables, "archive", lambda: packed({name: text}))
    smoothing, rate = ("trainer.label_smoothing=0.1",), ("optimizer.lr=0.0001",)
    monkeypatch.setattr(pieces, "PIECES", [smoothing, rate])
    _, line = run_suite(read_settings(["suite=pieces", "rounds=1"]))
    gains = json.loads(line)["gains"]
    assert [*gains["regression"]] == [*rate]
    path = tmp_path / "t.csv"
    path.write_text(text)
    common = ("data=csv", f"data.path={path}", "data.target=kind", "trainer=cpu", "seed=0")
    usual, slow = (
        float(fit(compose(*common, *more), tmp_path / str(len(more))).result["test/acc"] or 0)
        for more in ((), rate)
    )
    assert gains["classification"][rate[0]] == [slow - usual]
    assert slow < usual


@pytest.mark.slow
def test_pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ROWS": 120, "COLUMNS": 12, "NETWORKS": 2, "HIDDEN": 200, "FEW": 2}.items():
        monkeypatch.setattr(pack, name, value)
    shown, line = run_suite(read_settings(["suite=pack", "rounds=2"]))
    result = json.loads(line)
    assert all(taken > 0 for taken in result["seconds"])
    assert [len(found) for found in result["covered"].values()] == [2, 2]
    assert "a table of 120 rows and 12 columns, a pack of 2:" in shown


@pytest.mark.slow
def test_the_plain_network_is_that_of_the_pack(tmp_path: Path) -> None:
    """As many parameters, and it learns."""
    x, y = load_iris(return_X_y=True)
    pack.write_table(tmp_path / "t.csv", x, y)
    texts = ["trainer.max_epochs=30", "trainer=cpu", "task=classification"]
    checked = check_pack(tmp_path / "t.csv", "label", texts, networks=2, folder=tmp_path / "pack")
    make_pack(checked)
    run = Run(tmp_path / "pack" / "0")
    data = DataModule(run.config.data, task=run.config.task)
    data.setup()
    model = pack.plain(run, data.train.features, data.train.labels).eval()
    assert sum(p.numel() for p in model.parameters()) == run.result["parameters"]
    right = model(data.train.features).argmax(1) == data.train.labels
    assert right.double().mean() > 0.9
