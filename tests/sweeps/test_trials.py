"""Trials that train as stacks, against the single runs that they stand for."""

import itertools
import json
import math
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.crashes import digest
from kindling.config.compose import compose
from kindling.config.schema import Config
from kindling.data.sources.catalogue import open_source, require_divisible
from kindling.data.sources.folds import Folds
from kindling.inference.evaluation import evaluate_path
from kindling.models import build_model
from kindling.records import sweep_folder
from kindling.records.checkpoint import CheckpointPair
from kindling.records.folder import Run
from kindling.records.sweep_folder import Sweep
from kindling.steps import lanes
from kindling.sweeps import trials
from kindling.sweeps.trials import train_trials
from kindling.system.errors import InputError
from kindling.training import checkpoints, history
from kindling.training.fit import fit, fit_stack
from kindling.training.grouping import group_trials
from tests.helpers.commands import SMALL
from tests.helpers.grids import SEEDS, WIDTHS, grid
from tests.helpers.kills import Killed
from tests.helpers.steps import AUTO
from tests.helpers.weights import same


def checkpoint(run: Run) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(run.last_checkpoint, weights_only=True)
    return content


def stack(configs: list[Config], folder: Path) -> list[Run]:
    folders = [folder / str(number) for number in range(len(configs))]
    return fit_stack(configs, folders, folder / "stack")


FOLDS = [f"data.fold={fold}" for fold in range(3)]
CASES: dict[str, tuple[list[list[str]], tuple[str, ...]]] = {
    "widths, rates, seeds": ([WIDTHS, ["optimizer.lr=0.05", "optimizer.lr=0.1"], SEEDS], ()),
    "momentum": (
        [["optimizer.momentum=0.5", "optimizer.momentum=0.9"], SEEDS],
        ("optimizer.lr=0.01", "optimizer.weight_decay=0.001", "optimizer.nesterov=true"),
    ),
    "adamw": (
        [["optimizer.lr=0.001", "optimizer.lr=0.003"], ["optimizer.weight_decay=0.1"], WIDTHS],
        ("optimizer=adamw",),
    ),
    "logistic": (
        [["optimizer.lr=0.01", "optimizer.lr=0.1"], SEEDS],
        ("model=logistic_regression",),
    ),
    "two layers": (
        [["model.hidden_sizes=[16,8]", "model.hidden_sizes=[24,12]"], SEEDS],
        ("optimizer.lr=0.05",),
    ),
    "three layers": (
        [["model.hidden_sizes=[16,8,8]", "model.hidden_sizes=[9,12,5]"]],
        ("optimizer.lr=0.05", "model.activation=gelu"),
    ),
    "clipped, accumulated": (
        [WIDTHS, SEEDS],
        ("optimizer.lr=0.1", "trainer.gradient_clip_val=0.1", "trainer.accumulate_grad_batches=5"),
    ),
    "multistep": (
        [["scheduler.milestones=[1]", "scheduler.milestones=[2]"], ["scheduler.gamma=0.1"]],
        ("optimizer.lr=0.1",),
    ),
    "cosine": (
        [["scheduler.eta_min=0.0", "scheduler.eta_min=0.05"]],
        ("scheduler=cosine", "optimizer.lr=0.1"),
    ),
    "onecycle": (
        [["scheduler.pct_start=0.3", "scheduler.pct_start=0.6"], SEEDS],
        ("scheduler=onecycle", "optimizer.lr=0.1"),
    ),
    "no scheduler": ([["optimizer.lr=0.01", "optimizer.lr=0.1"]], ("scheduler=none",)),
    "batch norm": ([WIDTHS, SEEDS], ("model.norm=batch", "optimizer.lr=0.1")),
    "batch norm, adamw": ([WIDTHS, SEEDS], ("model.norm=batch", "optimizer=adamw")),
    "layer norm": ([WIDTHS, SEEDS], ("model.norm=layer", "optimizer.lr=0.1")),
    "average": ([WIDTHS, SEEDS], ("trainer.ema_decay=0.9", "model.norm=batch", "optimizer.lr=0.1")),
    "constrained, smoothed, warmed up": (
        [WIDTHS, ["scheduler.warmup_epochs=0.5", "scheduler.warmup_epochs=1.0"]],
        ("model.max_norm=0.8", "trainer.label_smoothing=0.1", "optimizer.lr=0.3"),
    ),
    "folds": ([WIDTHS, SEEDS, FOLDS], ("data.folds=3",)),
    "folds, bf16": (
        [WIDTHS, FOLDS],
        ("data.folds=3", "trainer.precision=bf16-mixed", "optimizer.lr=0.05"),
    ),
    "calibration": (
        [WIDTHS, FOLDS],
        ("data.folds=3", "checkpoint.monitor=val/ece", "checkpoint.mode=min"),
    ),
    "probabilities, closed form": (
        [WIDTHS, FOLDS],
        ("data.folds=3", "checkpoint.monitor=val/auroc", "trainer.step=closed_form"),
    ),
    "class weights, balanced samples": (
        [WIDTHS, SEEDS],
        ("trainer.class_weights=balanced", "data.sampler=balanced", "trainer.label_smoothing=0.1"),
    ),
    "class weights, closed form": (
        [WIDTHS, SEEDS],
        ("trainer.class_weights=balanced", "data.sampler=balanced", "trainer.step=closed_form"),
    ),
    "bf16": ([WIDTHS, SEEDS], ("trainer.precision=bf16-mixed", "optimizer.lr=0.05")),
}


