"""Pictures of models: augmented samples and mistakes."""

import pytest
import torch

from kindling.data.sources.catalogue import open_source
from kindling.data.sources.source import Split
from kindling.reports import model_pictures
from kindling.reports.collect import collect
from kindling.reports.model_pictures import (
    augmented_samples,
    evaluated,
    measure_table,
    most_confident_mistakes,
    pictures,
)
from tests.helpers.commands import Train


@pytest.mark.slow
def test_augmented_samples_are_shown(train: Train) -> None:
    """For a run with augmentation: the samples unchanged, and each with different changes."""
    plain, run = (train(f"augmentation={choice}") for choice in ("none", "digits"))
    source = open_source(run.config.data)
    seen = augmented_samples(run.config, source)
    assert seen is not None
    assert seen.shape == (8, 9, 1, 28, 28)
    assert torch.equal(seen[:, 0], source.train.features[:8])
    assert len({picture.numpy().tobytes() for picture in seen.flatten(0, 1)}) == 72
    assert augmented_samples(plain.config, source) is None
    names = [
        [picture.name for picture in pictures(*evaluated(collect([each.folder]).entries[0]), "m")]
        for each in (plain, run)
    ]
    assert names[1] == [*names[0], "m-augmented"]


def test_many_classes_have_only_averages(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    *_, found = evaluated(collect([train().folder]).entries[0])
    whole = measure_table(found)
    assert [row[0] for row in whole[1:]] == [*"0123456789", "macro average", "weighted average"]
    assert whole[1][1] == f"{found.measures.precision.per_class[0]:.2%}"
    monkeypatch.setattr(model_pictures, "MOST_ROWS", 11)
    assert measure_table(found) == [whole[0], *whole[-2:]]


def test_the_most_confident_mistakes_come_first() -> None:
    logits = torch.tensor([[0.0, 2.0], [5.0, 0.0], [0.0, 4.0], [1.0, 0.0]])
    split = Split(torch.zeros(4, 1), torch.tensor([0, 0, 0, 1]))
    chosen, titles = most_confident_mistakes(logits, split, "0123456789", most=2)
    assert chosen.tolist() == [2, 0]
    assert titles == ["0 → 1, 98%", "0 → 1, 88%"]
