"""A classifier and a regressor of scikit-learn, trained by `fit` like any run."""

import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse, sparray, spmatrix
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    check_is_fitted,
    check_X_y,
    validate_data,
)

from kindling.config.compose import check_all, compose, shared_composer
from kindling.config.drawn import batch_size, draw_settings
from kindling.config.schema import Config, Csv, joint_hash
from kindling.data.arrays import as_float32
from kindling.data.sources.catalogue import open_source
from kindling.data.sources.source import COPIES
from kindling.data.tables.columns import unmarked
from kindling.data.tables.learning import learn_columns
from kindling.data.tables.table import Table, as_table
from kindling.inference.committees.members import BEST_FIRST, PICKS, read_request
from kindling.inference.model import Model
from kindling.inference.prediction import predict, predict_checked
from kindling.records.folder import MOST_MEMBERS, Row, Run
from kindling.records.loading import Trained, open_trained
from kindling.records.lookup import COMMITTEE
from kindling.system.arguments import as_path
from kindling.system.errors import InputError, Interrupted
from kindling.system.resources import require_memory
from kindling.training import random_state
from kindling.training.in_memory import MemoryRun, train_in_memory
from kindling.training.own import Given

Inputs: TypeAlias = "ArrayLike | spmatrix | sparray"
PACK_FRACTION = 0.2  # of the samples choose the members of a pack, if val_fraction is None
TOLD_AS = Path("the run")  # where there is no folder
SHOWN = 5  # names of columns, in a warning
LARGE = 30  # the root of a column's mean square, beyond which training is told to suffer
WHY_NOT = {  # what other estimators have
    "partial_fit": (
        ": a run is trained as a whole; fit all rows, or train on with fit(config, folder, "
        "resume=True) and a larger trainer.max_epochs"
    ),
    "decision_function": ": use predict_log_proba, or predict_proba",
    "coefs_": ": the weights are in model_.trained.model.state_dict()",
    "intercepts_": ": the weights are in model_.trained.model.state_dict()",
}


