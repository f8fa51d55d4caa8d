"""Training in memory against `fit`, which writes files and goes through Lightning."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kindling.config.compose import compose
from kindling.config.faults import find_faults
from kindling.config.schema import Config
from kindling.native import engine
from kindling.records.loading import open_trained
from kindling.steps import native
from kindling.system.errors import InputError
from kindling.training import in_memory
from kindling.training.fit import fit
from kindling.training.in_memory import PLAIN, takes, train_in_memory
from kindling.training.own import Given

pytestmark = pytest.mark.skipif(bool(engine.why_absent()), reason=engine.why_absent() or "engine")

WHERE = Path("here")
TAKEN = {  # keys that may have any value
    "data.root", "data.batch_size", "data.val_fraction", "data.split_seed", "data.drop_last",
    "data.sampler", "data.num_workers", "data.pin_memory", "data.persistent_workers", "data.name",
    "data.kind", "data.test_fraction", "data.digest", "trainer.accelerator",
    "trainer.max_restarts", "trainer.max_epochs", "trainer.min_epochs",
    "trainer.accumulate_grad_batches", "trainer.gradient_clip_val",
    "trainer.gradient_clip_algorithm", "trainer.label_smoothing", "trainer.class_weights",
    "trainer.early_stopping_patience", "trainer.step", "trainer.steps_per_call",
    "trainer.cuda_graph", "trainer.log_every_step", "trainer.log_every_n_steps",
    "trainer.progress_bar", "checkpoint.every_n_epochs", "checkpoint.every_n_steps",
    "checkpoint.every_seconds", "checkpoint.monitor", "checkpoint.mode", "checkpoint.keep",
    "logger.project", "logger.mlflow_file", "seed", "name", "tags",
}  # fmt: skip
WHOLE = {"task", "model", "optimizer", "scheduler", "augmentation"}  # sections


def test_every_key_is_plain_or_may_have_any_value() -> None:
    """A new key is decided upon, and not ignored."""
    found = set()
    for section, values in compose("data=arrays").to_primitives().items():
        if section not in WHOLE:
            nested = isinstance(values, dict)
            found |= {f"{section}.{key}" for key in values} if nested else {section}
    assert found == TAKEN | set(PLAIN)
    assert not TAKEN & set(PLAIN)


def with_value(config: Config, key: str, value: Any) -> Config:
    section, _, name = key.partition(".")
    if not name:
        return config.model_copy(update={section: value})
    changed = getattr(config, section).model_copy(update={name: value})
    return config.model_copy(update={section: changed})


@pytest.mark.parametrize("key", PLAIN)
def test_other_values_are_left_to_fit(key: str) -> None:
    config = compose("data=arrays")
    assert takes(config)
    assert not takes(with_value(config, key, object()))


@pytest.mark.parametrize(
    "changed",
    [
        "data=digits", "augmentation.shift=1", "checkpoint.monitor=val/f1",
        "data.batch_size=auto",
    ],
)  # fmt: skip
def test_what_else_is_left_to_fit(changed: str) -> None:
    assert not takes(compose("data=arrays", changed))


def samples(rng: np.random.Generator, task: str, count: int) -> tuple[NDArray[Any], ...]:
    x = rng.normal(size=(count, 5)).astype(np.float32)
    if task == "classification":
        y = rng.integers(3, size=count)
        y[:3] = range(3)
        return x, y
    if task == "multilabel":
        return x, (rng.random((count, 2)) < 0.5).astype(np.float32)
    return x, rng.normal(size=(count, 2)) * 7 + 3


Draw = Any


@st.composite
def runs(draw: Draw) -> tuple[Config, Given]:
    task = draw(st.sampled_from(["classification"] * 3 + ["regression", "multilabel"]))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    own = samples(rng, task, draw(st.integers(20, 90)))
    test = tuple(part[:1] for part in own)
    if draw(st.booleans()):
        own = (*own, rng.integers(1, 4, size=len(own[0])).astype(np.float32))
    optimizer = draw(st.sampled_from(["sgd", "adam", "adamw"]))
    scheduler = draw(st.sampled_from(["none", "cosine", "onecycle", "plateau", "multistep"]))
    depth = draw(st.integers(0, 2))
    typed = [f"optimizer={optimizer}", f"scheduler={scheduler}", f"task={task}"]
    model = "mlp" if depth else "logistic_regression"
    values = compose("data=arrays", f"model={model}", *typed).to_primitives()
    values["seed"] = draw(st.integers(0, 9))
    values["data"] |= {
        "batch_size": draw(st.integers(2, 40)),
        "val_fraction": draw(st.sampled_from([None, 0.25])),
        "split_seed": draw(st.integers(0, 3)),
        "drop_last": draw(st.booleans()),
        "sampler": draw(st.sampled_from([None, None, "balanced"])),
    }
    values["trainer"] |= {
        "max_epochs": draw(st.integers(1, 5)),
        "min_epochs": draw(st.sampled_from([None, 2])),
        "early_stopping_patience": draw(st.sampled_from([None, 1, 2])),
        "accumulate_grad_batches": draw(st.sampled_from([1, 1, 3])),
        "gradient_clip_val": draw(st.sampled_from([None, 0.1])),
        "steps_per_call": draw(st.sampled_from(["auto", 1])),
        "progress_bar": False,
    }
    monitor = draw(st.sampled_from(["val/loss", "train/loss"]))
    if task == "classification":
        monitor = draw(st.sampled_from([monitor, "val/acc"]))
        values["trainer"]["label_smoothing"] = draw(st.sampled_from([0.0, 0.1]))
        values["trainer"]["class_weights"] = draw(st.sampled_from([None, "balanced", [1, 2, 3]]))
    values["checkpoint"] |= {"monitor": monitor, "mode": "max" if "acc" in monitor else "min"}
    values["scheduler"]["warmup_epochs"] = draw(st.sampled_from([0.0, 0.5]))
    values["optimizer"] |= {
        "lr": draw(st.sampled_from([0.01, 0.3, 1e6])),
        "weight_decay": draw(st.sampled_from([0.0, 0.01])),
    }
    if optimizer == "sgd":
        values["optimizer"] |= {"momentum": draw(st.sampled_from([0.0, 0.9]))}
    if depth:
        norm = draw(st.sampled_from([None, "batch", "layer"]))
        sizes = st.lists(st.integers(2, 9), min_size=depth, max_size=depth)
        values["model"] |= {
            "hidden_sizes": draw(sizes),
            "activation": draw(st.sampled_from(["relu", "tanh", "gelu"])),
            "dropout": draw(st.sampled_from([0.0, 0.3])),
            "input_dropout": draw(st.sampled_from([0.0, 0.2])),
            "noise": draw(st.sampled_from([0.0, 0.1])),
            "norm": norm,
            "max_norm": draw(st.sampled_from([None, 0.5])),
        }
    config, _ = find_faults(values)
    assume(config is not None)
    assert config is not None
    return config, Given.of(None, own, None, test)


def without_seconds(rows: list[Any]) -> list[Any]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def assert_same(config: Config, folder: Path) -> str:
    """Trains both ways. How it ended."""
    told = None
    try:
        run = fit(config, folder)
    except InputError as error:
        told = str(error)
    if told is not None:
        with pytest.raises(InputError) as refused:
            train_in_memory(config, WHERE)
        assert str(refused.value) == told
        return "refused"
    found = train_in_memory(config, WHERE)
    assert found is not None
    assert str(without_seconds(found.history)) == str(without_seconds(run.history))  # NaN too
    seconds = [float(row["seconds"] or 0) for row in found.history]
    assert seconds == sorted(seconds)
    if found.trained is None:
        assert not run.best_checkpoint.exists()
        return "diverged"
    own, expected = found.trained, open_trained(run.folder)
    assert own.checkpoint == WHERE
    weights, others = own.model.state_dict(), expected.model.state_dict()
    assert [*weights] == [*others]
    for name, weight in weights.items():
        assert weight.equal(others[name]), name
        assert weight.stride() == others[name].stride()
    assert not own.model.training
    with pytest.raises(InputError):
        _ = own.config.data.held  # type: ignore[union-attr]  # a pickle has no arrays
    for part in ("config", "data", "shape", "labels", "digest", "columns", "arrays", "targets"):
        assert getattr(own, part) == getattr(expected, part), part
    return "trained"


@pytest.mark.slow
@given(made=runs())
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_runs_have_the_bits_of_fit(
    made: tuple[Config, Given], tmp_path_factory: pytest.TempPathFactory
) -> None:
    config, own = made
    assert_same(own.tried(config), tmp_path_factory.mktemp("run") / "run")


def held(*overrides: str, task: str = "classification", count: int = 60) -> Config:
    own = samples(np.random.default_rng(0), task, count)
    given = Given.of(None, own, None, tuple(part[:1] for part in own))
    settings = (f"task={task}", "trainer.max_epochs=3", "trainer.progress_bar=false")
    return given.tried(compose("data=arrays", *settings, *overrides))


@pytest.mark.parametrize(
    ("overrides", "end"),
    [
        (["optimizer.lr=0.1"], "trained"),
        (["optimizer.lr=1e9"], "diverged"),
        (["data.drop_last=true", "data.batch_size=500"], "refused"),
        (["trainer.class_weights=[1,2]"], "refused"),
        (["model.norm=batch", "data.batch_size=47"], "refused"),  # of 48
        (["data.batch_size=1000000000"], "trained"),
        (["data.batch_size=1"], "trained"),
        (["data.val_fraction=0.99"], "trained"),
    ],
)
def test_how_runs_end(overrides: list[str], end: str, tmp_path: Path) -> None:
    assert assert_same(held("data.batch_size=20", *overrides), tmp_path / "run") == end


@pytest.mark.parametrize("few", [0, in_memory.FEW])
@pytest.mark.parametrize("fraction", ["0.25", "null"])
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_many_samples(
    task: str, fraction: str, few: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than a slice of a validation, by one thread and by all, in short calls."""
    monkeypatch.setattr(in_memory, "FEW", few)
    monkeypatch.setattr(native, "OPERATIONS", 10**6)
    more = (f"data.val_fraction={fraction}", "model.hidden_sizes=[32,16]", "model.dropout=0.2")
    assert assert_same(held(*more, task=task, count=20_000), tmp_path / "run") == "trained"


