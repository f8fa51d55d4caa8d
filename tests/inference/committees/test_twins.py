"""A committee whose members were trained once more on all rows, against members and twins that are
opened alone: the means are taken here."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier

from kindling.config.compose import compose
from kindling.data.arrays import ArrayReading
from kindling.data.sources.catalogue import open_source
from kindling.data.sources.source import Source, Split
from kindling.inference.baselines import BOOSTING, compare
from kindling.inference.committees import twins
from kindling.inference.committees.making import make_committee, summary
from kindling.inference.committees.members import read_request
from kindling.inference.committees.twins import MOST_ROWS, train_twin, twins_help
from kindling.inference.estimator import KindlingClassifier, KindlingRegressor
from kindling.inference.evaluation import evaluate
from kindling.inference.export.export import export
from kindling.inference.export.formats import plan
from kindling.inference.logits import compute_logits
from kindling.inference.model import load
from kindling.inference.samples import source_of, validation_of
from kindling.models.committee import Committee
from kindling.records.folder import Run
from kindling.records.loading import Trained, open_trained
from kindling.system.errors import InputError
from kindling.training.fit import fit
from kindling.training.in_memory import train_in_memory
from tests.inference.committees.test_folds import CLASSES, SIZES, Numbers, table

RATES = (0.01, 0.03, 0.1)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Of three rates; tests must not change them."""
    folder = tmp_path_factory.mktemp("twins")
    keys = ("data=csv", f"data.path={table(folder, 0)}", *CLASSES, "trainer=cpu")
    for number, rate in enumerate(RATES):
        fit(compose(*keys, f"optimizer.lr={rate}", "trainer.max_epochs=6"), folder / str(number))
    return [folder / str(number) for number in range(len(RATES))]


def committee_of(runs: list[Path], folder: Path, again: Any = train_twin) -> Run:
    request = read_request(runs, greedy=9, by="val/loss", folder=folder, start=2)
    return make_committee(request, again=again)


