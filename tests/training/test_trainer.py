"""Lightning's Trainer as a run configures it."""

import json
import logging
import re
from collections.abc import Sequence

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from torch.nn import functional as F

from kindling.config.compose import compose
from kindling.data.module import DataModule
from kindling.data.sources.source import Split, as_float
from kindling.models import build_model
from kindling.records import checkpoint
from kindling.records.folder import Run
from kindling.training.fit import fit
from tests.helpers.commands import SMALL, Train
from tests.helpers.faults import faults

LINEAR = ("model=logistic_regression", "scheduler=none", "optimizer.lr=0.1")


def test_a_profile_lies_in_the_run_folder(train: Train) -> None:
    run = train("trainer.profiler=simple")
    assert (
        "[Strategy]SingleDeviceStrategy.training_step"
        in (run.folder / "fit-profile.txt").read_text()
    )
    run = train("trainer.profiler=pytorch", "trainer.step=autograd")
    assert "aten::" in (run.folder / "fit-profile.txt").read_text()  # the slowest
    (trace, *_) = run.folder.glob("fit-profile*.trace.json")
    assert "aten::addmm" in {
        event["name"] for event in json.loads(trace.read_text())["traceEvents"]
    }


# --- keys of Lightning's Trainer, with Kindling's models ----------------------------------------


def linear(run: Run, of: str = "last") -> nn.Linear:
    """The model of LINEAR with the weights of a checkpoint; before training without one."""
    torch.manual_seed(run.config.seed)
    model = build_model(run.config.model, (1, 28, 28), 10)
    if of:
        state = checkpoint.read(run.checkpoints / f"{of}.ckpt")["state_dict"]
        model.load_state_dict({name.removeprefix("model."): v for name, v in state.items()})
    (layer,) = (part for part in model.modules() if isinstance(part, nn.Linear))
    return layer


def data_of(run: Run) -> DataModule:
    data = DataModule(run.config.data)
    data.setup()
    return data


def loss(layer: nn.Linear, split: Split) -> torch.Tensor:
    return F.cross_entropy(layer(as_float(split.features).flatten(1)), split.labels)


def batches(run: Run, epoch: int) -> Sequence[Split]:
    """All batches of an epoch of the whole training set."""
    data = data_of(run)
    order = data.order(run.config.seed, None)(epoch, len(data.train))
    return [data.train.take(rows) for rows in torch.split(order, run.config.data.batch)]


def gradient(weights: nn.Parameter) -> torch.Tensor:
    assert weights.grad is not None
    return weights.grad


@pytest.mark.parametrize(("limit", "count"), [("3", 3), ("0.5", 6), ("0.01", 1), ("100", 12)])
def test_the_batches_of_an_epoch_are_limited(limit: str, count: int, train: Train) -> None:
    """To the first ones of its order: an epoch has 12."""
    run = train(*LINEAR, f"trainer.limit_train_batches={limit}")
    assert [row["step"] for row in run.history] == [0, count, 2 * count]
    layer = linear(run, "")
    for epoch in range(2):
        for batch in batches(run, epoch)[:count]:
            loss(layer, batch).backward()  # type: ignore[no-untyped-call]
            with torch.no_grad():
                for weights in layer.parameters():
                    weights.sub_(0.1 * gradient(weights))
                    weights.grad = None
    assert torch.allclose(layer.weight, linear(run).weight, atol=1e-6)
    assert run.result["step"] == "native"


def test_the_batches_of_validation_and_test_are_limited(train: Train) -> None:
    run = train(*LINEAR, "trainer.limit_val_batches=2", "trainer.limit_test_batches=0.5")
    used, data = run.result["data"], data_of(run)
    assert (used["train"], used["val"], used["test"]) == (1150, 200, 200)  # of 288 and 359
    validation = data.validations[0].take(slice(0, 200))
    assert run.history[-1]["val/loss"] == pytest.approx(loss(linear(run), validation).item())
    tested = loss(linear(run, "best"), data.test.take(slice(0, 200))).item()
    assert run.result["test/loss"] == pytest.approx(tested)


def test_a_trial_of_a_batch(train: Train) -> None:
    run = train("trainer.fast_dev_run=true", "trainer.max_epochs=9", "trainer.min_epochs=2")
    used = run.result["data"]
    assert (run.result["epochs"], run.result["steps"]) == (1, 1)
    assert (used["val"], used["test"]) == (100, 100)
    assert train("trainer.fast_dev_run=3").result["steps"] == 3
    assert train("trainer.fast_dev_run=false").result["steps"] == 24
    assert "trainer.fast_dev_run=0: must be" in faults("trainer.fast_dev_run=0")


