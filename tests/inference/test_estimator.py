"""The classifier and the regressor of scikit-learn."""

import json
import os
import pickle
import random
import re
import signal
import tempfile
import time
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris, load_wine
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import validate_data

from kindling.config.compose import compose
from kindling.config.drawn import draw_settings
from kindling.config.schema import Csv
from kindling.data.tables.learning import learn_columns
from kindling.data.tables.table import as_table
from kindling.inference.estimator import KindlingClassifier, KindlingRegressor
from kindling.inference.model import load
from kindling.models import construct_model
from kindling.records.folder import Run
from kindling.steps.native import NativeLearner
from kindling.system import resources
from kindling.system.errors import InputError, Interrupted
from kindling.training.fit import fit

# As of scikit-learn's own networks; test_whole_weights_are_repeated_rows has one batch.
BATCHES = {
    f"check_sample_weight_equivalence_on_{kind}_data": "repeated rows fall into other batches"
    for kind in ("dense", "sparse")
}


@pytest.mark.parametrize("estimator", [KindlingClassifier, KindlingRegressor])
def test_arrays_that_are_read_only(estimator: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """As joblib shares them. PyTorch warns of them, once in each process: so another test may have
    had the warning."""
    convert = torch.from_numpy
    given = []

    def from_numpy(array: NDArray[Any]) -> torch.Tensor:
        given.append(array.flags.writeable)
        return convert(array)

    monkeypatch.setattr(torch, "from_numpy", from_numpy)
    x, y = load_iris(return_X_y=True)
    for dtype in (np.float32, np.float64):
        arrays = [x.astype(dtype), y, np.ones(len(y))]
        for array in arrays:
            array.flags.writeable = False
        fitted = estimator(max_epochs=2).fit(arrays[0], y, sample_weight=arrays[2])
        fitted.predict(arrays[0])
        fitted.score(arrays[0], y)
    assert given
    assert all(given)


@pytest.mark.parametrize("kind", [KindlingClassifier, KindlingRegressor])
def test_plain_rows_skip_the_checks_of_scikit_learn(
    kind: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is quicker, and changes no answer and no refusal."""
    x, y = load_iris(return_X_y=True)
    model = kind(max_epochs=2).fit(x, y)
    checked = list[object]()

    def validated(*given: Any, **how: Any) -> Any:
        checked.append(given)
        return validate_data(*given, **how)

    monkeypatch.setattr("kindling.inference.estimator.validate_data", validated)
    answers = model.predict_proba if kind is KindlingClassifier else model.predict
    expected = answers(x.tolist())
    assert len(checked) == 1
    plain = [x, x.astype(np.float32), np.asfortranarray(x), x.astype(np.longdouble), x[::-1][::-1]]
    for rows in plain:
        np.testing.assert_array_equal(answers(rows), expected)
    np.testing.assert_array_equal(answers(x[7:8]), expected[7:8])
    large = np.full_like(x, 1e36)  # whose sum is infinite
    for odd in (x.astype(object), np.rint(x).astype(int), sparse.csr_matrix(x), large):
        answers(odd)
    assert len(checked) == 5
    faulty = {"NaN": x.copy(), "infinity": x.copy(), "too large": x.copy()}
    for value, rows in zip((np.nan, -np.inf, 1e39), faulty.values(), strict=True):
        rows[3, 1] = value
    for name, rows in {
        **faulty, "3 features": x[:, :3], "0 sample": x[:0], "1D array": x[0],
        "dim 3": x[None], "scalar array": np.array(1.0),
    }.items():  # fmt: skip
        told = "infinity or a value too large" if name in ("infinity", "too large") else name
        with pytest.raises(ValueError, match=told), np.errstate(over="ignore"):
            answers(rows)


def test_plain_rows_of_a_model_that_knows_the_names_of_columns() -> None:
    x, y = load_iris(return_X_y=True, as_frame=False)
    model = KindlingClassifier(max_epochs=1).fit(pl.DataFrame(x), y)
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        model.predict(x)


def test_pictures_by_a_setting_are_still_checked() -> None:
    x, y = np.random.default_rng(0).random((60, 4)), np.arange(60) % 2
    model = KindlingClassifier(max_epochs=1, overrides=["data.kind=pictures"]).fit(x, y)
    assert model.predict(x).shape == (60,)
    with pytest.raises(InputError, match="must be from 0 to 1"):
        model.predict(x + 1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore:column .* of X has values around")
@pytest.mark.parametrize("estimator", [KindlingClassifier(), KindlingRegressor()])
def test_scikit_learns_own_checks(estimator: KindlingClassifier | KindlingRegressor) -> None:
    results = check_estimator(estimator, on_fail=None, expected_failed_checks=BATCHES)
    failed = {r["check_name"]: str(r["exception"]) for r in results if r["status"] == "failed"}
    assert not failed
    assert sum(result["status"] == "passed" for result in results) > 45


@pytest.mark.slow
def test_it_is_the_run_of_its_settings(tmp_path: Path) -> None:
    """The same weights, as `fit` on the same file gives; classes are those of y."""
    x, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    classifier = KindlingClassifier(
        (16, 8), max_epochs=3, random_state=5, overrides=["model.dropout=0.1"],
        folder=tmp_path / "a",
    )  # fmt: skip
    assert classifier.fit(x, names) is classifier
    x32 = x.astype(np.float32)
    np.savez(tmp_path / "iris.npz", x=x32, y=y, x_test=x32[:1], y_test=y[:1])
    config = compose(
        "data=npz", f"data.path={tmp_path / 'iris.npz'}", "data.val_fraction=null",
        "data.batch_size=100", "optimizer=adam", "optimizer.lr=0.01", "model.hidden_sizes=[16,8]",
        "trainer.max_epochs=3", "seed=5", "model.dropout=0.1", "checkpoint.monitor=val/loss",
        "checkpoint.mode=min",
    )  # fmt: skip
    run = fit(config, tmp_path / "b")
    expected = load(run.folder).predict_proba(x32)
    assert np.array_equal(classifier.predict_proba(x), expected)
    assert np.array_equal(classifier.predict(x), names[np.argsort(y)][::50][expected.argmax(1)])
    assert list(classifier.classes_) == ["setosa", "versicolor", "virginica"]
    assert classifier.n_iter_ == 3
    assert [row["val/acc"] for row in classifier.history_] == [r["val/acc"] for r in run.history]


def test_in_pipelines_and_searches() -> None:
    """Without hidden layers it finds what scikit-learn's logistic regression finds."""
    x, y = load_wine(return_X_y=True)
    ours = KindlingClassifier((), lr=0.1, max_epochs=60, batch_size=200)
    scores = [
        cross_val_score(make_pipeline(StandardScaler(), each), x, y, cv=3).mean()
        for each in (ours, LogisticRegression(C=1e4))
    ]
    assert scores[0] > scores[1] - 0.02
    assert scores[0] > 0.95
    search = GridSearchCV(ours, {"lr": [1e-6, 0.1]}, cv=2).fit(StandardScaler().fit_transform(x), y)
    assert search.best_params_ == {"lr": 0.1}


def test_copies_and_pickles_predict_the_same() -> None:
    x, y = load_iris(return_X_y=True)
    classifier = KindlingClassifier(max_epochs=2).fit(x, y)
    again = clone(classifier).fit(x, y)
    for other in (pickle.loads(pickle.dumps(classifier)), again):
        assert np.array_equal(other.predict_proba(x), classifier.predict_proba(x))


def test_random_numbers_of_the_program_go_on() -> None:
    x, y = load_iris(return_X_y=True)

    def drawn(train: bool) -> list[float]:
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        torch.manual_seed(1)
        if train:
            KindlingClassifier(max_epochs=1).fit(x, y)
        return [random.random(), np.random.rand(), torch.rand(1).item()]  # noqa: NPY002

    assert drawn(True) == drawn(False)


def test_random_states_of_scikit_learn() -> None:
    """A number is the seed; a stream draws another one each time."""
    x, y = load_iris(return_X_y=True)

    def trained(state: Any) -> Any:
        return KindlingClassifier(max_epochs=1, random_state=state).fit(x, y).predict_proba(x)

    stream = np.random.RandomState(3)
    first, second = trained(stream), trained(stream)
    assert not np.array_equal(first, second)
    assert np.array_equal(first, trained(np.random.RandomState(3)))
    assert np.array_equal(trained(7), trained(np.int64(7)))
    assert not np.array_equal(trained(None), trained(None))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"lr": -1}, "optimizer.lr=-1: must be greater than 0"),
        ({"hidden_sizes": (0,)}, "model.hidden_sizes"),
        ({"optimizer": "sgdd"}, "optimizer"),
        ({"max_epochs": 0, "batch_size": 0}, "2 faults"),
        ({"overrides": ["model.dropot=0.1"]}, "did you mean model.dropout"),
        ({"overrides": ["optimizer.lr=0.1,0.2"]}, "optimizer.lr"),
        ({"val_fraction": 2}, "data.val_fraction"),
    ],
)
def test_wrong_settings_are_value_errors(settings: dict[str, Any], told: str) -> None:
    x, y = load_iris(return_X_y=True)
    with pytest.raises(ValueError, match=told):
        KindlingClassifier(**settings).fit(x, y)


