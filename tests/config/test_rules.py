"""Rules that look at several keys."""

import pytest

from tests.helpers.faults import faults


@pytest.mark.parametrize(
    ("overrides", "answer"),
    [
        (["trainer.precision=16-mixed", "trainer.accelerator=cpu"], "trainer.precision=bf16-mixed"),
        (["trainer.precision=64", "trainer.accelerator=mps"], "type trainer.precision=32"),
        (["trainer.devices=2", "trainer.accelerator=mps"], "MPS has one device"),
        (["trainer.devices=999", "trainer.accelerator=cpu"], "this program may use"),
        (["optimizer=adam", "optimizer.momentum=0.9"], "optimizer=adam has no such key"),
        (["model=logistic_regression", "model.hidden_sizes=3"], "has no such key"),
        (["data=csv", "data.target=a", "data.drop=[b,a]"], "would drop a, which data.target names"),
        (["data.sampler=balanced", "data.order=stream"], "type data.order=seeded"),
        (["data=csv", "data.target=a", "data.drop=a"], "data.drop=a: would drop a, which"),
        (["data=csv", "data.target=a", "data.group=a"], "data.group=a: data.target names this"),
        (["data=csv", "data.target=a", "data.weights=a"], "data.weights=a: data.target names this"),
        (
            ["data=npz", "data.group=y_test"],
            "data.group=y_test: is an array of labels; name another",
        ),
        (["data=npz", "data.group=''"], "data.group=: must be a name"),
        (
            ["data=image_folder", "data.group=folder"],
            "must be the level of the folders that name the groups, counted from the folder of a "
            "class; type data.group=1",
        ),
        (
            ["data=mnist", "data.group=who"],
            "data.group=who: data=mnist has no such key; it belongs to data=csv, image_folder, npz",
        ),
        (
            ["checkpoint.monitor=val/loss"],
            "mode=max would keep the worst val/loss; type",
        ),
        (
            ["checkpoint.monitor=val/f1", "checkpoint.mode=min"],
            "checkpoint.mode=min would keep the worst val/f1; type checkpoint.mode=max",
        ),
        (
            ["augmentation.anneal=0.2"],
            "augmentation.anneal=0.2 has no use without augmentation; type augmentation=digits too",
        ),
        (["data.folds=5"], "name the fold too, data.fold=0 or, with -m, 'data.fold=range(5)'"),
        (["data.fold=1"], "data.fold=1 has no use without data.folds; type data.folds=5 too"),
        (["data.folds=3", "data.fold=3"], "data.fold=3: the folds of data.folds=3 are 0 to 2"),
        (["data.folds=3", "data.fold=0", "data.order=stream"], "type data.order=seeded"),
    ],
)
def test_rules_across_keys(overrides: list[str], answer: str) -> None:
    assert answer in faults(*overrides)
