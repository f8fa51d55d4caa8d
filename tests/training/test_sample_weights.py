"""Weights of samples: in one batch, a sample with the weight n is as n equal samples."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kindling.config import schema
from kindling.config.compose import compose
from kindling.config.schema import Config
from kindling.data.sources.arrays import OwnArrays
from kindling.data.sources.catalogue import open_source
from kindling.data.sources.folds import training_and_validation
from kindling.inference.model import load
from kindling.records.folder import Run
from kindling.sweeps.command_line import check_command_line
from kindling.system.errors import InputError
from kindling.training.fit import fit
from tests.helpers.kills import Killed, die_after_writing
from tests.helpers.steps import NATIVE, STEPS
from tests.helpers.weights import same, weights

ROWS = 120
TASKS = {
    "classes": ("classification", []),
    "class weights": (
        "classification", ["trainer.class_weights=[1,2,0.5]", "trainer.label_smoothing=0.1"],
    ),
    "numbers": ("regression", []),
    "huber": ("regression", ["task.loss=huber", "task.delta=0.5"]),
    "quantiles": ("regression", ["task.loss=quantile"]),
    "labels": ("multilabel", []),
}  # fmt: skip
Arrays = tuple[Any, ...]


def arrays(task: str) -> Arrays:
    numbers = np.random.default_rng(3)
    x = numbers.normal(size=(ROWS, 4)).astype(np.float32)
    if task == "classification":
        y: Any = x[:, :3].argmax(1)
    elif task == "regression":
        y = np.stack([x.sum(1), x[:, 0] ** 2], 1)
    else:
        y = (x[:, :2] > 0).astype(int)
    return x, y, numbers.integers(0, 4, ROWS)


def configured(
    case: str, *overrides: str, data: tuple[str, ...] = ("data=arrays", "data.kind=numbers")
) -> Config:
    task, more = TASKS[case]
    return compose(
        f"task={task}", *more, *data, "data.batch_size=1000", "trainer=cpu",
        "trainer.max_epochs=10", "optimizer=adam", "optimizer.lr=0.02", "scheduler=none",
        "model.hidden_sizes=[8]", "trainer.progress_bar=false", *overrides,
    )  # fmt: skip


def repeated(given: Arrays) -> Arrays:
    *parts, w = given
    return tuple(np.repeat(part, w, 0) for part in parts)


def values(run: Run) -> list[float]:
    names = [name for name in run.history[-1] if name.startswith("val/")]
    found = [row[name] for row in run.history for name in names]
    found += [value for name, value in run.result.items() if name.startswith("test/")]  # type: ignore[misc]
    return [float(value) for value in found if value is not None]


@pytest.mark.parametrize("step", [*STEPS, "vmap"])
@pytest.mark.parametrize("case", TASKS)
def test_a_weight_is_a_number_of_samples(case: str, step: str, tmp_path: Path) -> None:
    """In losses, gradients, scores, and the scale of numbers."""
    given = arrays(TASKS[case][0])
    config = configured(case, f"trainer.step={step}")
    whole = repeated(given)
    weighted = fit(config, tmp_path / "a", data=given, validation=given, test=given)
    plain = fit(config, tmp_path / "b", data=whole, validation=whole, test=whole)
    assert weighted.result["step"] == step
    assert values(weighted) == pytest.approx(values(plain), rel=1e-3, abs=1e-4)
    for name, value in weights(plain).items():
        torch.testing.assert_close(weights(weighted)[name], value, rtol=0, atol=1e-3)
    unweighted = fit(config, tmp_path / "c", data=given[:2], validation=given[:2])
    assert values(unweighted)[:4] != pytest.approx(values(weighted)[:4], rel=1e-3)


@pytest.mark.parametrize("step", [NATIVE, "closed_form", "vmap"])
@pytest.mark.parametrize("case", TASKS)
def test_all_ways_of_a_step_take_the_same_steps(case: str, step: str, tmp_path: Path) -> None:
    """Of batches with different sums of weights, some of them 0."""
    x, y, w = arrays(TASKS[case][0])
    w[:40] = 0
    more = ("data.batch_size=3", "optimizer=sgd", "trainer.accumulate_grad_batches=2")
    runs = [
        fit(configured(case, f"trainer.step={s}", *more), tmp_path / s, data=(x, y, w), test=(x, y))
        for s in (step, "autograd")
    ]
    assert values(runs[0]) == pytest.approx(values(runs[1]), rel=1e-3, abs=1e-4)
    trained = [[row["train/loss"] for row in run.history[1:]] for run in runs]
    assert trained[0] == pytest.approx(trained[1], rel=1e-3)


def test_weights_of_one_change_nothing(tmp_path: Path) -> None:
    x, y, _ = arrays("classification")
    config = configured("classes", "data.batch_size=16")
    plain = fit(config, tmp_path / "a", data=(x, y))
    for number, weight in enumerate((np.ones(ROWS), np.full(ROWS, 4))):
        run = fit(config, tmp_path / str(number), data=(x, y, weight))
        for name, value in weights(plain).items():
            torch.testing.assert_close(weights(run)[name], value)
        assert values(run) == pytest.approx(values(plain), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_a_killed_run_with_weights_ends_as_an_undisturbed_one(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = arrays("classification")
    config = configured(
        "class weights", f"trainer.step={step}", "data.batch_size=8", "checkpoint.every_n_steps=5",
        "trainer.steps_per_call=2",
    )  # fmt: skip
    whole = fit(config, tmp_path / "whole", data=given)
    undo = die_after_writing(monkeypatch)
    with pytest.raises(Killed):
        fit(config, tmp_path / "killed", data=given)
    undo()
    assert same(whole, fit(config, tmp_path / "killed", data=given, resume=True))


def test_a_file_with_weights_is_as_arrays_with_weights(tmp_path: Path) -> None:
    x, y, w = arrays("classification")
    file = tmp_path / "a.npz"
    np.savez(file, x=x, y=y, w=w, x_val=x, y_val=y, w_val=w, x_test=x, y_test=y, w_test=w)
    config = configured(
        "classes", "data.batch_size=16", data=("data=npz", "data.kind=numbers", f"data.path={file}")
    )
    run = fit(config, tmp_path / "file")
    own = fit(
        configured("classes", "data.batch_size=16"), tmp_path / "own",
        data=(x, y, w), validation=(x, y, w), test=(x, y, w),
    )  # fmt: skip
    assert values(run) == values(own)
    for name, value in weights(run).items():
        assert torch.equal(value, weights(own)[name])


def table(path: Path, given: Arrays, missing: str = "") -> Path:
    """With the columns a to d, y and heft; `missing` is left out."""
    x, y, w = given
    columns = {**dict(zip("abcd", x.T.tolist(), strict=True)), "y": y.tolist(), "heft": w.tolist()}
    columns.pop(missing, None)
    rows = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    path.write_text("\n".join([",".join(columns), *rows]))
    return path


@pytest.mark.parametrize("case", ["classes", "numbers"])
def test_a_column_has_the_weights_of_a_table(case: str, tmp_path: Path) -> None:
    """Drawn with their rows into each part, and no feature."""
    x, y, w = arrays(TASKS[case][0])
    given = (x, y if y.ndim == 1 else y[:, 0], w)
    file, plain = table(tmp_path / "a.csv", given), table(tmp_path / "b.csv", given, "heft")
    typed = ("data=csv", "data.target=y", f"data.path={file}", f"data.val_path={file}")
    config = configured(case, "data.weights=heft", data=typed)
    source = open_source(config.data, config.task)
    assert source.validation is not None
    assert source.columns is not None
    assert [column.name for column in source.columns.columns] == [*"abcd"]
    first: Any = source.columns.columns[0]
    for split in (source.train, source.validation, source.test):
        assert split.weights is not None
        cells = split.features[:, 0].double() * first.deviation + first.mean
        rows = [int(np.abs(x[:, 0] - cell).argmin()) for cell in cells.tolist()]
        assert split.weights.tolist() == w[rows].tolist()
    run = fit(config, tmp_path / "run")
    typed = (*typed[:2], f"data.path={plain}", f"data.val_path={plain}")
    other = fit(configured(case, data=typed), tmp_path / "plain")
    assert values(run) != pytest.approx(values(other), rel=1e-3)
    # A weight is neither asked for nor read afterwards.
    assert [*load(run.folder).predict(plain)] == [*load(run.folder).predict(file)]


@pytest.mark.parametrize(
    ("cells", "told"),
    [
        (["1", "x"], r"heft: 1 of 120 cells is not a number \(line 3: 'x'\); write a weight"),
        (["1", ""], r"column heft: 1 of 120 cells is empty \(line 3\); write a weight there"),
        (["1", "-2"], r"heft: 1 of 120 cells is no weight \(line 3: '-2'\); write numbers"),
        (["0"], "heft: is 0 in all rows; write a weight above 0"),
    ],
)
def test_faults_of_a_column_of_weights(cells: list[str], told: str, tmp_path: Path) -> None:
    x, y, _ = arrays("classification")
    w = np.array([*cells, *cells[:1] * (ROWS - len(cells))])
    file = table(tmp_path / "a.csv", (x, y, w))
    typed = ("data=csv", "data.target=y", f"data.path={file}", "data.weights=heft")
    with pytest.raises(InputError, match=told):
        fit(configured("classes", data=typed), tmp_path / "run")


def test_a_column_of_weights_that_is_absent(tmp_path: Path) -> None:
    file = table(tmp_path / "a.csv", arrays("classification"))
    typed = ("data=csv", "data.target=y", f"data.path={file}", "data.weights=hef")
    told = "data.weights=hef: there is no such column; did you mean heft"
    for check in (check_command_line, lambda typed: open_source(compose(*typed).data)):
        with pytest.raises(InputError, match=told):
            check(typed)


@pytest.mark.parametrize("part", ["training", "validation", "test"])
@pytest.mark.parametrize("case", ["classes", "numbers", "labels"])
def test_a_drawn_part_without_any_weight_is_refused(case: str, part: str, tmp_path: Path) -> None:
    """Its mean would be a division by 0."""
    x, y, _ = arrays(TASKS[case][0])
    config, numbered = configured(case), OwnArrays(data=(x, y, np.arange(ROWS) + 1))
    assert isinstance(config.data, schema.Arrays)
    source = open_source(config.data.holding(numbered), config.task)
    held = training_and_validation(source.train, config.data, source.labels, None)
    found = dict(zip(("training", "validation", "test"), (*held, source.test), strict=True))[part]
    assert found.weights is not None
    w = np.ones(ROWS)
    w[found.weights.long().numpy() - 1] = 0
    told = f"all {len(found)} {part} samples have the weight 0; give one of them a weight"
    with pytest.raises(InputError, match=told):
        fit(config, tmp_path / "run", data=(x, y, w))


@pytest.mark.parametrize(
    ("w", "told"),
    [
        (np.ones(ROWS - 1), r"w is \(119,\) of float64, must be \(120,\), a weight for each row"),
        (-np.ones(ROWS), r"w\[0\] is -1; a weight must be a number from 0 to 3e\+38"),
        (np.full(ROWS, np.nan), r"w\[0\] is nan"),
        (np.full(ROWS, 1e39), r"w\[0\] is 1e\+39; a weight must be"),
        (np.zeros(ROWS), "w is 0 for all samples"),
        (np.full(ROWS, 1e-300), "w is 0 for all samples"),
        (np.full(ROWS, "a"), r"w is \(120,\) of <U1, must be"),
    ],
)
def test_faults_of_weights(w: Any, told: str, tmp_path: Path) -> None:
    x, y, _ = arrays("classification")
    with pytest.raises(InputError, match=told):
        fit(configured("classes"), tmp_path / "run", data=(x, y, w))


def test_a_measure_without_weights_is_refused(tmp_path: Path) -> None:
    config = configured("classes", "checkpoint.monitor=val/f1", "checkpoint.mode=max")
    with pytest.raises(InputError, match=r"val/f1: knows no weights of samples; type checkpoint"):
        fit(config, tmp_path / "run", data=arrays("classification"))