def test_a_model_can_learn_a_few_batches_by_heart(train: Train) -> None:
    run = train("trainer.overfit_batches=1", "trainer.max_epochs=60", "data.batch_size=20")
    used, last = run.result["data"], run.history[-1]
    assert (used["train"], used["val"], used["test"]) == (20, 20, 359)
    assert (last["train/acc"], last["val/acc"], run.result["steps"]) == (1, 1, 60)
    config = compose(*SMALL, "trainer.overfit_batches=0.2")
    data = DataModule(config.data, limits=config.trainer)
    data.setup()
    assert data.order(3, None)(5, 4).tolist() == [0, 1, 2, 3]  # unshuffled, as by Lightning
    whole = data_of(run).train
    assert data.train.features.equal(whole.features[:200])  # 2 of 12 batches
    assert data.validations[0].labels.equal(whole.labels[:200])


def test_what_overfit_batches_excludes() -> None:
    for key in (
        "trainer.limit_train_batches=2", "trainer.limit_val_batches=0.5",
        "trainer.fast_dev_run=true", "data.order=stream", "data.sampler=balanced",
    ):  # fmt: skip
        assert key in faults("trainer.overfit_batches=2", key)


class Stops(Callback):
    def on_train_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        trainer.should_stop = True


@pytest.mark.parametrize(("least", "early", "stopped"), [("null", 2, 1), ("4", 4, 4), ("1", 2, 1)])
def test_nothing_stops_a_run_before_min_epochs(
    least: str, early: int, stopped: int, train: Train
) -> None:
    common = ("trainer.max_epochs=6", f"trainer.min_epochs={least}", "optimizer.lr=1e-9")
    run = train(*common, "trainer.early_stopping_patience=1")
    assert (run.result["epochs"], run.result["stopped"]) == (early, "early_stopping")
    again = fit(compose(*SMALL, *common), run.folder.with_name("again"), callbacks=[Stops()])
    assert (again.result["epochs"], again.result["stopped"]) == (stopped, "callback")


def test_a_run_that_diverges_does_not_wait_for_min_epochs(train: Train) -> None:
    run = train("optimizer.lr=1e10", "trainer.max_epochs=4", "trainer.min_epochs=4")
    assert (run.result["status"], run.result["epochs"]) == ("diverged", 1)
    assert "type trainer.max_epochs=5 or more" in faults(
        "trainer.max_epochs=4", "trainer.min_epochs=5"
    )


@pytest.mark.parametrize("algorithm", ["norm", "value"])
def test_each_number_of_a_gradient_is_clipped(algorithm: str, train: Train) -> None:
    run = train(
        *LINEAR, "trainer.gradient_clip_val=0.001", "trainer.limit_train_batches=1",
        "trainer.max_epochs=1", f"trainer.gradient_clip_algorithm={algorithm}",
    )  # fmt: skip
    layer = linear(run, "")
    loss(layer, batches(run, 0)[0]).backward()  # type: ignore[no-untyped-call]
    if algorithm == "value":
        nn.utils.clip_grad_value_(layer.parameters(), 0.001)
    else:
        nn.utils.clip_grad_norm_(layer.parameters(), 0.001)
    with torch.no_grad():
        for weights in layer.parameters():
            weights.sub_(0.1 * gradient(weights))
    assert torch.allclose(layer.weight, linear(run).weight, atol=1e-8)
    assert run.result["step"] == ("autograd" if algorithm == "value" else "native")
    assert "type trainer.gradient_clip_val=0.5 too" in faults(
        "trainer.gradient_clip_algorithm=value"
    )


def test_an_anomaly_is_named(train: Train) -> None:
    """Weights of infinity: without the key, the run diverges and the operation is unknown."""
    wild = ("optimizer.lr=1e12", "optimizer.momentum=0.99", "model.hidden_sizes=[8,8]")
    assert train(*wild).result["status"] == "diverged"
    with (
        pytest.raises(RuntimeError, match=r"Function '\w+' returned nan values in its"),
        pytest.warns(UserWarning, match="Error detected in"),
    ):
        train(*wild, "trainer.detect_anomaly=true")
    run = train("trainer.detect_anomaly=true")
    assert run.result["step"] == "autograd"
    assert "trainer.detect_anomaly=true" in str(run.result["step_reason"])


def test_a_line_after_every_nth_step(train: Train, caplog: pytest.LogCaptureFixture) -> None:
    """Counted over the whole run: 12 steps an epoch."""
    with caplog.at_level(logging.INFO, "kindling"):
        train("trainer.log_every_n_steps=5", "trainer.steps_per_call=4")
    lines = [r.getMessage() for r in caplog.records if " | step " in r.getMessage()]
    found = [re.match(r"epoch (\d+)/002 \| step (\d+)/012", line) for line in lines]
    assert [each and (int(each[1]), int(each[2])) for each in found] == [
        (1, 5), (1, 10), (2, 3), (2, 8)
    ]  # fmt: skip
