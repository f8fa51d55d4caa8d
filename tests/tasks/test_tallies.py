"""Measures by hand, by scikit-learn and by torchmetrics."""

import math
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import (
    brier_score_loss,
    f1_score,
    precision_score,
    recall_score,
    roc_auc_score,
    top_k_accuracy_score,
)
from torch import Tensor
from torchmetrics.functional import classification

from kindling.config import registry
from kindling.config.compose import compose
from kindling.config.measures import (
    MEASURES,
    higher_is_better,
    in_words,
    is_fraction,
    measure_of,
    monitors,
    sort_key,
    tallied,
)
from kindling.system.errors import InputError
from kindling.tasks.measures import (
    BINS,
    Tally,
    among_best,
    areas,
    by_class,
    count_classes,
    joined,
    probabilities,
    tally,
    try_own,
    values,
)
from kindling.tasks.task import build_task
from kindling.training.fit import fit
from tests.helpers.tasks import MULTILABEL, SQUARED, classes

OF_CLASSES = [name for name in tallied() if "classification" in MEASURES[name].tasks]
# Ten samples of four classes. The last class is neither there nor predicted.
LABELS = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 1, 1])
PREDICTED = torch.tensor([0, 0, 0, 0, 0, 1, 0, 1, 1, 2])


def measured(measure: str, logits: Tensor, labels: Tensor, *ends: int) -> list[float]:
    """The measure of logits (S, classes, n) in chunks that end before these samples."""
    starts = (0, *ends)
    parts = [
        tally(measure, logits[..., start:end], labels[start:end])
        for start, end in zip(starts, (*ends, len(labels)), strict=True)
    ]
    return values(measure, joined(measure, parts), len(labels))


def test_counts_and_measures_of_ten_samples_by_hand() -> None:
    counts = count_classes(torch.stack([PREDICTED, LABELS]), LABELS, 4)
    assert counts[0].tolist() == [[6, 4, 0, 0], [6, 3, 1, 0], [5, 2, 0, 0]]
    assert counts[1].tolist() == [[6, 4, 0, 0]] * 3
    found = {name: values.tolist() for name, values in by_class(counts[0]).items()}
    nan = math.nan
    assert found["precision"] == pytest.approx([5 / 6, 2 / 3, 0, nan], nan_ok=True)
    assert found["recall"] == pytest.approx([5 / 6, 1 / 2, 0, nan], nan_ok=True)
    assert found["f1"] == pytest.approx([5 / 6, 4 / 7, 0, nan], nan_ok=True)
    assert values("f1", counts[None], 10) == [pytest.approx((5 / 6 + 4 / 7) / 3), 1.0]


def test_measures_of_four_samples_by_hand() -> None:
    """Class 1 has the probabilities 0.2, 0.4 and 0.4, 0.8; samples 2 and 4 belong to it."""
    high = torch.tensor([0.2, 0.4, 0.4, 0.8], dtype=torch.float64)
    labels = torch.tensor([0, 1, 0, 1])
    logits = torch.stack([1 - high, high]).log()[None]
    # Of the four pairs of a sample of class 1 and one of class 0, three are right and one is equal.
    assert measured("auroc", logits, labels) == [(3 + 0.5) / 4]
    brier = 2 * (0.2**2 + 0.6**2 + 0.4**2 + 0.2**2) / 4
    assert measured("brier", logits, labels) == [pytest.approx(brier, abs=1e-9)]
    # Confidences 0.8 (right), 0.6 (wrong), 0.6 (right), 0.8 (right).
    gap = abs(1 - 1.2) + abs(2 - 1.6)
    assert measured("ece", logits, labels) == [pytest.approx(gap / 4, abs=1e-9)]
    assert measured("top5", logits, labels) == [1.0]


def _brier(labels: np.ndarray, found: np.ndarray) -> float:
    return float(brier_score_loss(labels, found, labels=range(found.shape[1]), scale_by_half=False))


def _area(labels: np.ndarray, found: np.ndarray) -> float:
    present = np.unique(labels)
    truth = labels[:, None] == present
    return float(np.mean(roc_auc_score(truth, found[:, present], average=None)))


def _of_predictions(score: Callable[..., float]) -> Callable[[np.ndarray, np.ndarray], float]:
    return lambda labels, found: score(labels, found.argmax(1), average="macro")