def test_one_class_is_refused(tmp_path: Path) -> None:
    x, _ = load_iris(return_X_y=True)
    with pytest.raises(ValueError, match="one class"):
        KindlingClassifier().fit(x, np.zeros(len(x)))
    classifier = KindlingClassifier(max_epochs=1, folder=tmp_path / "run").fit(x, _)
    with pytest.raises(ValueError, match="holds a run already"):
        clone(classifier).fit(x, _)


def test_one_hidden_layer_may_be_a_number() -> None:
    x, y = load_iris(return_X_y=True)
    number, listed = (KindlingClassifier(sizes, max_epochs=1).fit(x, y) for sizes in (5, [5]))
    assert np.array_equal(number.predict_proba(x), listed.predict_proba(x))
    one = KindlingClassifier(5, max_epochs=1, overrides="model.dropout=0.5").fit(x, y)
    several = KindlingClassifier(5, max_epochs=1, overrides=["model.dropout=0.5"]).fit(x, y)
    assert np.array_equal(one.predict_proba(x), several.predict_proba(x))
    assert not np.array_equal(one.predict_proba(x), number.predict_proba(x))
    with pytest.raises(ValueError, match="y has the one class 2; this classifier needs"):
        KindlingClassifier().fit(x, np.full(len(x), 2))


