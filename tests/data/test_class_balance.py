"""Class weights, and the order that draws all classes alike."""

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.model_selection import StratifiedKFold
from sklearn.utils.class_weight import compute_class_weight

from kindling.config.compose import compose
from kindling.data.class_balance import BalancedOrder, class_weights
from kindling.data.module import DataModule
from kindling.data.sources.source import Source, Split
from kindling.records.folder import Run
from kindling.records.sweep_folder import Sweep
from kindling.sweeps.trials import train_trials
from kindling.system import machine
from kindling.system.errors import InputError
from kindling.training.building import build_module
from kindling.training.fit import fit
from kindling.training.grouping import group_trials

LABELS = torch.tensor([0] * 60 + [1] * 30 + [2] * 9 + [3])[torch.randperm(100)]


def source(labels: torch.Tensor, classes: int = 4) -> Source:
    split = Split(torch.zeros(len(labels), 1), labels)
    return Source("own", split, split, tuple("abcdefghijklm"[:classes]))


def test_balanced_weights_are_those_of_scikit_learn() -> None:
    own = source(LABELS)
    expected = compute_class_weight("balanced", classes=np.arange(4), y=LABELS.numpy())
    assert class_weights("balanced", own.train, own) == pytest.approx(expected.tolist(), rel=1e-15)
    assert class_weights(None, own.train, own) is None
    assert class_weights([1, 2.5, 3, 4], own.train, own) == (1.0, 2.5, 3.0, 4.0)


def test_other_numbers_of_weights_are_refused() -> None:
    own = source(LABELS)
    message = (
        "trainer.class_weights=[1.0,2.0]: has 2 weights, but data=own has 4 classes (a, b, c, d); "
        "type one weight for each class, or trainer.class_weights=balanced"
    )
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        class_weights([1.0, 2.0], own.train, own)
    many = source(LABELS, 13)
    with pytest.raises(InputError, match=r"and 2 more: has 12 weights.*\(a, b, .*, j, …\)"):
        class_weights([1.0] * 12, many.train, many)


def test_a_class_without_samples_cannot_be_balanced() -> None:
    own = source(LABELS, 6)
    message = "={}: the training set has no sample of e, f; add samples, try another "
    with pytest.raises(InputError, match="trainer.class_weights" + message.format("balanced")):
        class_weights("balanced", own.train, own)
    with pytest.raises(InputError, match="data.sampler" + message.format("balanced")):
        BalancedOrder(0, own.train, own)


def test_an_order_depends_on_seed_and_epoch_alone() -> None:
    own = source(LABELS)
    orders = [BalancedOrder(seed, own.train, own) for seed in (3, 3, 4)]
    assert torch.equal(orders[0](7, 100), orders[1](7, 100))
    assert not torch.equal(orders[0](7, 100), orders[0](8, 100))
    assert not torch.equal(orders[0](7, 100), orders[2](7, 100))


def test_all_classes_and_all_samples_of_a_class_are_drawn_alike() -> None:
    own = source(LABELS)
    order, epochs = BalancedOrder(0, own.train, own), 400
    drawn = torch.cat([order(epoch, 100) for epoch in range(epochs)])
    assert drawn.shape == (100 * epochs,)
    shares = torch.bincount(LABELS[drawn]) / len(drawn)
    assert shares.tolist() == pytest.approx([0.25] * 4, abs=0.01)
    rare = Counter(drawn[LABELS[drawn] == 2].tolist())
    assert set(rare) == set((LABELS == 2).nonzero().flatten().tolist())
    assert all(abs(count / rare.total() - 1 / 9) < 0.01 for count in rare.values())


@pytest.mark.parametrize("count", [2, 3, 5])
def test_folds_have_the_weights_of_their_training_samples(count: int, tmp_path: Path) -> None:
    """By scikit-learn's own division and weights: alone, and in each stack of a sweep."""
    hand = np.random.default_rng(count)
    y = hand.permutation([0] * 37 + [1] * 16 + [2] * 7)
    np.savez(tmp_path / "a.npz", x=hand.random((60, 3)), y=y, x_test=np.ones((3, 3)), y_test=y[:3])
    configs = [
        compose(
            "data=npz",
            f"data.path={tmp_path / 'a.npz'}",
            f"data.folds={count}",
            f"data.fold={fold}",
            f"seed={seed}",
            "data.split_seed=4",
            "trainer=cpu",
            "trainer.class_weights=balanced",
            "trainer.max_epochs=2",
        )
        for fold in range(count)
        for seed in (0, 1)
    ]
    divider = StratifiedKFold(count, shuffle=True, random_state=4)
    expected = [
        compute_class_weight("balanced", classes=np.arange(3), y=y[rows]).tolist()
        for rows, _ in divider.split(y, y)
    ]
    assert [group.trials for group in group_trials(configs)] == [
        [2 * n, 2 * n + 1] for n in range(count)
    ]
    for group in [[config] for config in configs] + [
        configs[2 * n : 2 * n + 2] for n in range(count)
    ]:
        data = DataModule(group[0].data)
        data.setup()
        classifier = build_module(group, data, machine.resolve(group[0].trainer))
        assert group[0].data.fold is not None
        assert classifier.step_plan.class_weights == pytest.approx(
            expected[group[0].data.fold], rel=1e-15
        )
    folders = [tmp_path / str(number) for number in range(len(configs))]
    train_trials(configs, folders, Sweep(tmp_path), None)
    alone = fit(configs[-1], tmp_path / "alone")
    assert Run(folders[-1]).history[-1]["train/loss"] == alone.history[-1]["train/loss"]