SCORES: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "f1": _of_predictions(f1_score),
    "precision": _of_predictions(precision_score),
    "recall": _of_predictions(recall_score),
    "auroc": _area,
    "brier": _brier,
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*ill-defined")
@pytest.mark.filterwarnings("ignore:.*values do not sum to one")
@pytest.mark.parametrize("classes", [2, 3, 20])
def test_measures_are_those_of_other_libraries(classes: int) -> None:
    """Of 30 samples of 20 classes, some classes have no sample or no prediction."""
    stream = torch.Generator().manual_seed(classes)
    labels = torch.randint(classes, (30,), generator=stream)
    logits = 3 * torch.randn(50, classes, 30, generator=stream, dtype=torch.float64)
    found = logits.softmax(1).mT
    for name, score in SCORES.items():
        for value, each in zip(measured(name, logits, labels), found, strict=True):
            assert value == pytest.approx(score(labels.numpy(), each.numpy()), abs=1e-9)
    errors = measured("ece", logits, labels)
    for value, each in zip(errors, found, strict=True):
        theirs = classification.multiclass_calibration_error(each, labels, classes, BINS, norm="l1")
        assert value == pytest.approx(theirs.item(), abs=1e-6)
    for k in range(1, classes):
        ours = among_best(logits, labels, k).double().mean(-1).tolist()
        expected = [
            top_k_accuracy_score(labels, each, k=k, labels=range(classes))
            for each in (found if classes > 2 else found[:, :, 1])
        ]
        assert ours == pytest.approx(expected, abs=1e-12)
        if k == 5:
            assert measured("top5", logits, labels) == ours


@pytest.mark.parametrize("measure", OF_CLASSES)
def test_the_bits_depend_neither_on_chunks_nor_on_models(measure: str) -> None:
    stream = torch.Generator().manual_seed(1)
    labels = torch.randint(7, (1000,), generator=stream)
    logits = 2 * torch.randn(20, 7, 1000, generator=stream)
    whole = measured(measure, logits, labels)
    assert len(set(whole)) > 10
    assert measured(measure, logits, labels, 1, 400, 999) == whole
    assert [measured(measure, each[None], labels, 37)[0] for each in logits] == whole
    if measure == "auroc":  # of one row for each sample
        assert joined(measure, [tally(measure, logits, labels)]).shape == (1000, 20, 8)


@pytest.mark.parametrize("measure", ["auroc", "brier", "ece"])
def test_a_model_with_a_logit_of_nan_has_no_measure(measure: str) -> None:
    logits = torch.randn(2, 3, 40, generator=torch.Generator().manual_seed(2))
    labels = torch.arange(40) % 3
    expected = measured(measure, logits, labels)
    logits[0, 1, 7] = math.nan
    found = measured(measure, logits, labels, 20)
    assert math.isnan(found[0])
    assert found[1] == expected[1]
    assert not among_best(logits, labels, 1)[0, 7]