@dataclass(eq=False, repr=False)
class _Estimator(BaseEstimator):  # type: ignore[misc]
    """What the classifier and the regressor share."""

    hidden_sizes: Sequence[int] | int = (32,)
    _: KW_ONLY
    lr: float = 0.01
    optimizer: Literal["sgd", "adam", "adamw"] = "adam"
    weight_decay: float = 0.0
    max_epochs: int = 50
    batch_size: int = 100
    val_fraction: float | None = None
    pack: int | None = None
    encode: Literal["auto"] | Sequence[str] | None = None
    random_state: int | np.random.RandomState | None = 0
    overrides: Sequence[str] | str = ()
    folder: str | Path | None = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self.encode is None
        tags.input_tags.string = tags.input_tags.allow_nan = self.encode is not None
        return tags

    def __getattr__(self, name: str) -> Any:
        """Says why there is not what other classifiers of scikit-learn have."""
        raise AttributeError(
            f"{type(self).__name__} has no {name}{WHY_NOT.get(name, '')}", name=name, obj=self
        )

    def fit(
        self,
        X: Inputs,  # noqa: N803, scikit-learn's names
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        **others: Any,
    ) -> Self:
        """Trains on X (N, features) and y: classes (N,), numbers or texts; of a regressor, numbers
        (N,) or (N, outputs) that are not all equal. `sample_weight` (N,) are the weights of the
        samples in the loss. Raises ValueError for other arrays, and with all faults of the
        settings."""
        for name in others:
            raise TypeError(f"{type(self).__name__}.fit takes no {name}{WHY_NOT.get(name, '')}")
        if not (self.encode in (None, "auto") or isinstance(self.encode, list | tuple)):
            raise ValueError(f"encode={self.encode!r:.80}: must be 'auto', a list of texts or None")
        found, labels = self._checked(X, y)
        features = _dense(found)
        _warn_of_scale(features, type(self).__name__)
        own: tuple[NDArray[Any], ...] = (features, labels)
        try:
            if sample_weight is not None:
                weights = _check_sample_weight(sample_weight, features, ensure_non_negative=True)
                own = (*own, weights)
            trained, self.history_ = self._run(own)
        except Interrupted as error:
            told = "stopped; nothing was kept" if self.folder is None else str(error)
            raise Interrupted(error.number, told) from None
        except InputError as error:
            text = str(error).replace("data=(x, y), test=(x_test, y_test)", "X and y")
            raise ValueError(text) from None
        self.model_ = Model(trained)
        self.loss_curve_ = [row["train/loss"] for row in self.history_[1:]]
        self.n_iter_ = len(self.history_) - 1
        return self

    def _validated(self, X: Inputs, y: ArrayLike, **how: Any) -> tuple[Any, NDArray[Any]]:  # noqa: N803
        """Features, perhaps sparse, and labels, by scikit-learn's own checks. Learns the columns
        of X if `encode` says so. Raises ValueError."""
        found: tuple[Any, NDArray[Any]]
        if self.encode is None:
            try:
                found = validate_data(
                    self, X, y, dtype=np.float32, accept_sparse="csr", accept_large_sparse=False,
                    **how,
                )  # fmt: skip
            except ValueError as error:
                if "could not convert string" not in str(error):
                    raise
                raise ValueError(f"{error}; encode='auto' takes texts") from error
            return found
        table = self._table(X)
        validate_data(self, X, y, skip_check_array=True)  # keeps the names of the columns
        target = "__labels__"  # not among the columns
        while target in table.names:
            target += "_"
        with _as_value_errors():
            settings = () if self.encode == "auto" else self.encode
            config = compose("data=csv", "data.path=X", f"data.target={target}", *settings).data
            assert isinstance(config, Csv)
            table.require(config.drop, "data.drop")
            self.columns_ = learn_columns(table, config, np.ones(len(table.lines), bool))
            _warn_of_columns(table, [*self.columns_.names, *config.drop], type(self).__name__)
            features = self.columns_.features(table)
        found = check_X_y(features, y, dtype=np.float32, estimator=self, **how)
        return found

    def _table(self, X: Any) -> Table:  # noqa: N803
        """Raises ValueError unless X is a DataFrame or an array of two dimensions."""
        if issparse(X):
            raise ValueError("encode='auto': X is sparse; give a DataFrame or an array")
        if not hasattr(X, "columns"):
            array = np.asarray(X, None if hasattr(X, "dtype") else object)
            if array.ndim != 2:
                raise ValueError(f"encode='auto': X is {array.shape}, must have two dimensions")
            X = {f"column {number}": values for number, values in enumerate(array.T)}  # noqa: N806
        with _as_value_errors():
            return as_table(X)

    def _checked(self, X: Inputs, y: ArrayLike) -> tuple[Any, NDArray[Any]]:  # noqa: N803
        """Features, perhaps sparse, and labels. Raises ValueError."""
        raise NotImplementedError

    def _own_settings(self) -> list[str]:
        """The overrides of the task."""
        raise NotImplementedError

    def _run(self, own: tuple[NDArray[Any], ...]) -> tuple[Trained, list[Row]]:
        """The trained model, and the history of its best network."""
        seed = self.random_state
        if not isinstance(seed, int | np.integer):  # perhaps NumPy's global stream, which goes on
            seed = check_random_state(seed).randint(2**31)
        test = tuple(part[:1] for part in own[:2])  # a run has one; nobody reads its metrics here
        given, settings = Given.of(None, own, None, test), self._settings(int(seed))
        if self.pack is not None:
            return self._pack(settings, int(seed), given)
        config = given.tried(compose(*settings))
        found = train_in_memory(config, TOLD_AS) if self.folder is None else None
        found = found or self._in_a_folder(config)
        if found.trained is None:
            raise InputError(f"lr={self.lr}: training diverged; try a smaller lr, or scale X")
        return found.trained, found.history

    def _in_a_folder(self, config: Config) -> MemoryRun:
        from kindling.training.fit import fit  # imports Lightning

        with self._own_folder() as folder, random_state.kept():
            run = fit(config, folder)
            diverged = not run.best_checkpoint.exists()
            return MemoryRun(None if diverged else self._opened(run), run.history)

    def _pack(self, settings: Sequence[str], seed: int, given: Given) -> tuple[Trained, list[Row]]:
        """Trains networks with drawn settings into folders 0, 1, …, and makes their committee. The
        size of batches follows from the number of samples, unless `settings` have it. Raises
        InputError for faults of the settings, and if fewer than two networks can be trained."""
        from kindling.inference.committees.making import make_committee
        from kindling.inference.committees.twins import train_twin, twins_help
        from kindling.training.fit import fit_stack  # as above
        from kindling.training.grouping import group_trials

        with self._own_folder() as folder, random_state.kept():
            networks = self.pack
            if not isinstance(networks, int | np.integer) or not 2 <= networks <= MOST_MEMBERS:
                raise InputError(
                    f"pack={networks!r:.80}: must be a number from 2 to {MOST_MEMBERS}"
                )
            drawn = draw_settings(int(networks), seed)
            assert given.arrays is not None
            size = f"data.batch_size={batch_size(len(given.arrays.arrays['x']))}"
            points = [
                [size, *settings, *(f"{key}={values[number]}" for key, values in drawn.items())]
                for number in range(int(networks))
            ]
            checked = check_all(*shared_composer(None).points(points))
            configs = [given.hold(config) for config in checked]
            source = open_source(configs[0].data, configs[0].task)
            runs: list[Run] = []
            for group in group_trials(configs):
                own = [configs[number] for number in group.trials]
                folders = [folder / str(number) for number in group.trials]
                runs += fit_stack(own, folders, folder / ".stacks" / joint_hash(own))
            finished = [run.folder for run in runs if run.best_checkpoint.exists()]
            if len(finished) < 2:
                raise InputError("pack: fewer than two networks could be trained; scale X")
            request = read_request(
                finished, greedy=PICKS, by="val/loss", folder=folder / COMMITTEE, start=BEST_FIRST
            )
            again = partial(train_twin, hold=given.hold) if twins_help(configs[0], source) else None
            made = make_committee(request, source, again=again)
            return self._opened(made), request.candidates[0][0].run.history

    @contextmanager
    def _own_folder(self) -> Iterator[Path]:
        """That of the run. No error names a temporary one, which is gone before anyone could look
        at its files."""
        if self.folder is not None:
            yield as_path(self.folder, "folder")
            return
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary, "run")
            try:
                yield folder
            except InputError as error:
                raise InputError(str(error).replace(str(folder), str(TOLD_AS))) from None

    def _opened(self, run: Run) -> Trained:
        trained = open_trained(run.folder)
        return trained if self.folder is not None else replace(trained, checkpoint=TOLD_AS)

    def _settings(self, seed: int) -> list[str]:
        given = self.hidden_sizes
        if not isinstance(given, Iterable | int | np.integer):
            raise InputError(f"hidden_sizes={given!r:.80}: must be a list of numbers, or a number")
        if not isinstance(self.overrides, Iterable):
            raise InputError(
                f"overrides={self.overrides!r:.80}: must be a list of texts, or a text"
            )
        sizes = ",".join(map(str, [given] if isinstance(given, int | np.integer) else given))
        fraction = "null" if self.val_fraction is None else self.val_fraction
        more = [self.overrides] if isinstance(self.overrides, str) else self.overrides
        if self.pack is not None:
            fraction = PACK_FRACTION if self.val_fraction is None else fraction
            return [
                "experiment=pack", "data=arrays", f"data.val_fraction={fraction}",
                *self._own_settings(), "checkpoint.monitor=val/loss", "checkpoint.mode=min", *more,
            ]  # fmt: skip
        return [
            "experiment=few_samples", "data=arrays", f"data.val_fraction={fraction}",
            f"data.batch_size={self.batch_size}",
            *([f"model.hidden_sizes=[{sizes}]"] if sizes else ["model=logistic_regression"]),
            f"optimizer={self.optimizer}", f"optimizer.lr={self.lr}",
            f"optimizer.weight_decay={self.weight_decay}",
            *self._own_settings(), "checkpoint.mode=min",
            f"trainer.max_epochs={self.max_epochs}", f"seed={seed}", *more,
        ]  # fmt: skip

    def _answers(self, X: Inputs) -> NDArray[np.float64]:  # noqa: N803
        """The probabilities, or the numbers (N, outputs)."""
        features = self._prepared(X)  # says first that nothing was fitted
        trained = self.model_.trained
        if trained.arrays is not None and trained.arrays.kind == "numbers":
            return predict_checked(trained, features)
        return predict(trained, features)

    def _plain(self, X: Inputs) -> NDArray[np.float32] | None:  # noqa: N803
        """Rows that are as those of `fit` at first sight. To predict one row takes less time than
        scikit-learn's checks."""
        if type(X) is not np.ndarray or X.dtype.kind != "f" or hasattr(self, "feature_names_in_"):
            return None
        if X.shape[1:] != (self.n_features_in_,) or not len(X):
            return None
        found = as_float32(X)
        with np.errstate(over="ignore", invalid="ignore"):
            return found if np.isfinite(found.sum()) else None

    def _prepared(self, X: Inputs) -> NDArray[np.float32]:  # noqa: N803
        check_is_fitted(self)
        if self.encode is None:
            plain = self._plain(X)
            if plain is not None:
                return plain
            return _dense(
                validate_data(self, X, dtype=np.float32, reset=False, accept_sparse="csr")
            )
        table = self._table(X)
        validate_data(self, X, reset=False, skip_check_array=True)
        with _as_value_errors():
            return self.columns_.features(table)