def test_what_other_classifiers_have_is_here_or_says_why_not() -> None:
    """All of MLPClassifier's methods and results, and those that users of others look for."""
    x, y = load_iris(return_X_y=True)
    classifier = KindlingClassifier(max_epochs=3).fit(x, y)
    history = classifier.history_
    assert classifier.loss_curve_ == [row["train/loss"] for row in history[1:]]
    assert len(classifier.loss_curve_) == classifier.n_iter_ == 3
    assert np.array_equal(
        np.exp(classifier.predict_log_proba(x)), np.exp(np.log(classifier.predict_proba(x)))
    )
    for name, remedy in {
        "decision_function": "use predict_log_proba",
        "partial_fit": "a run is trained as a whole; fit all rows, or train on",
        "coefs_": "the weights are in model_.trained.model.state_dict()",
        "intercepts_": "the weights are in model_.trained.model.state_dict()",
    }.items():
        assert not hasattr(classifier, name)
        with pytest.raises(
            AttributeError, match=re.escape(f"KindlingClassifier has no {name}: ")
        ) as e:
            getattr(classifier, name)
        assert remedy in str(e.value)
    with pytest.raises(TypeError, match="fit takes no epochs"):
        classifier.fit(x, y, epochs=3)
    with pytest.raises(AttributeError, match=r"KindlingClassifier has no nix$"):
        classifier.nix  # noqa: B018
    assert classifier.model_.trained.model.state_dict()