@pytest.fixture(scope="module")
def made(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Run:
    return committee_of(runs, tmp_path_factory.mktemp("made") / "committee")


def by_hand(run: Path, folder: Path) -> Path:
    """The twin, as a run of its own."""
    epochs = Run(run).result["best"]["epoch"]
    config = Run(run).config
    data = config.data.model_copy(update={"val_fraction": None})
    trainer = config.trainer.model_copy(
        update={"max_epochs": max(1, epochs or 0), "early_stopping_patience": None}
    )
    return fit(config.model_copy(update={"data": data, "trainer": trainer}), folder).folder


def said_of_tests(run: Path) -> tuple[Numbers, Numbers]:
    """The probabilities of the test rows by one run, opened alone, and the true classes."""
    trained = open_trained(run)
    test = source_of(trained).test
    logits = compute_logits(trained, test).double()
    return torch.softmax(logits, -1).numpy(), test.labels.numpy()


def test_the_mean_of_members_and_twins(made: Run, runs: list[Path], tmp_path: Path) -> None:
    members = made.result["committee"]["members"]
    folders = [(made.folder / each["folder"]).resolve() for each in members]
    votes = np.array([each["votes"] for each in members], float)
    others = [by_hand(folder, tmp_path / folder.name) for folder in folders]
    assert made.result["committee"]["twins"] == len(others) >= 2
    own = [said_of_tests(folder)[0] for folder in folders]
    again = [said_of_tests(folder)[0] for folder in others]
    labels = said_of_tests(folders[0])[1]
    assert not np.allclose(own[0], again[0], atol=1e-3)
    mean = np.tensordot([*votes, *votes], own + again, 1) / (2 * votes.sum())
    trained = open_trained(made.folder)
    found = compute_logits(trained, source_of(trained).test).exp().numpy()
    np.testing.assert_allclose(found, mean, rtol=1e-6)
    accuracy = (mean.argmax(1) == labels).mean()
    loss = -np.log(mean[np.arange(len(labels)), labels]).mean()
    tested = evaluate(trained, source_of(trained))
    for got in (tested, made.result):
        values = (
            (got["test/acc"], got["test/loss"]) if isinstance(got, dict) else (got.score, got.loss)
        )
        assert values == pytest.approx((accuracy, loss), rel=1e-6)
    # Rows as a user has them, in a file.
    path = trained.config.data.path  # type: ignore[union-attr]
    whole = load(made.folder).predict_proba(path)
    apart = [load(folder).predict_proba(path) for folder in (*folders, *others)]
    np.testing.assert_allclose(
        whole, np.tensordot([*votes, *votes], apart, 1) / (2 * votes.sum()), 1e-6
    )


def test_validation_is_by_those_that_have_not_seen_it(
    made: Run, runs: list[Path], tmp_path: Path
) -> None:
    alone = committee_of(runs, tmp_path / "alone", again=None)
    assert alone.result["best"] == made.result["best"]
    one, other = (
        [
            each | {"folder": Path(each["folder"]).name}
            for each in run.result["committee"]["members"]
        ]
        for run in (alone, made)
    )
    assert one == other
    assert "twins" not in alone.result["committee"]
    assert alone.result["test/loss"] != made.result["test/loss"]
    assert "each with a twin that was trained on the validation rows too" in summary(made)
    assert "each with a twin" not in summary(alone)


def test_what_twins_learned_is_theirs(made: Run, runs: list[Path]) -> None:
    trained = open_trained(made.folder)
    assert isinstance(trained.model, Committee)
    half = len(trained.members) // 2
    assert trained.lessons == [[*range(half)], [*range(half, 2 * half)]]
    assert trained.folds == []
    first, twin = trained.members[0], trained.members[half]
    assert (first.config.data.val_fraction, twin.config.data.val_fraction) == (0.2, None)
    assert first.columns != twin.columns
    source = source_of(trained)
    own = open_source(twin.config.data, twin.config.task)
    assert trained.model.taken(half, source.test.features).equal(own.test.features)
    assert validation_of(trained, source).labels.equal(
        validation_of(first, source_of(first)).labels
    )


def test_baselines_learn_from_the_rows_of_the_twins(
    made: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = open_trained(made.folder)
    own = open_source(trained.members[-1].config.data, trained.config.task)
    given, learn = list[Any](), HistGradientBoostingClassifier.fit

    def remember(model: Any, features: Any, *others: Any, **named: Any) -> Any:
        given.append(features)
        return learn(model, features, *others, **named)

    monkeypatch.setattr(HistGradientBoostingClassifier, "fit", remember)
    found = {each.name: each.score for each in compare(trained, source_of(trained))}
    (features,) = given
    np.testing.assert_array_equal(features, own.train.features.numpy())
    model = HistGradientBoostingClassifier(random_state=0)
    learn(model, own.train.features.numpy(), own.train.labels.numpy())
    assert found[BOOSTING] == model.score(own.test.features.numpy(), own.test.labels.numpy())
    assert found["the model"] == made.result["test/acc"]


@pytest.mark.slow
def test_an_exported_file_takes_raw_columns(made: Run, tmp_path: Path) -> None:
    """The export compares it with the committee on the test rows."""
    path = tmp_path / "model.onnx"
    assert export(plan(made.folder, "onnx", path, columns=True)).score == made.result["test/acc"]


@pytest.mark.parametrize("epoch", [0, None])
def test_a_member_whose_best_is_before_training(
    epoch: int | None, runs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its twin trains for one epoch."""
    result = Run(runs[0]).result
    best = result["best"] | {"epoch": epoch}
    monkeypatch.setattr(Run, "result", result | {"best": best})
    twin = train_twin(Run(runs[0]))
    assert twin is not None
    assert twin.config.trainer.max_epochs == 1


def test_a_twin_is_not_logged_and_has_its_own_epochs(
    runs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Run(runs[0]).config
    trainer = config.trainer.model_copy(update={"min_epochs": 50})
    logger = config.logger.model_copy(update={"tensorboard": True, "wandb": True, "own": ["mine"]})
    changed = config.model_copy(update={"trainer": trainer, "logger": logger, "resume": "auto"})
    twin = train_twin(Run(runs[0]), lambda _: changed)
    assert twin is not None
    assert not any(getattr(twin.config.logger, name) for name in ("tensorboard", "wandb", "own"))
    assert (twin.config.trainer.min_epochs, twin.config.resume) == (None, None)


def test_without_the_engine_a_twin_has_the_same_bits(
    runs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = train_twin(Run(runs[1]))
    assert quick is not None
    assert train_in_memory(quick.config, Path("x")) is not None
    monkeypatch.setattr(twins, "train_in_memory", lambda *_: None)
    before = torch.get_rng_state()
    slow = train_twin(Run(runs[1]))
    assert slow is not None
    assert torch.get_rng_state().equal(before)
    for name, value in slow.model.state_dict().items():
        assert value.equal(quick.model.state_dict()[name])
    assert slow.columns == quick.columns


def test_a_twin_that_diverges_does_not_join(
    made: Run, runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = (made.folder / made.result["committee"]["members"][0]["folder"]).resolve()

    def again(run: Run) -> Trained | None:
        return None if run.folder.resolve() == first else train_twin(run)

    found = committee_of(runs, tmp_path / "some", again)
    count = len(found.result["committee"]["members"])
    assert found.result["committee"].get("twins", 0) == count - 1
    assert f"{count - 1} of them with a twin" in summary(found)
    none = committee_of(runs, tmp_path / "none", lambda _: None)
    alone = committee_of(runs, tmp_path / "alone", None)
    assert none.result["test/loss"] == alone.result["test/loss"]
    assert "twins" not in none.result["committee"]


def test_a_twin_that_cannot_be_trained_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The batches of 71 samples leave one of the 72 that the twin has."""
    keys = ("data=csv", f"data.path={table(tmp_path, 0)}", *CLASSES, "trainer=cpu")
    more = ("model.norm=batch", "data.batch_size=71", "trainer.max_epochs=1")
    run = fit(compose(*keys, *more), tmp_path / "run")
    assert train_twin(run) is None
    assert "has no twin: model.norm=batch: of 72 training samples the last batch" in caplog.text


def test_where_twins_help(tmp_path: Path) -> None:
    path = table(tmp_path, 3)
    keys = ("data=csv", f"data.path={path}", "trainer=cpu")
    labels = torch.zeros(MOST_ROWS, dtype=torch.int64)
    few, many = (Split(x, x) for x in (labels, torch.zeros(MOST_ROWS + 1)))

    def source(train: Split, validation: Split | None = None) -> Source:
        return Source("csv", train, train, ("a", "b"), validation=validation)

    classes = compose(*keys, *CLASSES)
    assert twins_help(classes, source(few))
    assert not twins_help(classes, source(many))
    assert not twins_help(classes, source(few, validation=few))
    assert not twins_help(compose(*keys, *SIZES), source(few))
    others = ["data.val_fraction=null"], ["data.folds=3", "data.fold=0"], ["scheduler=cosine"]
    for more in others:
        assert not twins_help(compose(*keys, *CLASSES, *more), source(few))


def test_a_pack_of_the_estimator_has_twins(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(120, 3)).astype(np.float32)
    y = (x.sum(1) + draw.normal(size=120) > 0).astype(int)
    model = KindlingClassifier(pack=4, max_epochs=3, folder=tmp_path / "pack").fit(x, y)
    trained = model.model_.trained
    assert trained.arrays == ArrayReading(kind="numbers", channels_last=False)
    half, odd = divmod(len(trained.members), 2)
    assert not odd
    assert trained.lessons == [[*range(half)], [*range(half, 2 * half)]]
    apart = [
        torch.softmax(compute_logits(each, Split(torch.from_numpy(x), torch.zeros(120).long())), -1)
        for each in trained.members
    ]
    assert isinstance(trained.model, Committee)
    votes = torch.tensor(trained.model.votes).double()
    mean = torch.tensordot(votes / votes.sum(), torch.stack(apart).double(), 1)
    np.testing.assert_allclose(model.predict_proba(x), mean.numpy(), rtol=1e-6)
    again = KindlingClassifier(pack=4, max_epochs=3).fit(x, y)
    np.testing.assert_array_equal(again.predict_proba(x), model.predict_proba(x))
    numbers = KindlingRegressor(pack=3, max_epochs=2).fit(x, x.sum(1))
    assert numbers.model_.trained.lessons == []


def test_a_file_that_has_changed_meanwhile(runs: list[Path], tmp_path: Path) -> None:
    """A twin must not learn from test rows of its members."""
    path = Path(open_trained(runs[0]).config.data.path)  # type: ignore[union-attr]
    content = path.read_text()

    def again(run: Run) -> Trained | None:
        found = train_twin(run)
        path.write_text(content + "\n0.1,2,north,2024-03-01,large,0.3\n")
        return found

    try:
        with pytest.raises(InputError, match=r"has changed since it was trained|differs from"):
            committee_of(runs, tmp_path / "changed", again)
    finally:
        path.write_text(content)
    assert not (tmp_path / "changed").exists()
