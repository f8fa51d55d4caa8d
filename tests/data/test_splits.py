"""The data of a run: its three parts and their batches."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kindling.config.compose import compose
from kindling.data import loader
from kindling.data.loader import SeededOrder
from kindling.data.module import DataModule
from kindling.data.splits import repeated
from kindling.records.folder import Run
from kindling.system.errors import InputError
from kindling.training.fit import fit
from tests.helpers.commands import SMALL
from tests.helpers.data_files import write_pictures


def test_a_batch_larger_than_the_split_is_an_error(tmp_path: Path) -> None:
    config = compose(*SMALL, "data.batch_size=2000", "data.drop_last=true")
    with pytest.raises(InputError, match=r"type data\.batch_size=1150 or less"):
        fit(config, tmp_path / "run")
    result = Run(tmp_path / "run").result
    assert result["status"] == "failed"
    assert "data.batch_size=2000" in result["error"]


@pytest.mark.parametrize("orders", [1, 7, 40])
@pytest.mark.parametrize("trials", [40, 500])
@pytest.mark.parametrize("bound", [1, 10_000, 100_000, 10**9])
def test_a_block_of_rows_is_bounded_in_bytes(
    orders: int, trials: int, bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its numbers of samples, and a rate, a loss and a count of each trial and batch. A block has
    at least one batch, and at most an epoch."""
    monkeypatch.setattr(loader, "ROWS_BYTES", bound)
    data = DataModule(compose(*SMALL).data)
    data.setup()
    data.set_orders([SeededOrder(seed) for seed in range(orders)], trials)
    data.use_rows(operations=1)
    blocks = [block.rows for block in data.train_dataloader()]
    full = [len(rows) for rows in blocks if rows.shape[-1] == 100]
    held = [rows.nbytes + 16 * trials * len(rows) for rows in blocks]
    assert max(held) <= bound or max(map(len, blocks)) == 1
    one = 8 * 100 * orders + 16 * trials
    assert full[0] == min(11, max(1, bound // one))
    assert sum(full) == 11


def test_a_class_without_samples_in_a_split_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_pictures(tmp_path / "data", {"many": 9, "once": 1})
    config = compose(
        "data=image_folder", f"data.path={tmp_path}/data", "data.size=4", "trainer=cpu",
        "trainer.max_epochs=1",
    )  # fmt: skip
    fit(config, tmp_path / "run")
    assert "set has no sample of once" in caplog.text


# --- samples that a test set shares with the training set, and missing classes ---


@pytest.mark.parametrize("at_once", [4096, 7])
@pytest.mark.parametrize("seed", range(20))
def test_rows_are_counted_as_by_sets(
    seed: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few values make many rows repeat; any shape, bytes and floats, -0.0 as 0.0."""
    draw = np.random.default_rng(seed)
    shape = tuple(draw.integers(1, 5, size=draw.integers(1, 4)))
    few = draw.integers(0, 2 + seed % 3, size=(300, *shape)) - (seed % 2)
    values = few.astype(np.float32) * -1.0 if seed % 2 else few.astype(np.uint8)
    split = int(draw.integers(1, 299))
    samples, among = values[:split], values[split:]
    known = {tuple(row.ravel() + 0.0) for row in among}
    expected = sum(tuple(row.ravel() + 0.0) in known for row in samples)
    monkeypatch.setattr("kindling.data.splits.AT_ONCE", at_once)
    assert repeated(torch.from_numpy(samples), torch.from_numpy(among)) == expected


def test_a_sample_counts_as_often_as_it_occurs() -> None:
    assert repeated(torch.tensor([[1.0], [2.0], [2.0]]), torch.tensor([[2.0], [3.0]])) == 2


def test_a_run_tells_repeated_samples(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    x = np.random.default_rng(0).normal(size=(60, 4))
    y = np.arange(60) % 2
    leaked = np.concatenate([x[:7], x[7:10] + 1])
    np.savez(tmp_path / "a.npz", x=x, y=y, x_test=leaked, y_test=y[:10])
    config = compose(
        "data=npz", f"data.path={tmp_path}/a.npz", "data.val_fraction=null", "trainer=cpu",
        "trainer.max_epochs=1",
    )  # fmt: skip
    run = fit(config, tmp_path / "run")
    assert run.result["data"]["test_in_training"] == 7
    assert "7 of 10 test samples have the features of a training sample" in caplog.text


@pytest.mark.parametrize(("of_train", "of_test"), [(0, 0), (1, 0), (0, 3), (4, 2)])
def test_known_samples_of_an_own_validation_set_are_told(
    of_train: int, of_test: int, tmp_path: Path
) -> None:
    x = np.random.default_rng(0).normal(size=(60, 4))
    y = np.arange(60) % 2
    own = np.concatenate([x[:of_train], x[50 : 50 + of_test], x[:10] + 1])
    parts: dict[str, Any] = {"x": x[:50], "x_test": x[50:], "x_val": own}
    labels: dict[str, Any] = {
        name.replace("x", "y"): y[: len(part)] for name, part in parts.items()
    }
    np.savez(tmp_path / "a.npz", **parts, **labels)
    data = DataModule(compose("data=npz", f"data.path={tmp_path}/a.npz").data)
    data.setup()
    count, have = of_train + of_test, "has" if of_train + of_test == 1 else "have"
    told = [
        f"{count} of {count + 10} validation samples {have} the features of a training or test "
        "sample, so the best epoch is chosen by known samples; leave out repeated ones"
    ]
    assert data.warnings() == (told if count else [])


def test_published_data_sets_are_not_searched() -> None:
    data = DataModule(compose("data=digits").data)
    data.setup()
    assert data.test_in_training is None


def test_no_other_seed_mends_a_validation_set_of_the_users_own(tmp_path: Path) -> None:
    y = np.array([0, 1, 2] * 20)
    x = np.arange(60.0)[:, None]
    np.savez(tmp_path / "a.npz", x=x, y=y, x_val=x[:2] + 99, y_val=y[:2])
    data = DataModule(compose("data=npz", f"data.path={tmp_path}/a.npz").data)
    data.setup()
    assert data.warnings() == ["the validation set has no sample of 2; add samples"]


@pytest.mark.parametrize("lacking", ["training", "validation", "test"])
def test_classes_without_a_sample_are_named(lacking: str, tmp_path: Path) -> None:
    """Class 2 has one sample, which only one of the three sets can have."""
    y = np.array([0, 1] * 20 + [2])
    x = np.arange(41.0)[:, None]
    missing: set[str] = set()
    for seed in range(12):
        np.savez(tmp_path / "a.npz", x=x, y=y, x_test=x[:4], y_test=y[:4])
        data = DataModule(
            compose(
                "data=npz", f"data.path={tmp_path}/a.npz", "data.val_fraction=0.5",
                f"data.split_seed={seed}",
            ).data
        )  # fmt: skip
        data.setup()
        told = [text for text in data.warnings() if "has no sample of 2;" in text]
        sets = {"training": data.train, "validation": data.validations[0], "test": data.source.test}
        expected = {name for name, split in sets.items() if 2 not in split.labels.tolist()}
        assert {text.split()[1] for text in told} == expected
        for text in told:
            assert ("data.val_fraction" in text) == (text.split()[1] != "test")
        missing |= expected
    assert lacking in missing


@pytest.mark.parametrize(("copies", "told"), [(1, "sample has"), (2, "samples have")])
def test_one_and_equal_counts_in_words(copies: int, told: str, tmp_path: Path) -> None:
    x, y = np.arange(60.0)[:, None], np.repeat(np.arange(6), 10)
    np.savez(
        tmp_path / "a.npz", x=x, y=y, x_val=x + 99, y_val=y, x_test=x[:copies], y_test=y[:copies]
    )
    data = DataModule(compose("data=npz", f"data.path={tmp_path}/a.npz").data)
    data.setup()
    assert f"{copies} of {copies} test {told} the features of a training" in data.warnings()[1]
    assert data.in_a_line() == (
        "npz: 6 classes (0, 1, 2, 3, 4, …); training 60 (10 of each class), validation 60 (10 of "
        f"each class), test {copies} (0 to {copies} of each class)"
    )