@pytest.mark.parametrize(
    "kind",
    [sparse.csr_matrix, sparse.csc_array, sparse.coo_matrix, sparse.dok_array, sparse.lil_matrix],
)
def test_sparse_inputs_are_taken_as_arrays(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = load_iris(return_X_y=True)
    x[x < 2] = 0
    dense = KindlingClassifier(max_epochs=2).fit(x, y)
    thin = KindlingClassifier(max_epochs=2).fit(kind(x), y)
    assert np.array_equal(thin.predict_proba(kind(x)), dense.predict_proba(x))
    assert np.array_equal(thin.predict(x), dense.predict(kind(x)))
    gap = x.copy()
    gap[3, 1] = np.nan
    for use in (thin.predict, lambda given: KindlingClassifier().fit(given, y)):
        with pytest.raises(ValueError, match="X contains NaN"):
            use(kind(gap))
    monkeypatch.setattr(resources, "free_memory", lambda: 1000)
    for use in (thin.predict, lambda given: KindlingClassifier().fit(given, y)):
        with pytest.raises(
            ValueError, match=r"X is sparse, and as an array of 150 rows and 4 colu"
        ):
            use(kind(x))


@pytest.mark.parametrize("named", [False, True])
def test_class_weights(named: bool, tmp_path: Path) -> None:
    """A dictionary by classes of y, in any order, or balanced: the weights of trainer's key."""
    x, y = load_iris(return_X_y=True)
    names = np.array(["a", "b", "c"]) if named else np.array([0, 1, 2])
    cases: list[tuple[Any, str]] = [
        ({names[2]: 5, names[0]: 0.5}, "[0.5,1,5]"), ("balanced", "balanced"), (None, "null"),
    ]  # fmt: skip
    for number, (weights, written) in enumerate(cases):
        mine = KindlingClassifier(
            max_epochs=2, class_weight=weights, folder=tmp_path / str(number)
        ).fit(x, names[y])  # fmt: skip
        monitor = "val/loss" if weights is None else "train/loss"
        overrides = [f"trainer.class_weights={written}", f"checkpoint.monitor={monitor}"]
        other = KindlingClassifier(max_epochs=2, overrides=overrides)
        other.fit(x, names[y])
        assert np.array_equal(mine.predict_proba(x), other.predict_proba(x))
    for wrong, told in (
        ({9: 1}, "class_weight has the class 9; y has the classes "),
        ("even", "class_weight='even': must be a dictionary, 'balanced' or None"),
        ({names[0]: -1}, "trainer.class_weights"),
    ):
        with pytest.raises(ValueError, match=re.escape(told)):
            KindlingClassifier(class_weight=wrong).fit(x, names[y])  # type: ignore[arg-type]


def test_large_inputs_are_told() -> None:
    x, y = load_wine(return_X_y=True)
    line = (
        "column 12 of X has values around 810, which a network learns badly; scale X first: "
        "make_pipeline(StandardScaler(), KindlingClassifier())"
    )
    with pytest.warns(UserWarning, match=re.escape(line)) as told:
        KindlingClassifier(max_epochs=1).fit(x, y)
    assert [Path(each.filename).name for each in told] == [Path(__file__).name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_pipeline(StandardScaler(), KindlingClassifier(max_epochs=1)).fit(x, y)
        KindlingClassifier(max_epochs=1).fit(*load_iris(return_X_y=True))


@pytest.mark.parametrize(
    "settings",
    [
        {"lr": 1e9, "optimizer": "sgd"}, {"overrides": ["data.folds=300", "data.fold=0"]},
        {"overrides": ["data.folds=3"]}, {"overrides": ["data.drop_last=true"], "batch_size": 500},
        {"val_fraction": 0.9999}, {"overrides": ["data.group=g"]}, {"overrides": ["data=csv"]},
        {"overrides": ["data=image_folder"]}, {"overrides": ["data.path=nix.npz"]},
        {"overrides": ["model=cnn"]}, {"overrides": 3}, {"overrides": None}, {"overrides": [3]},
        {"hidden_sizes": None}, {"hidden_sizes": "a"}, {"hidden_sizes": 1.5}, {"folder": 3},
        {"folder": ""}, {"random_state": "x"}, {"class_weight": [1, 1, 1]}, {"lr": "fast"},
        {"overrides": ["start_from=nix"]}, {"overrides": ["trainer.step=vmap"]},
        {"overrides": ["trainer.max_time=1"]}, {"max_epochs": None}, {"batch_size": 1.5},
    ],
)  # fmt: skip
def test_no_error_names_a_temporary_folder(settings: dict[str, Any]) -> None:
    x, y = load_iris(return_X_y=True)
    try:
        KindlingClassifier(**{"max_epochs": 1, **settings}).fit(x, y)
    except ValueError as error:
        told = "".join(traceback.format_exception(error))
        assert tempfile.gettempdir() + "/tmp" not in told
        assert "data.npz" not in told


@pytest.mark.parametrize("shape", [(), (1,), (2,)])
def test_a_regressor_is_the_run_of_its_settings(shape: tuple[int, ...], tmp_path: Path) -> None:
    """The numbers are in their unit and have the shape of y."""
    x, y = load_diabetes(return_X_y=True)
    y = np.stack([y, -1000 * y], 1)[:, : shape[0]] if shape else y
    regressor = KindlingRegressor((8,), max_epochs=3, random_state=5, loss="huber").fit(x, y)
    found = regressor.predict(x)
    assert found.shape == y.shape
    assert found.dtype == np.float64
    config = compose(
        "experiment=few_samples", "task=regression", "task.loss=huber", "data=arrays",
        "data.val_fraction=null", "data.batch_size=100", "optimizer=adam", "optimizer.lr=0.01",
        "optimizer.weight_decay=0.0", "model.hidden_sizes=[8]", "trainer.max_epochs=3", "seed=5",
        "checkpoint.monitor=val/loss", "checkpoint.mode=min",
    )  # fmt: skip
    x32 = x.astype(np.float32)
    run = fit(config, tmp_path / "run", data=(x32, y), test=(x32[:1], y[:1]))
    assert np.array_equal(load(run.folder).predict(x32).reshape(found.shape), found)
    assert regressor.score(x, y) == pytest.approx(r2_score(y, found))
    assert [row["val/r2"] for row in regressor.history_] == [row["val/r2"] for row in run.history]


def test_a_regressor_without_hidden_layers_is_a_linear_regression() -> None:
    x, y = load_diabetes(return_X_y=True, scaled=False)
    ours = KindlingRegressor((), lr=0.05, max_epochs=200, batch_size=500)
    scores = [
        cross_val_score(make_pipeline(StandardScaler(), each), x, y, cv=3).mean()
        for each in (ours, LinearRegression())
    ]
    assert scores[0] == pytest.approx(scores[1], abs=0.02)


def test_faults_of_a_regressor_are_value_errors() -> None:
    x, y = load_diabetes(return_X_y=True)
    with pytest.raises(ValueError, match=r"all 442 training samples is 3"):
        KindlingRegressor(max_epochs=1).fit(x, np.full(len(x), 3))
    with pytest.raises(ValueError, match=r"task\.loss=hubert"):
        KindlingRegressor(loss="hubert").fit(x, y)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Negative values in data passed to `sample_weight`"):
        KindlingRegressor().fit(x, y, sample_weight=-y)


@pytest.mark.parametrize("kind", [KindlingClassifier, KindlingRegressor])
def test_whole_weights_are_repeated_rows(kind: Any) -> None:
    """In one batch of all samples."""
    x, y = load_iris(return_X_y=True)
    weights = np.random.default_rng(0).integers(0, 4, len(x))
    options = {"max_epochs": 20, "batch_size": 1000}
    weighted = kind((8,), **options).fit(x, y, sample_weight=weights)
    repeated = kind((8,), **options).fit(np.repeat(x, weights, 0), np.repeat(y, weights))
    assert weighted.loss_curve_ == pytest.approx(repeated.loss_curve_, rel=1e-3)
    assert weighted.loss_curve_[-1] != pytest.approx(
        kind((8,), **options).fit(x, y).loss_curve_[-1]
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", [KindlingClassifier, KindlingRegressor])
def test_a_pack_is_a_committee_of_drawn_networks(kind: Any, tmp_path: Path) -> None:
    """Each network is the run of its settings, and members are chosen as by the command."""
    x, y = (
        load_iris(return_X_y=True) if kind is KindlingClassifier else load_diabetes(return_X_y=True)
    )
    quick = ["trainer.max_epochs=3", "trainer.accelerator=cpu"]
    model = kind(pack=6, random_state=2, folder=tmp_path / "pack", overrides=quick)
    model.fit(StandardScaler().fit_transform(x), y)
    assert model.n_iter_ == 3
    drawn = draw_settings(6, 2)
    for number in range(6):
        config = Run(tmp_path / "pack" / str(number)).config
        assert config.read("model.hidden_sizes") == json.loads(drawn["model.hidden_sizes"][number])
        assert config.optimizer.lr == float(drawn["optimizer.lr"][number])
        assert config.data.val_fraction == 0.2
        assert config.data.batch == 16
    made = Run(tmp_path / "pack" / "committee").result["committee"]
    assert len(made["members"]) >= 5
    best = min(Run(tmp_path / "pack" / str(n)).monitored for n in range(6))
    assert made["members"][0]["val/loss"] == best
    again = kind(pack=6, random_state=2, overrides=quick).fit(StandardScaler().fit_transform(x), y)
    scaled = StandardScaler().fit_transform(x)
    np.testing.assert_array_equal(again.predict(scaled), model.predict(scaled))
    assert model.score(scaled, y) > (0.8 if kind is KindlingClassifier else 0.2)


@pytest.mark.parametrize("pack", [1, 257, "many", 2.5])
def test_a_pack_has_two_networks_or_more(pack: object) -> None:
    x, y = load_iris(return_X_y=True)
    with pytest.raises(ValueError, match=f"pack={pack!r}: must be a number from 2 to 256"):
        KindlingClassifier(pack=pack).fit(x, y)  # type: ignore[arg-type]


def test_a_pack_of_many_samples_has_larger_batches(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(2000, 3))
    quick = ["trainer.max_epochs=1", "trainer.accelerator=cpu"]
    for overrides, size in ((quick, 32), ([*quick, "data.batch_size=50"], 50)):
        folder = tmp_path / str(size)
        KindlingClassifier(pack=2, folder=folder, overrides=overrides).fit(x, x[:, 0] > 0)
        assert Run(folder / "0").config.data.batch == size


# --- tables with texts, dates and gaps ------------------------------------------------------------


def people(rows: int = 200) -> tuple[pl.DataFrame, NDArray[Any]]:
    """Texts, numbers with gaps and dates, and classes that need the texts and the numbers."""
    draw = np.random.default_rng(0)
    town, age = draw.choice(["Rom", "Bern", "Köln"], rows), draw.uniform(18, 90, rows).round(1)
    classes = np.where((town == "Rom") ^ (age > 50), "old", "young")
    since = [f"20{draw.integers(10, 22)}-0{draw.integers(1, 9)}-13" for _ in range(rows)]
    ages = pl.Series(age).to_list()
    ages[::9] = [None] * len(ages[::9])
    return pl.DataFrame({"y": town, "age": ages, "since": since}), classes


@pytest.mark.parametrize("names", [["who"], ["id"], ["who", "id"], []])
def test_columns_that_are_left_out_are_told(names: list[str]) -> None:
    """Not those that are constant, and not those that the caller drops."""
    every: dict[str, list[Any]] = {
        "a": [n % 7 for n in range(60)], "same": [1] * 60, "who": [f"name {n}" for n in range(60)],
        "id": [7 * n for n in range(60)],
    }  # fmt: skip
    frame = pl.DataFrame({k: v for k, v in every.items() if k in ("a", "same", *names)})
    model = KindlingClassifier(encode="auto", max_epochs=1)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model.fit(frame, [*"ab"] * 30)
    told_of = f"KindlingClassifier leaves out {', '.join(names)}: almost each row"
    expected = [told_of] if names else []
    assert [str(each.message)[: len(expected[0])] for each in told] == expected
    assert {each.filename for each in told} <= {__file__}
    assert model.columns_.names == ["a"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        settings = [f"data.drop=[{','.join(names)}]"]
        KindlingClassifier(encode=settings, max_epochs=1).fit(frame, [*"ab"] * 30)


def test_encode_prepares_columns_as_a_table_is_prepared() -> None:
    frame, classes = people()
    settings: dict[str, Any] = {"max_epochs": 20, "lr": 0.03}
    fitted = KindlingClassifier(encode="auto", **settings).fit(frame, classes)
    assert [type(column).__name__ for column in fitted.columns_.columns] == [
        "TextColumn", "NumberColumn", "DateColumn",
    ]  # fmt: skip
    # The features of a run on the file of the same table, whose column of labels is `class`.
    config = compose("data=csv", "data.path=a.csv", "data.target=class").data
    assert isinstance(config, Csv)
    table = as_table(frame.to_dict())
    features = learn_columns(table, config, np.ones(len(classes), bool)).features(table)
    alone = KindlingClassifier(**settings).fit(features, classes)
    np.testing.assert_array_equal(fitted.predict_proba(frame), alone.predict_proba(features))
    assert fitted.score(frame, classes) > 0.9
    # An array of objects has the same cells, and names of its own.
    array = frame.to_numpy()
    other = KindlingClassifier(encode="auto", **settings).fit(array, classes)
    np.testing.assert_array_equal(fitted.predict_proba(frame), other.predict_proba(array))
    copy = pickle.loads(pickle.dumps(fitted))
    strange = pl.DataFrame(
        {"y": ["Ulm", None], "age": [500.0, None], "since": [None, "2031-01-02"]}
    )
    np.testing.assert_array_equal(copy.predict_proba(strange), fitted.predict_proba(strange))
    with pytest.raises(ValueError, match="feature names should match"):
        fitted.predict(frame.drop("since"))
    with pytest.raises(ValueError, match=r"column age: 1 of 1 cell is not a number .*'old'"):
        fitted.predict(frame[:1].with_columns(pl.lit("old").alias("age")))


def test_encode_in_searches_packs_and_regressors() -> None:
    frame, classes = people()
    search = GridSearchCV(
        KindlingClassifier(encode="auto", max_epochs=10), {"lr": [0.0001, 0.03]}, cv=2
    )
    assert search.fit(frame, classes).best_params_ == {"lr": 0.03}
    pack = KindlingClassifier(encode="auto", pack=3, overrides="trainer.max_epochs=5")
    assert pack.fit(frame, classes).score(frame, classes) > 0.7
    named = frame.rename({"age": "__labels__"})  # the name that stands for the labels inside
    fitted = KindlingClassifier(encode="auto", max_epochs=1).fit(named, classes)
    assert [each.name for each in fitted.columns_.columns] == named.columns
    dropped = KindlingClassifier(encode=["data.drop=[y,since]"], max_epochs=5)
    assert [each.name for each in dropped.fit(frame, classes).columns_.columns] == ["age"]
    numbers = np.where(classes == "old", 7.0, -3.0)
    regressor = KindlingRegressor(encode="auto", max_epochs=30, lr=0.03).fit(frame, numbers)
    assert regressor.score(frame, numbers) > 0.8


@pytest.mark.parametrize(
    ("encode", "X", "told"),
    [
        ("onehot", [[1.0]], "encode='onehot': must be 'auto', a list of texts or None"),
        ("auto", {"a": [1]}, r"encode='auto': X is \(\), must have two dimensions"),
        ("auto", sparse.csr_array([[1.0], [2.0]]), "encode='auto': X is sparse"),
        ("auto", [["a"], ["b"]], "X: no column is left to learn from .column 0: left out: names"),
        (["data.dorp=[y]"], [["a"], ["b"]], "data.dorp"),
        (["data.drop=[y]"], [["a"], ["b"]], "data.drop=y: there is no such column"),
        (None, [["a"], ["b"]], "could not convert string to float: 'a'; encode='auto' takes texts"),
    ],
)
def test_faults_of_encode(encode: Any, X: Any, told: str) -> None:  # noqa: N803
    with pytest.raises(ValueError, match=told):
        KindlingClassifier(encode=encode).fit(X, [0, 1])


def test_threads_train_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each to the bits that it has alone: weights come from streams that all threads share."""
    construct = construct_model

    def slowly(*arguments: Any) -> torch.nn.Module:
        time.sleep(0.01)  # others could seed the streams meanwhile
        return construct(*arguments)

    monkeypatch.setattr("kindling.training.in_memory.construct_model", slowly)
    x, y = load_iris(return_X_y=True)
    x = StandardScaler().fit_transform(x)

    def trained(seed: int) -> NDArray[Any]:
        sizes = (8 + seed,)
        model = KindlingClassifier(
            sizes, random_state=seed, max_epochs=20, overrides=["model.dropout=0.2"]
        )
        return model.fit(x, y).predict_proba(x)

    alone = [trained(seed) for seed in range(12)]
    threads = torch.get_num_threads()
    with ThreadPoolExecutor(6) as pool:
        together = [*pool.map(trained, [*range(12)] * 2)]
    assert all(map(np.array_equal, together, alone * 2))
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("folder", [None, "run"])
def test_ctrl_c_ends_the_training(
    folder: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = load_iris(return_X_y=True)
    place = None if folder is None else tmp_path / folder
    model = KindlingClassifier(max_epochs=10**6, folder=place, random_state=0)
    model.set_params(overrides=["trainer.early_stopping_patience=null"])
    trained = 0

    def counted(train: Any) -> Any:
        def count(*arguments: Any) -> Any:
            nonlocal trained
            trained += 1
            if trained == 10:
                os.kill(os.getpid(), signal.SIGINT)
            return train(*arguments)

        return count

    monkeypatch.setattr(NativeLearner, "train_on", counted(NativeLearner.train_on))
    streams, handler = torch.get_rng_state(), signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted, match="nothing was kept" if folder is None else "resume") as e:
        model.fit(x, y)
    assert e.value.number == signal.SIGINT
    assert not hasattr(model, "model_")
    assert signal.getsignal(signal.SIGINT) is handler
    assert torch.get_rng_state().equal(streams)
    KindlingClassifier(max_epochs=2).fit(x, y)  # as usual


def test_no_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = load_iris(return_X_y=True)
    KindlingClassifier(max_epochs=1).fit(x, y)  # the first may write caches

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(tempfile, "TemporaryDirectory", refuse)
    monkeypatch.chdir(tmp_path)
    KindlingClassifier(max_epochs=3).fit(x, y)
    KindlingRegressor(max_epochs=3).fit(x, y)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("write", ["${:,.2f}", "{:.2f}%", "{:,.2f}"])
def test_numbers_to_predict_may_be_texts_as_those_of_features(write: str) -> None:
    x = np.random.default_rng(0).normal(size=(60, 2))
    numbers = np.round(2000 + 100 * x[:, 0], 2)
    texts = [write.format(number) for number in numbers]
    settings: dict[str, Any] = {"encode": "auto", "max_epochs": 3}
    plain = KindlingRegressor(**settings).fit(x, numbers)
    for y in (texts, np.array(texts), np.array(texts, object)):
        marked = KindlingRegressor(**settings).fit(x, y)
        np.testing.assert_array_equal(marked.predict(x), plain.predict(x))
        assert marked.score(x, y) == plain.score(x, numbers) == marked.score(x, numbers)
    with pytest.raises(ValueError, match=r"column y: 1 of 60 cells is not a number \(line 4: 'n"):
        marked.score(x, [*texts[:3], "none", *texts[4:]])
    with pytest.raises(ValueError, match=r"column y: 60 of 60 cells are not numbers"):
        KindlingRegressor(**settings).fit(x, ["none"] * 60)
    with pytest.raises(ValueError, match=r"y is of <U\d+, must be numbers"):
        KindlingRegressor(max_epochs=3).fit(x, texts)