@pytest.mark.parametrize(
    "override",
    [
        "trainer.step=autograd", "trainer.step=closed_form", "model.gradient_checkpointing=true",
        "trainer.precision=64",
    ],
)  # fmt: skip
def test_what_the_engine_does_not_train_is_left_to_fit(override: str) -> None:
    assert train_in_memory(held(), WHERE) is not None
    assert train_in_memory(held(override), WHERE) is None


@pytest.mark.slow
def test_lightning_is_not_imported() -> None:
    """It would take as long as a hundred such runs."""
    script = """
import sys
import numpy as np
from kindling import KindlingClassifier
x = np.random.default_rng(0).normal(size=(60, 4))
model = KindlingClassifier(max_epochs=2).fit(x, x[:, 0] > 0)
assert model.predict_proba(x).shape == (60, 2)
print([name for name in ("lightning", "torchmetrics", "torchvision") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_a_model_that_is_certainly_too_large_is_refused(tmp_path: Path) -> None:
    """Where the system would let it begin, and then kill the process."""
    config = held("model.hidden_sizes=[1000000,1000000]", "data.batch_size=20")
    told = r"out of memory \(the run needs [\d,]+ MiB, and [\d,]+ MiB are free\); type one of\n"
    with pytest.raises(InputError, match=told):
        train_in_memory(config, WHERE)
    with pytest.raises(InputError, match=told):
        fit(config, tmp_path / "run")


def test_few_samples_need_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand samples of an evaluation would need 1,500 MiB, half of which is not free."""
    monkeypatch.setattr("kindling.training.memory.free_memory", lambda: 400 * 2**20)
    few, many = (held("model.hidden_sizes=[200000]", count=count) for count in (60, 2000))
    found = train_in_memory(few, WHERE)
    assert found is not None
    assert len(found.history) == 4
    with pytest.raises(InputError, match="and 400 MiB are free"):
        train_in_memory(many, WHERE)


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")]
)
def test_exhausted_memory_says_what_to_type(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(native.NativeModel, "new_vector", fail)
    config = held("data.batch_size=20")
    assert assert_same(config, tmp_path / "run") == "refused"
    with pytest.raises(InputError, match=r"type one of\n  data.batch_size=10 "):
        train_in_memory(config, WHERE)