@dataclass(eq=False, repr=False, kw_only=True)
class KindlingClassifier(ClassifierMixin, _Estimator):  # type: ignore[misc]
    """A network for tables of numbers, which works in pipelines and searches of scikit-learn.

    Without hidden layers it is a logistic regression. `overrides` sets any other key, as typed on
    the command line, such as `["model.dropout=0.2", "scheduler=cosine"]`. `folder` is that of the
    run; without it, no file is kept. Inputs should be scaled, for example by StandardScaler; `fit`
    warns of large ones. Sparse inputs become arrays.

    `val_fraction` of the samples choose the best epoch, by their loss; None: the loss on all
    samples. `pack`: so many networks train in place of one. Their sizes, rates and decays are
    drawn, and their other settings are those of `python -m src.tables`; `overrides` changes
    them. `val_fraction` of the samples, by default 0.2, choose a committee of the networks, whose
    members then train once more on all samples, if these are 10,000 at most; `history_` is that of
    the best network. `encode`: `auto` takes X as a table of numbers,
    texts, dates and gaps, a DataFrame or an array, and prepares its columns as `data=csv` does;
    `columns_` has how. A list has settings of `data=csv`, such as `["data.drop=[id]"]`. A text
    that `fit` did not see has 0 in all its features. `class_weight` has the weight of each
    class in the training loss, by default 1; `balanced`: as scikit-learn's compute_class_weight
    gives them for the samples that train. With class weights and without `val_fraction`, the
    training loss chooses the epoch.

    After `fit`: `classes_`, `n_features_in_`, `model_` (a Model), `history_` (a row for each epoch,
    as in history.csv), `loss_curve_` (the training loss of each epoch), `n_iter_` (their number).
    """

    class_weight: Mapping[Any, float] | Literal["balanced"] | None = None

    def _checked(self, X: Inputs, y: ArrayLike) -> tuple[Any, NDArray[Any]]:  # noqa: N803
        features, classes = self._validated(X, y)
        check_classification_targets(classes)
        self.classes_, numbers = np.unique(classes, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"y has the one class {self.classes_[0]}; this classifier needs two or more"
            )
        return features, numbers

    def _own_settings(self) -> list[str]:
        given = self.class_weight
        if given is None:
            return ["checkpoint.monitor=val/loss"]
        weights = "balanced"
        if isinstance(given, Mapping):
            unknown = [each for each in given if each not in self.classes_.tolist()]
            if unknown:
                raise ValueError(
                    f"class_weight has the class {unknown[0]!r}; y has the classes "
                    f"{', '.join(map(str, self.classes_))[:200]}"
                )
            listed = ",".join(str(given.get(each, 1)) for each in self.classes_.tolist())
            weights = f"[{listed}]"
        elif given != "balanced":
            raise ValueError(f"class_weight={given!r}: must be a dictionary, 'balanced' or None")
        # The loss on all samples has no class weights.
        monitor = "train/loss" if self.val_fraction is None else "val/loss"
        return [f"trainer.class_weights={weights}", f"checkpoint.monitor={monitor}"]

    def predict_proba(self, X: Inputs) -> NDArray[np.float64]:  # noqa: N803
        """The probability of each class of `classes_`, (N, classes)."""
        return self._answers(X)

    def predict_log_proba(self, X: Inputs) -> NDArray[np.float64]:  # noqa: N803
        """The logarithm of `predict_proba`; minus infinity of a probability of 0."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def predict(self, X: Inputs) -> NDArray[Any]:  # noqa: N803
        """The most probable class of each sample, (N,)."""
        numbers = self.predict_proba(X).argmax(1)
        classes: NDArray[Any] = self.classes_[numbers]
        return classes


@dataclass(eq=False, repr=False, kw_only=True)
class KindlingRegressor(RegressorMixin, _Estimator):  # type: ignore[misc]
    """A network that predicts numbers, for pipelines and searches of scikit-learn.

    Without hidden layers it is a linear regression. All but `loss` is as in KindlingClassifier. The
    numbers are standardised inside; predictions are in their own unit. The members of a pack train
    once. The loss `huber` is squared
    for errors up to `task.delta` deviations of the numbers, by default 1, and linear beyond, so
    outliers count less.

    After `fit`: `n_features_in_`, `model_`, `history_`, `loss_curve_` and `n_iter_`, as there.
    """

    loss: Literal["squared_error", "huber"] = "squared_error"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _checked(self, X: Inputs, y: ArrayLike) -> tuple[Any, NDArray[Any]]:  # noqa: N803
        self._mark: str | None = None
        features, numbers = self._validated(
            X, self._numbers(y), multi_output=True, y_numeric=True, ensure_min_samples=2
        )
        self._shape = numbers.shape[1:]
        return features, numbers

    def _own_settings(self) -> list[str]:
        return ["task=regression", f"task.loss={self.loss}", "checkpoint.monitor=val/loss"]

    def predict(self, X: Inputs) -> NDArray[np.float64]:  # noqa: N803
        """The numbers of each sample, of the shape of y in `fit`."""
        found = self._answers(X)
        return found.reshape(len(found), *self._shape)

    def score(self, X: Inputs, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:  # noqa: N803
        """R²."""
        check_is_fitted(self)
        return float(super().score(X, self._numbers(y), sample_weight))

    def _numbers(self, y: ArrayLike) -> ArrayLike:
        """With `encode`, texts as the numbers that they are: those of `fit` tell how numbers are
        written. Raises ValueError for other texts."""
        values = np.asarray(y)
        if self.encode is None or values.ndim != 1 or values.dtype.kind not in "OTU":
            return y
        cells = as_table({"y": values}).cells("y", ())
        self._mark = cells.mark if self._mark is None else self._mark
        cells = unmarked(cells, self._mark)
        if fault := cells.fault(texts=False, gaps=False):
            raise ValueError(f"{fault}; give numbers")
        return cells.numbers


@contextmanager
def _as_value_errors() -> Iterator[None]:
    """As scikit-learn expects faults of arguments."""
    try:
        yield
    except InputError as error:
        raise ValueError(str(error).replace("the table", "X", 1)) from None


def _dense(features: Any) -> NDArray[np.float32]:
    """Sparse features as an array. Raises ValueError if it does not fit into the memory."""
    if not issparse(features):
        return cast(NDArray[np.float32], features)
    rows, columns = features.shape
    with _as_value_errors():
        require_memory(
            f"X is sparse, and as an array of {rows:,} rows and {columns:,} columns it needs",
            4 * COPIES * rows * columns,
            "fewer rows, or fewer columns, as TruncatedSVD makes them",
        )
    return cast(NDArray[np.float32], features.toarray())


def _warn_of_scale(features: NDArray[np.float32], name: str) -> None:
    squares = np.einsum("nf,nf->f", features, features, dtype=np.float64)
    sizes = np.sqrt(squares / len(features))
    column = int(sizes.argmax())
    if sizes[column] > LARGE:
        warnings.warn(
            f"column {column} of X has values around {sizes[column]:,.0f}, which a network learns "
            f"badly; scale X first: make_pipeline(StandardScaler(), {name}())",
            stacklevel=3,
        )


def _warn_of_columns(table: Table, known: Sequence[str], name: str) -> None:
    """A warning about columns that are left out though their cells differ."""
    every = np.ones(len(table.lines), bool)
    others = [other for other in table.names if other not in known]
    left = [other for other in others if table.cells(other, ()).varies(every)]
    if left:
        shown = ", ".join(left[:SHOWN]) + (", …" if left[SHOWN:] else "")
        warnings.warn(
            f"{name} leaves out {shown}: almost each row has another value, as in a column of "
            f"names; to keep one, give encode=['data.categories=[{left[0]}]'], or data.numbers",
            stacklevel=5,
        )