@pytest.mark.parametrize("samples", [2, 22, 1000])
def test_samples_with_equal_logits_have_equal_probabilities(samples: int) -> None:
    """Wherever they stand in a chunk: otherwise rounding would order them for AUROC."""
    logits = torch.randn(3, 8, 1, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    found = probabilities(logits.expand(-1, -1, samples).contiguous())
    assert torch.equal(found, found[:, :1].expand_as(found))
    labels = torch.arange(samples) % 2
    assert measured("auroc", logits.expand(-1, -1, samples), labels, samples // 3) == [0.5] * 3


def test_equal_logits_are_no_hit() -> None:
    """A model that has learnt nothing does not look perfect."""
    assert measured("top5", torch.zeros(1, 6, 10), torch.arange(10) % 6) == [0.0]


def test_areas_of_classes_without_samples() -> None:
    scores = torch.tensor([[[0.7, 0.2, 0.1], [0.2, 0.5, 0.3]]])
    nan = math.nan
    assert areas(scores, torch.tensor([0, 1])).tolist() == [
        pytest.approx([1.0, 1.0, nan], nan_ok=True)
    ]
    assert areas(scores, torch.tensor([1, 1])).isnan().all()
    assert math.isnan(measured("auroc", scores.mT.log(), torch.tensor([1, 1]))[0])


def test_five_classes_have_no_top_five(tmp_path: Path) -> None:
    config = compose("data=toy", "checkpoint.monitor=val/top5")
    with pytest.raises(InputError, match=r"val/top5: toy has 2 classes.*monitor=val/acc$"):
        fit(config, tmp_path / "run")


# --- config/measures.py ---------------------------------------------------------------------------


def test_bounds_and_directions() -> None:
    lower = {"val/loss", "train/loss", "val/brier", "val/ece", "val/rmse", "val/mae"}
    assert {name for name in monitors() if not higher_is_better(name)} == lower
    unbounded = {
        "val/loss", "train/loss", "val/brier", "val/r2", "train/r2", "val/rmse", "val/mae",
    }  # fmt: skip
    assert {name for name in monitors() if not is_fraction(name)} == unbounded
    assert not is_fraction("lr")
    assert not higher_is_better("seconds")
    assert [sort_key("val/f1", 0.5), sort_key("val/ece", 0.5)] == [-0.5, 0.5]
    assert [sort_key("val/f1", value) for value in (None, math.nan)] == [math.inf] * 2


def test_names_and_words() -> None:
    assert [in_words(name) for name in ("test/acc", "val/ece", "lr")] == [
        "accuracy", "calibration error", "lr",
    ]  # fmt: skip
    assert [measure_of(name) for name in ("val/acc", "val/loss", "val/f1")] == [None, None, "f1"]


def test_each_measure_beside_loss_and_accuracy_has_a_tally() -> None:
    assert sorted({"acc", "r2", "loss", *tallied()}) == sorted(MEASURES)
    assert all(isinstance(resolve_name(MEASURES[name].tally or ""), Tally) for name in tallied())


def hits(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits.argmax(1) == labels).sum(-1)


def own(monkeypatch: pytest.MonkeyPatch, found: Any) -> None:
    """An extension brings the measure `ece`."""
    monkeypatch.setitem(registry.PLACES, ("measure", "ece"), "mine.measures:OWN")
    monkeypatch.setattr(registry, "resolve", lambda *_: found)


@pytest.mark.parametrize("share", [Tensor.tolist, Tensor.numpy, Tensor.double, tuple])
def test_values_of_an_own_measure_are_floats_of_python(
    share: Callable[[Tensor], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They go into files of JSON."""
    own(monkeypatch, Tally(hits, lambda total, samples: share(total / samples)))
    found = measured("ece", torch.eye(2).expand(3, 2, 2), torch.tensor([0, 0]), 1)
    assert found == [0.5] * 3
    assert {type(value) for value in found} == {float}


def own_tally(of: Any, values: Any) -> Tally:
    return Tally(of, values)


def raises(*_: Any) -> Any:
    raise KeyError("oops")


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (own_tally(hits, lambda *_: None), "values of mine.measures:OWN are None, must be a float"),
        (own_tally(hits, lambda *_: [None, None]), "a float for each of 2 models"),
        (own_tally(hits, lambda *_: [0.5]), r"are \[0.5\], must be a float for each of 2 models"),
        (own_tally(hits, lambda *_: 0.5), "are 0.5, must be"),
        (own_tally(hits, raises), "mine.measures:OWN fails for .*KeyError: 'oops'"),
        (
            own_tally(raises, lambda *_: [1.0, 1.0]),
            "mine.measures:OWN fails for .*KeyError: 'oops'",
        ),
        (own_tally(lambda *_: None, raises), "mine.measures:OWN fails for"),
        (hits, "mine.measures:OWN fails for .*AttributeError"),
    ],
)
def test_an_own_measure_that_cannot_be_used_is_told_before_training(
    found: Any, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own(monkeypatch, found)
    config = compose(
        "data=digits", "trainer=cpu", "checkpoint.monitor=val/ece", "checkpoint.mode=min"
    )
    with pytest.raises(InputError, match=rf"^checkpoint.monitor=val/ece: .*{told}"):
        fit(config, tmp_path / "run")
    assert not [*tmp_path.rglob("history.csv")]


@pytest.mark.parametrize("task", [classes(3), build_task(SQUARED, 2), build_task(MULTILABEL, 2)])
def test_an_own_measure_is_tried_with_the_outputs_of_its_task(
    task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def look(outputs: Tensor, labels: Tensor) -> Tensor:
        seen.append((outputs.shape, outputs.dtype, labels.shape, labels.dtype))
        return torch.zeros(len(outputs))

    units = SimpleNamespace(units=[1.0])
    own(monkeypatch, Tally(look, lambda total, _, units: total * units[0], in_units=True))
    try_own("ece", task, units)  # type: ignore[arg-type]
    one = task.section.name == "classification"
    width, dtype = ((), torch.int64) if one else ((2,), torch.float32)
    assert seen == [((2, task.labels, 2), torch.float32, (2, *width), dtype)]