@pytest.mark.parametrize("case", CASES)
def test_a_trial_is_its_single_run(case: str, tmp_path: Path) -> None:
    axes, common = CASES[case]
    configs = grid(*axes, common=common)
    assert [len(group.trials) for group in group_trials(configs)] == [len(configs)]
    for config, run in zip(configs, stack(configs, tmp_path / "fused"), strict=True):
        solo = fit(config, tmp_path / "solo" / run.folder.name)
        fused, alone = checkpoint(run), checkpoint(solo)
        if run.result["step"] == "native":
            assert same(run, solo)
            for part in ("optimizer_states", "average"):
                assert digest(fused[part]) == digest(alone[part])
        tolerance = 2e-2 if "bf16" in case else 1e-4
        for name, value in alone["state_dict"].items():
            error = (fused["state_dict"][name] - value).abs().max() / value.abs().max()
            assert error < tolerance, (name, error)
        assert set(fused) == set(alone)
        states = [content["optimizer_states"][0]["state"] for content in (fused, alone)]
        assert states[0].keys() == states[1].keys()
        assert run.config == solo.config
        for row, other in zip(run.history, solo.history, strict=True):
            assert (row["epoch"], row["step"], row["lr"]) == (
                other["epoch"],
                other["step"],
                other["lr"],
            )
            difference = abs(float(row["val/acc"] or 0) - float(other["val/acc"] or 0))
            assert difference <= (6.1 if "bf16" in case else 2.1) / 288
            monitor = config.checkpoint.monitor
            if monitor == "val/auroc":
                assert row[monitor] == pytest.approx(other[monitor], abs=1e-4)
        assert run.result.keys() == solo.result.keys()
        closed = "bf16" in case or "closed form" in case
        kind = "closed_form" if closed else AUTO
        assert (run.result["stacked"], run.result["step"]) == (len(configs), kind)
        assert evaluate_path(run.folder, None).accuracy == run.result["test/acc"]


