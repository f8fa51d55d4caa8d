"""The folds of a cross-validation."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.model_selection import StratifiedGroupKFold
from torch import Tensor

from kindling.config.compose import compose
from kindling.data.loader import FoldOrder, SeededOrder
from kindling.data.module import DataModule
from kindling.data.sources.folds import Folds, training_and_validation, training_samples
from kindling.data.sources.source import Split, grouped
from kindling.system.errors import InputError
from kindling.training.grouping import group_trials
from tests.helpers.commands import SMALL


def split(*counts: int) -> Split:
    """So many samples of each class, mixed; each feature is the number of its sample."""
    labels = torch.repeat_interleave(torch.tensor(counts))
    mixed = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))]
    return Split(torch.arange(len(labels), dtype=torch.float32)[:, None], mixed)


@pytest.mark.parametrize("counts", [(20, 20), (7, 31, 12), (5, 5, 5, 88), (6, 1005)])
@pytest.mark.parametrize("folds", [2, 3, 5])
@pytest.mark.parametrize("seed", [0, 1])
def test_folds_divide_each_class(counts: tuple[int, ...], folds: int, seed: int) -> None:
    data = split(*counts)
    found = Folds(data, folds, seed)
    validations = [found.validation(fold) for fold in range(folds)]
    numbers = torch.cat([each.features[:, 0] for each in validations])
    assert sorted(numbers.tolist()) == list(range(len(data)))
    for label, count in enumerate(counts):
        parts = [int((each.labels == label).sum()) for each in validations]
        assert set(parts) <= {count // folds, -(-count // folds)}
    sizes = [len(each) for each in validations]
    assert max(sizes) - min(sizes) <= 1
    assert found.training_samples == len(data) - max(sizes)
    for fold in range(folds):
        rows = found.training_rows(fold)
        inside = set(validations[fold].features[:, 0].tolist())
        assert set(rows.tolist()) == set(range(len(data))) - inside


def test_the_division_depends_on_its_seed_alone() -> None:
    data = split(30, 40)
    first, again, other = (Folds(data, 5, seed).part_of for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_an_epoch_of_a_fold_has_as_many_samples_as_the_smallest() -> None:
    order = FoldOrder(SeededOrder(3), torch.tensor([2, 4, 6, 8]))
    whole = torch.tensor([2, 4, 6, 8])[SeededOrder(3)(1, 4)]
    assert order(1, 3).tolist() == whole[:3].tolist()


def test_a_class_with_fewer_samples_than_folds_is_named() -> None:
    with pytest.raises(InputError) as caught:
        Folds(split(9, 3, 20), 5, 0, ["cat", "dog", "cow"])
    assert str(caught.value) == (
        "data.folds=5: class dog has only 3 of 32 training samples; type data.folds=3 or less"
    )
    with pytest.raises(InputError, match="class 1 has only 1 of 10 training samples; add samples"):
        Folds(split(9, 1), 2, 0)


def in_groups(names: Sequence[str], labels: Sequence[int]) -> Split:
    groups = grouped("patient", names)
    return Split(torch.arange(len(names)), torch.tensor(labels), groups)


@st.composite
def grouped_samples(draw: st.DrawFn) -> tuple[list[str], list[int]]:
    """The group and the class of each sample; the groups of half of the examples are numbers."""
    count, classes = draw(st.integers(2, 12)), draw(st.integers(2, 4))
    names = [draw(st.sampled_from(["{}", "p{}"])).format(n) for n in range(count)]
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    of, size = random.integers(0, count, draw(st.integers(4, 80))), None
    labels = random.integers(0, classes, size or len(of))
    if draw(st.booleans()):  # most samples of a group have one class
        labels = np.where(random.random(len(of)) < 0.7, of % classes, labels)
    return [names[group] for group in of], labels.tolist()


@settings(max_examples=60)
@given(grouped_samples(), st.integers(2, 5), st.integers(0, 3))
def test_folds_of_groups_are_those_of_sklearn(
    samples: tuple[list[str], list[int]], count: int, seed: int
) -> None:
    names, labels = samples
    data = in_groups(names, labels)
    try:
        found = Folds(data, count, seed)
    except InputError:
        assume(False)
    given_names = np.array(names)
    if all(name.isdigit() for name in names):
        given_names = given_names.astype(int)
    divider = StratifiedGroupKFold(count, shuffle=True, random_state=seed)
    divided = divider.split(np.zeros(len(names)), labels, given_names)
    sizes = []
    for fold, (training, validation) in enumerate(divided):
        assert found.training_rows(fold).tolist() == training.tolist()
        held = found.validation(fold)
        assert held.features.tolist() == validation.tolist()
        inside, outside = ({names[row] for row in rows} for rows in (validation, training))
        assert not inside & outside
        assert {labels[row] for row in training} == set(labels)
        assert held.groups is not None
        assert {held.groups.names[n] for n in held.groups.numbers.tolist()} == inside
        sizes.append(len(held))
    assert (min(sizes) > 0, sum(sizes)) == (True, len(names))
    assert found.training_samples == len(names) - max(sizes)


@pytest.mark.parametrize(
    ("names", "labels", "folds", "told"),
    [
        ("aabbab", [0, 1] * 3, 3, "has only 2 groups in the training set; type data.folds=2 or"),
        ("aaaa", [0, 1] * 2, 2, "has only 1 group in the training set; choose smaller groups"),
        ("aaaaaabbccddee", [0, 1] * 7, 4,
         "the group 'a' of data.group=patient has 6 of 14 training samples, more than a fold; "
         "type data.folds=2"),
        ("abbbbbbbbcdefg", [0, 1] * 7, 3, "has 8 of 14 training samples, more than a fold; choose"),
        ("aaaaabc", [0, 1] * 3 + [0], 3, "the group 'a' of data.group=patient has 5 of 7 "),
        ("aabbccdd", [0, 0, 0, 0, 0, 0, 1, 1], 2,
         " has all 2 samples of class dog, so its trial would train without them; add groups of "
         "data.group=patient with this class, or leave the class out"),
    ],
)  # fmt: skip
def test_groups_that_do_not_fit(names: str, labels: list[int], folds: int, told: str) -> None:
    with pytest.raises(InputError) as caught:
        Folds(in_groups(names, labels), folds, 0, ["cat", "dog"])
    assert str(caught.value).startswith(f"data.folds={folds}: ")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_with_as_many_folds_as_groups_each_group_is_a_fold() -> None:
    """Though a group is larger than the mean of the folds."""
    names = "aaaabbbbbccc"
    found = Folds(in_groups(names, [0, 1] * 6), 3, 0)
    folds = ["".join(names[row] for row in found.validation(fold).features) for fold in range(3)]
    assert sorted(folds) == ["aaaa", "bbbbb", "ccc"]


def test_samples_of_an_epoch() -> None:
    """Of the smallest training set, whatever the fold."""
    data = in_groups("aaaabbbbbccc", [0, 1] * 6)
    for fold in range(3):
        config = compose(*SMALL, "data.folds=3", f"data.fold={fold}").data
        assert training_samples(data, config) == 7
    config = compose(*SMALL, "data.val_fraction=0.25").data
    assert training_samples(data, config) == 12 - len(training_and_validation(data, config)[1])


def test_what_a_run_trains_on_and_is_validated_on() -> None:
    data = split(30, 40)
    config = compose(*SMALL, "data.folds=4", "data.fold=3", "data.split_seed=2").data
    training, validation = training_and_validation(data, config)
    folds = Folds(data, 4, 2)
    assert torch.equal(training.features[:, 0].long(), folds.training_rows(3))
    assert torch.equal(validation.features, folds.validation(3).features)
    plain, held = training_and_validation(data, compose(*SMALL, "data.val_fraction=0.1").data)
    assert (len(plain), len(held)) == (63, 7)


def test_orders_of_a_module_never_touch_their_fold() -> None:
    config = compose(*SMALL, "data.folds=3", "data.fold=0").data
    module = DataModule(config, folds=[0, 2])
    module.setup()
    orders = [module.order(seed, fold) for seed in (0, 1) for fold in (0, 2)]
    module.set_orders(orders, 4)
    taken: list[Tensor] = list(module.sampler())
    rows = torch.cat([block.transpose(0, 1).flatten(1) for block in taken], 1)  # (orders, samples)
    assert rows.shape == (4, module.training_samples)
    samples = Folds(module.source.train, 3, config.split_seed).part_of
    for chosen, fold in zip(rows, [0, 2, 0, 2], strict=True):
        assert len(set(chosen.tolist())) == len(chosen)
        assert fold not in samples[chosen]


def test_folds_of_a_table_have_columns_of_their_own() -> None:
    """A column is scaled by the training rows of its fold, so features differ between folds."""
    keys = ("data.folds=2", "trainer=cpu")
    table = [
        compose("data=csv", "data.path=t.csv", "data.target=y", *keys, f"data.fold={fold}")
        for fold in (0, 1, 0)
    ]
    groups = group_trials(table, max_trials=9)
    assert [group.trials for group in groups] == [[0, 2], [1]]
    digits = [compose(*SMALL, *keys, f"data.fold={fold}") for fold in (0, 1, 0)]
    assert [group.trials for group in group_trials(digits, max_trials=9)] == [[0, 1, 2]]


def test_a_fold_without_a_group_is_refused() -> None:
    """With these classes, scikit-learn leaves a fold empty."""
    names = [*map(str, [5, 4, 1, 4, 4, 1, 1, 4, 0, 4, 5, 1])]
    with pytest.raises(InputError, match=r"fold \d would have no group of data.group"):
        Folds(in_groups(names, [0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1]), 4, 0)
