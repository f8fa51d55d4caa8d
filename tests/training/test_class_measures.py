"""Measures of each class by hand, by scikit-learn and by torchmetrics."""

import math

import pytest
import torch
from sklearn.metrics import f1_score, precision_score, recall_score
from torchmetrics.functional import classification

from src.config.schema import MEASURES
from src.training.class_measures import by_class, count_classes, macro

# Ten samples of four classes. The last class is neither there nor predicted.
LABELS = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 1, 1])
PREDICTED = torch.tensor([0, 0, 0, 0, 0, 1, 0, 1, 1, 2])


def test_counts_and_measures_of_ten_samples_by_hand() -> None:
    counts = count_classes(torch.stack([PREDICTED, LABELS]), LABELS, 4)
    assert counts[0].tolist() == [[6, 4, 0, 0], [6, 3, 1, 0], [5, 2, 0, 0]]
    assert counts[1].tolist() == [[6, 4, 0, 0]] * 3
    found = {name: values.tolist() for name, values in by_class(counts[0]).items()}
    nan = math.nan
    assert found["precision"] == pytest.approx([5 / 6, 2 / 3, 0, nan], nan_ok=True)
    assert found["recall"] == pytest.approx([5 / 6, 1 / 2, 0, nan], nan_ok=True)
    assert found["f1"] == pytest.approx([5 / 6, 4 / 7, 0, nan], nan_ok=True)
    assert macro(counts, "f1") == [pytest.approx((5 / 6 + 4 / 7) / 3), 1.0]
    assert set(found) == set(MEASURES)


@pytest.mark.filterwarnings("ignore:.*ill-defined")
@pytest.mark.parametrize("classes", [2, 3, 20])
def test_measures_are_those_of_other_libraries(classes: int) -> None:
    """Of 30 samples of 20 classes, some classes have no sample or no prediction."""
    stream = torch.Generator().manual_seed(classes)
    labels = torch.randint(classes, (30,), generator=stream)
    predicted = torch.randint(classes, (50, 30), generator=stream)
    counts = count_classes(predicted, labels, classes)
    scores = {"f1": f1_score, "precision": precision_score, "recall": recall_score}
    for name, score in scores.items():
        values = macro(counts, name)
        for trial, value in enumerate(values):
            expected = score(labels, predicted[trial], average="macro")
            assert value == pytest.approx(expected, rel=1e-12)
            theirs = getattr(classification, f"multiclass_{name}" + "_score" * (name == "f1"))
            mean = theirs(predicted[trial], labels, classes, average="macro")
            assert value == pytest.approx(mean.item(), rel=1e-6)
            alone = count_classes(predicted[trial : trial + 1], labels, classes)
            assert macro(alone, name) == [value]  # to the last bit