def test_folds_of_groups_are_their_single_runs(tmp_path: Path) -> None:
    """Folds of groups differ in size, so all trials take the steps of the smallest."""
    stream = np.random.default_rng(0)
    groups = stream.integers(0, 8, 120)
    np.savez(tmp_path / "a.npz", x=stream.random((120, 5)), y=np.arange(120) % 3, who=groups)
    data = (f"data.path={tmp_path}/a.npz", "data.group=who", "data.folds=3", "data.batch_size=7")
    configs = [
        compose("data=npz", *data, f"data.fold={fold}", "trainer=cpu", "trainer.max_epochs=2")
        for fold in range(3)
    ]
    assert [group.trials for group in group_trials(configs)] == [[0, 1, 2]]
    train = open_source(configs[0].data).train
    sizes = Folds(train, 3, 0).sizes.tolist()
    assert len(set(sizes)) > 1
    for config, run in zip(configs, stack(configs, tmp_path / "fused"), strict=True):
        solo = fit(config, tmp_path / "solo" / run.folder.name)
        assert same(run, solo)
        steps = -(-(len(train) - max(sizes)) // 7)
        assert [row["step"] for row in run.history] == [0, steps, 2 * steps]
        assert evaluate_path(run.folder, None).accuracy == run.result["test/acc"]


def test_initial_weights_are_those_of_the_single_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[dict[str, Tensor]] = []

    def record(*arguments: Any) -> torch.nn.Module:
        model = build_model(*arguments)
        built.append({name: value.clone() for name, value in model.state_dict().items()})
        return model

    monkeypatch.setattr("kindling.training.building.build_model", record)
    configs = grid(WIDTHS, SEEDS)
    stack(configs, tmp_path)
    for config, weights in zip(configs, built, strict=True):
        torch.manual_seed(config.seed)
        expected = build_model(config.model, open_source(config.data).shape, 10).state_dict()
        assert all(torch.equal(weights[name], value) for name, value in expected.items())


def test_lanes_end_with_the_same_bits_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever thread is faster, and however long a block is; with random numbers of each lane."""
    monkeypatch.setattr(lanes, "WORTH", 1.0)
    monkeypatch.setattr("kindling.training.building.available", lambda: 3)
    common = ("model.dropout=0.2", "model.input_dropout=0.1", "model.noise=0.1")
    found = []
    for name, block in (("first", "auto"), ("again", "auto"), ("short", "1"), ("odd", "5")):
        configs = grid(WIDTHS, SEEDS, common=(*common, f"trainer.steps_per_call={block}"))
        runs = stack(configs, tmp_path / name)
        assert runs[0].result["hardware"]["threads"] == 3
        rows = [{**row, "seconds": 0} for run in runs for row in run.history]
        found.append((digest([checkpoint(run)["state_dict"] for run in runs]), rows))
    assert found == found[:1] * 4


def test_a_trial_that_diverges_harms_no_other(tmp_path: Path) -> None:
    def rates(last: str) -> list[Config]:
        return grid(["optimizer.lr=0.1", f"optimizer.lr={last}", "optimizer.lr=0.05"])

    sane = stack(rates("0.02"), tmp_path / "sane")
    wild = stack(rates("1e6"), tmp_path / "wild")
    for number in (0, 2):
        a, b = (checkpoint(runs[number])["state_dict"] for runs in (sane, wild))
        assert all(torch.equal(a[name], b[name]) for name in a)  # bit for bit
        assert wild[number].result["status"] == "finished"
    result = wild[1].result
    assert result["status"] == "diverged"
    assert 1 <= (result["diverged_step"] or 0) <= 24
    assert not wild[1].last_checkpoint.exists()
    assert result["best"]["val/acc"] is None
    assert math.isnan(wild[1].monitored)
    assert len(wild[1].history) == 2  # before training, and the epoch that showed it


def test_a_single_run_that_diverges_says_at_which_step(tmp_path: Path) -> None:
    run = fit(compose(*SMALL, "optimizer.lr=1e6", "trainer.max_epochs=5"), tmp_path / "run")
    result = run.result
    assert result["status"] == "diverged"
    assert result["epochs"] == 1
    assert 2 <= (result["diverged_step"] or 0) <= 12
    assert float(run.history[-1]["train/loss"] or 0) > 1e6
    assert not run.best_checkpoint.exists()
    assert json.loads(run.result_file.read_text(), parse_constant=pytest.fail) == result


class KilledError(Exception):
    """Stands for a process that is gone."""


@pytest.mark.slow
def test_a_sweep_goes_on_where_it_stood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configs = grid(
        WIDTHS,
        SEEDS,
        ["trainer.label_smoothing=0.0", "trainer.label_smoothing=0.2"],
        common=("trainer.max_epochs=4", "optimizer.lr=0.05"),
    )

    def train(folder: Path) -> list[Run]:
        folder.mkdir(exist_ok=True)
        folders = [folder / str(number) for number in range(len(configs))]
        train_trials(configs, folders, Sweep(folder), None)
        return [Run(each) for each in folders]

    expected = train(tmp_path / "whole")

    epochs = itertools.count()
    append = Run.append_history

    def append_until_killed(run: Run, rows: Any) -> None:
        if next(epochs) == 4 * 5 + 4 * 3 + 2:  # in the second stack, half of epoch 3's rows written
            raise KeyboardInterrupt
        append(run, rows)

    monkeypatch.setattr(history, "FILES_SHARE", 1e9)  # rows are written after each epoch
    monkeypatch.setattr(Run, "append_history", append_until_killed)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        train(tmp_path / "killed")
    monkeypatch.setattr(Run, "append_history", append)
    files = {
        run.folder: run.result_file.stat().st_mtime_ns
        for run in Sweep(tmp_path / "killed").runs
        if run.result.get("status") == "finished"
    }
    assert len(files) == 4
    resumed = train(tmp_path / "killed")
    for folder, modified in files.items():
        assert Run(folder).result_file.stat().st_mtime_ns == modified  # untouched
    for run, whole in zip(resumed, expected, strict=True):
        a, b = checkpoint(run)["state_dict"], checkpoint(whole)["state_dict"]
        assert all(torch.equal(a[name], b[name]) for name in a)
        rows = [
            [{k: v for k, v in row.items() if k != "seconds"} for row in each.history]
            for each in (run, whole)
        ]
        assert rows[0] == rows[1]
        assert run.result["test/acc"] == whole.result["test/acc"]
    assert not (tmp_path / "killed" / ".stacks").exists()


def test_a_sweep_of_one_is_a_single_run(tmp_path: Path) -> None:
    config = compose(*SMALL, "optimizer.lr=0.1", "model.dropout=0.2")
    (value,) = train_trials([config], [tmp_path / "0"], Sweep(tmp_path), None)
    run, solo = Run(tmp_path / "0"), fit(config, tmp_path / "solo")
    assert value == solo.monitored
    a, b = checkpoint(run)["state_dict"], checkpoint(solo)["state_dict"]
    assert all(torch.equal(a[name], b[name]) for name in a)  # bit for bit
    files = [
        {path.name for path in each.folder.rglob("*") if path.is_file()} for each in (run, solo)
    ]
    assert files[0] == files[1] - {"previous.ckpt"}  # a stack keeps its own, until its trials end


def test_a_stack_that_fails_ends_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configs = grid(["data.batch_size=100", "data.batch_size=5000"], common=("data.drop_last=true",))
    values = train_trials(configs, [tmp_path / "0", tmp_path / "1"], Sweep(tmp_path), None)
    assert values[0] > 0
    assert math.isnan(values[1])
    assert [run.result["status"] for run in Sweep(tmp_path).runs] == ["finished", "failed"]


def test_overview_counts_stacks() -> None:
    assert trials._overview([64, 1, 3, 1]) == "2 stacks of 64, 3 and 2 alone"
    assert trials._overview([1, 1]) == "2 alone"


def files_of(folder: Path, count: int) -> list[list[str]]:
    """The names of the checkpoints of each trial."""
    runs = [Run(folder / str(number)) for number in range(count)]
    return [
        sorted(path.name for path in run.checkpoints.iterdir()) if run.checkpoints.exists() else []
        for run in runs
    ]


KEPT = [
    ["optimizer.lr=0.001", "optimizer.lr=0.1", "optimizer.lr=0.03", "optimizer.lr=1e9"],
    ["model.hidden_sizes=8", "model.hidden_sizes=[8,8]"],  # two stacks
]


@pytest.mark.slow
@pytest.mark.parametrize(("keep", "halving"), [("best", None), ("2", None), ("3", 2)])
def test_what_stays_of_a_trial(
    keep: str, halving: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The results are those of a sweep that keeps all. Killed at any removal, or before any result,
    and resumed, a sweep ends with the same files."""
    common = ("trainer.max_epochs=3", "scheduler=none")
    configs = [grid(*KEPT, common=(*common, f"checkpoint.keep={kept}")) for kept in ("all", keep)]
    folders = [tmp_path / "all", tmp_path / "kept"]
    for folder, each in zip(folders, configs, strict=True):
        train(each, folder, halving)
    whole = [Run(folders[0] / str(number)) for number in range(8)]
    alone = [result_of(run) for run in whole]
    assert [result_of(Run(folders[1] / str(number))) for number in range(8)] == alone
    everything = files_of(folders[0], 8)
    if keep == "best":
        expected = [[name for name in names if name == "best.ckpt"] for names in everything]
    else:

        def rank(number: int) -> float:
            run = whole[number]
            return -run.monitored if run.result["status"] == "finished" else math.inf

        best = sorted(range(8), key=rank)[: int(keep)]
        expected = [names if number in best else [] for number, names in enumerate(everything)]
    assert files_of(folders[1], 8) == expected
    for number, names in enumerate(expected):
        for name in names:
            paths = [folder / str(number) / "checkpoints" / name for folder in folders]
            contents = [torch.load(path, weights_only=True) for path in paths]
            assert digest(contents[0]["state_dict"]) == digest(contents[1]["state_dict"])
    for owner, name, before in KILLS:
        folder = tmp_path / f"{name}{before}"
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fatal_after(getattr(owner, name), before))
            with suppress(Killed):  # where fewer files are removed, nothing is killed
                train(configs[1], folder, halving)
        sweep_folder._KNOWN.clear()  # another process
        train(configs[1], folder, halving)
        assert files_of(folder, 8) == expected
        assert [result_of(Run(folder / str(number))) for number in range(8)] == alone


