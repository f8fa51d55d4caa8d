"""Measures by hand and by scikit-learn."""

import pytest
import torch
from sklearn.metrics import (
    precision_recall_fscore_support,
    roc_auc_score,
    top_k_accuracy_score,
)
from torchmetrics.functional.classification import multiclass_auroc

from src.inference.measures import describe, measure
from src.system.errors import InputError

# Ten samples of three classes: [5, 1, 0], [1, 2, 1] and [0, 0, 0] of a class are predicted as each.
LABELS = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 1, 1])
PREDICTED = torch.tensor([0, 0, 0, 0, 0, 1, 0, 1, 1, 2])


def test_measures_of_ten_samples_by_hand() -> None:
    found = measure(torch.eye(3)[PREDICTED], LABELS)
    assert found.samples == (6, 4, 0)
    assert found.precision.per_class == pytest.approx((5 / 6, 2 / 3, 0.0))
    assert found.recall.per_class == pytest.approx((5 / 6, 1 / 2, 0.0))
    assert found.f1.per_class == pytest.approx((5 / 6, 4 / 7, 0.0))
    assert found.f1.macro == pytest.approx((5 / 6 + 4 / 7) / 3)
    assert found.f1.weighted == pytest.approx(0.6 * 5 / 6 + 0.4 * 4 / 7)
    # Of 6 · 4 pairs, class 0: 5 · 3 in order, 5 · 1 + 1 · 3 equal.
    assert found.auroc.per_class == pytest.approx(((15 + 8 / 2) / 24, (10 + 12 / 2) / 24, None))
    assert found.auroc.macro == pytest.approx((19 + 16) / 48)
    assert (found.top_k, found.top_k_accuracy) == (None, None)
    assert measure(torch.eye(3)[PREDICTED], LABELS, 1).top_k_accuracy == 0.7
    assert measure(torch.eye(3)[PREDICTED], LABELS, 3).top_k_accuracy == 1.0


@pytest.mark.filterwarnings("ignore:.*ill-defined")
@pytest.mark.parametrize("classes", [2, 3, 8])
@pytest.mark.parametrize("seed", range(5))
def test_measures_are_those_of_other_libraries(classes: int, seed: int) -> None:
    stream = torch.Generator().manual_seed(seed)
    logits = torch.randn(60, classes, generator=stream).double().mul(4).round()  # with equal ones
    labels = torch.randint(classes, (60,), generator=stream)
    labels[:classes] = torch.arange(classes)
    found, predicted = measure(logits, labels), logits.argmax(1)
    for average in ("macro", "weighted"):
        *expected, _ = precision_recall_fscore_support(labels, predicted, average=average)
        own = [getattr(each, average) for each in (found.precision, found.recall, found.f1)]
        assert own == pytest.approx(expected, rel=1e-12)
        probabilities = logits.softmax(1).numpy()
        area = roc_auc_score(
            labels, probabilities if classes > 2 else probabilities[:, 1],
            average=average, multi_class="ovr",
        )  # fmt: skip
        assert getattr(found.auroc, average) == pytest.approx(area, rel=1e-12)
    *expected, samples = precision_recall_fscore_support(labels, predicted)
    for measured, each in zip((found.precision, found.recall, found.f1), expected, strict=True):
        assert measured.per_class == pytest.approx(each.tolist(), rel=1e-12)
    assert found.samples == tuple(samples)
    areas = multiclass_auroc(logits.softmax(1), labels, classes, average="none")
    assert found.auroc.per_class == pytest.approx(areas.tolist(), rel=1e-6)
    distinct = logits + torch.rand(60, classes, generator=stream)
    if classes > 5:
        expected_accuracy = top_k_accuracy_score(labels, distinct, k=5)
        assert measure(distinct, labels).top_k == 5
        assert measure(distinct, labels).top_k_accuracy == pytest.approx(expected_accuracy)


def test_a_class_that_is_neither_there_nor_predicted_has_no_measure() -> None:
    found = measure(torch.eye(4)[PREDICTED], LABELS)
    for each in (found.precision, found.recall, found.f1, found.auroc):
        assert each.per_class[3] is None
    assert found.f1.macro == pytest.approx((5 / 6 + 4 / 7) / 3)
    one = measure(torch.eye(2)[[0, 0]], torch.tensor([0, 0]))
    assert one.auroc.to_primitives() == {
        "macro": None,
        "weighted": None,
        "per_class": [None, None],
    }
    assert (one.f1.macro, one.f1.per_class) == (1.0, (1.0, None))


def test_probabilities_that_are_no_numbers_have_no_auroc() -> None:
    logits = torch.eye(3)[PREDICTED]
    logits[2] = torch.nan
    found = measure(logits, LABELS)
    assert found.auroc.per_class == (None, None, None)
    assert found.auroc.macro is None
    assert found.f1.macro == pytest.approx((5 / 6 + 4 / 7) / 3)  # torch.argmax of them is 0


@pytest.mark.parametrize("top_k", [-1, 0, 4])
def test_a_wrong_number_for_top_k_is_refused(top_k: int) -> None:
    with pytest.raises(InputError, match=rf"^--top-k {top_k}: .* type a number from 1 to 3$"):
        measure(torch.eye(3)[PREDICTED], LABELS, top_k)


def test_the_table_has_a_row_for_each_class_and_average() -> None:
    lines = describe(measure(torch.eye(3)[PREDICTED], LABELS, 2), ["cat", "dog", "eel"]).split("\n")
    assert lines[0] == "top-2 accuracy 70.00%"  # equal logits are no hit
    assert [line.split() for line in lines[2:]] == [
        ["class", "precision", "recall", "F1", "AUROC", "samples"],
        [*lines[3].split()],
        ["cat", "83.33%", "83.33%", "83.33%", "79.17%", "6"],
        ["dog", "66.67%", "50.00%", "57.14%", "66.67%", "4"],
        ["eel", "0.00%", "0.00%", "0.00%", "–", "0"],
        ["macro", "average", "50.00%", "44.44%", "46.83%", "72.92%", "10"],
        ["weighted", "average", "76.67%", "70.00%", "72.86%", "74.17%", "10"],
    ]