# What a process does last before it is killed, and how many times it has done that.
KILLS: list[tuple[Any, str, int]] = [
    (Run, "write_result_text", 0), (Run, "write_result_text", 5), (Run, "remove_checkpoints", 0),
    (Path, "unlink", 0), (Path, "unlink", 3),
]  # fmt: skip


def fatal_after(method: Callable[..., Any], calls: int) -> Callable[..., Any]:
    """The method, which kills the process at the call after so many. Locks are left alone."""
    left = iter(range(calls))

    def call(owner: Any, *given: Any, **more: Any) -> Any:
        counts = not isinstance(owner, Path) or owner.suffix == ".ckpt"
        if counts and next(left, None) is None:
            raise Killed
        return method(owner, *given, **more)

    return call


def train(configs: list[Config], folder: Path, halving: int | None) -> None:
    folder.mkdir(exist_ok=True)
    folders = [folder / str(number) for number in range(len(configs))]
    train_trials(configs, folders, Sweep(folder), None, halving)


def result_of(run: Run) -> tuple[Any, ...]:
    result = run.result
    return result["status"], result["test/acc"], result["best"], result["config_hash"]


@pytest.mark.parametrize("killed", [False, True], ids=["", "killed"])
@pytest.mark.parametrize("halving", [None, 2])
def test_a_trial_that_was_removed_trains_again(
    halving: int | None, killed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone, with the bits that it had; after halving, with all trials of its stack. The histories
    of the others have no row twice."""
    fine = (*SMALL, "checkpoint.every_n_epochs=1")
    configs = [compose(*fine, f"seed={seed}") for seed in range(3)]
    train(configs, tmp_path, halving)
    runs = [Run(tmp_path / str(number)) for number in range(3)]
    before = [
        (result_of(run), len(run.history), digest(checkpoint(run)["state_dict"])) for run in runs
    ]
    files = [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("[02]/**/*.*"))]
    shutil.rmtree(runs[1].folder)
    if killed:
        with monkeypatch.context() as patch:
            patch.setattr(CheckpointPair, "write", fatal_after(CheckpointPair.write, 1))
            with pytest.raises(Killed):
                train(configs, tmp_path, halving)
    train(configs, tmp_path, halving)
    again = [
        (result_of(run), len(run.history), digest(checkpoint(run)["state_dict"])) for run in runs
    ]
    assert again == before
    kept = [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("[02]/**/*.*"))]
    assert (kept == files) == (halving is None)
    assert not (tmp_path / ".stacks").exists()


def test_a_stack_without_a_state_that_is_killed_among_its_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trials that have no result train again; those that have one stay as they are."""
    monkeypatch.setattr(checkpoints, "UNNOTICED", 0)
    monkeypatch.setattr(checkpoints, "SPEED", 1.0)  # a state would cost too much
    configs = [compose(*SMALL, f"seed={seed}") for seed in range(4)]
    train(configs, tmp_path / "whole", None)
    with monkeypatch.context() as patch:
        patch.setattr(Run, "write_result_text", fatal_after(Run.write_result_text, 2))
        with pytest.raises(Killed):
            train(configs, tmp_path / "killed", None)
    whole, killed = (
        [Run(tmp_path / name / str(number)) for number in range(4)] for name in ("whole", "killed")
    )
    assert not list((tmp_path / "killed").glob(".stacks/*/*.ckpt"))
    ended = {run.result_file: run.result_file.read_text() for run in killed if run.ended}
    assert len(ended) == 2
    train(configs, tmp_path / "killed", None)
    assert {file: file.read_text() for file in ended} == ended
    for run, expected in zip(killed, whole, strict=True):
        assert (result_of(run), len(run.history)) == (result_of(expected), 3)
        assert digest(checkpoint(run)["state_dict"]) == digest(checkpoint(expected)["state_dict"])


BROKEN: dict[str, dict[str, bytes | None]] = {
    "csv": {
        "cut": b'a,b,y\n1,2\n"',
        "empty": b"",
        "one row": b"a,b,y\n1,2,x\n",
        "one class": b"a,b,y\n" + 20 * b"1,2,x\n",
        "bytes": b"\xff\xfe\x00\x01\xd8",
    },
    "npz": {"cut": b"PK\x03\x04", "empty": b"", "other arrays": None},
}


@pytest.mark.parametrize(
    ("kind", "fault", "overrides"),
    [
        *((kind, fault, ()) for kind, faults in BROKEN.items() for fault in faults),
        ("npz", "cut", ("model=cnn", "model.channels=[2]")),
        ("npz", "cut", ("data.batch_size=auto",)),
        ("csv", "cut", ("data.batch_size=auto",)),
        ("csv", "cut", ("data.group=b", "data.folds=3", "data.fold=0")),
    ],
)
def test_only_the_trials_of_a_broken_file_fail(
    kind: str, fault: str, overrides: tuple[str, ...], tmp_path: Path
) -> None:
    """The others train as alone; the broken file's trial tells the fault of its single run."""
    stream = np.random.default_rng(0)
    for name in ("good", "other"):
        x, y = stream.random((60, 6, 6), np.float32), np.arange(60) % 2
        if kind == "npz":
            np.savez(tmp_path / f"{name}.npz", x=x, y=y)
        else:
            rows = [f"{x[n, 0, 0]},{n % 20},{y[n]}" for n in range(60)]
            (tmp_path / f"{name}.csv").write_text("\n".join(["a,b,y", *rows]))
    content = BROKEN[kind][fault]
    if content is None:
        np.savez(tmp_path / "broken.npz", z=np.zeros(3))
    else:
        (tmp_path / f"broken.{kind}").write_bytes(content)
    target = ("data.target=y",) if kind == "csv" else ()
    common = (f"data={kind}", *target, "trainer=cpu", "trainer.max_epochs=1", *overrides)
    configs = [
        compose(*common, f"data.path={tmp_path / name}.{kind}", f"seed={seed}")
        for name in ("good", "broken", "other")
        for seed in (0, 1)
    ]
    require_divisible(configs)
    folders = [tmp_path / "sweep" / str(number) for number in range(6)]
    train_trials(configs, folders, Sweep(tmp_path / "sweep"), None)
    for number, config in enumerate(configs):
        found, alone = Run(folders[number]).result, tmp_path / "alone" / str(number)
        if number in (2, 3):
            with pytest.raises(InputError) as caught:
                fit(config, alone)
            assert found == {"status": "failed", "error": f"InputError: {caught.value}"}
        else:
            assert found["status"] == "finished"
            assert found["test/loss"] == fit(config, alone).result["test/loss"]
