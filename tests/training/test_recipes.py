"""What good recipes need, by value: against torch's own, the slow path and formulas."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD

from src.config.compose import compose
from src.data.loader import SeededOrder
from src.data.sources.digits import digits
from src.data.sources.source import held_out
from src.models.mlp import Mlp, bound_rows
from src.runs.loading import open_trained
from src.system.errors import InputError
from src.training.averaging import Average
from src.training.fit import fit
from src.training.optimizers import Schedule
from tests.helpers.commands import SMALL
from tests.helpers.weights import weights

DEEP = "model.hidden_sizes=[24,16]"
PARTS: dict[str, tuple[str, ...]] = {
    "batch norm": ("model.norm=batch",),
    "layer norm": ("model.norm=layer", "model.activation=gelu"),
    "batch norm, momentum": ("model.norm=batch", "optimizer.momentum=0.9", "optimizer.lr=0.05"),
    "max norm": ("model.max_norm=0.5",),
    "max norm, adam": ("model.max_norm=0.5", "optimizer=adam", "optimizer.lr=0.01"),
    "label smoothing": ("trainer.label_smoothing=0.2",),
    "average": ("trainer.ema_decay=0.8", "model.norm=batch"),
    "average, accumulated": ("trainer.ema_decay=0.8", "trainer.accumulate_grad_batches=4"),
    "warm-up": ("scheduler.warmup_epochs=1.5",),
    "two ranks' worth": ("model.norm=layer", "trainer.gradient_clip_val=0.1"),
}


@pytest.mark.parametrize("part", PARTS)
def test_the_closed_form_trains_as_autograd_does(part: str, tmp_path: Path) -> None:
    """To rounding, in float64: weights last and best, statistics, losses of every epoch."""
    common = (*SMALL, DEEP, "optimizer.lr=0.1", "trainer.precision=64", *PARTS[part])
    slow = fit(compose(*common, "trainer.step=autograd"), tmp_path / "slow")
    fast = fit(compose(*common), tmp_path / "fast")
    assert (slow.result["step"], fast.result["step"]) == ("autograd", "closed_form")
    for which in ("last", "best"):
        expected, found = weights(slow, which), weights(fast, which)
        assert expected.keys() == found.keys()
        for name, value in expected.items():
            assert torch.allclose(found[name].double(), value.double(), rtol=1e-7, atol=1e-9), name
    for a, b in zip(slow.history, fast.history, strict=True):
        for key in ("train/loss", "val/loss")[a["epoch"] == 0 :]:
            assert a[key] == pytest.approx(b[key], rel=1e-8)


def test_a_bare_loop_gives_the_same_batch_norm(tmp_path: Path) -> None:
    """One epoch by torch alone: nn.BatchNorm1d, SGD, label smoothing, max norm by torch.renorm."""
    config = compose(
        *SMALL, "trainer.max_epochs=1", "optimizer.lr=0.1", "model.norm=batch",
        "model.max_norm=1.0", "trainer.label_smoothing=0.1", "trainer.precision=64",
    )  # fmt: skip
    run = fit(config, tmp_path / "run")
    torch.manual_seed(0)
    first = nn.Linear(784, 32, bias=False)
    model = nn.Sequential(first, nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10)).double()
    train, _ = held_out(digits().train, 0.2, 0)
    order = SeededOrder(0)(0, len(train))
    optimizer = SGD(model.parameters(), 0.1)
    for batch in torch.split(order, 100):
        x, y = train.features[batch].double().flatten(1), train.labels[batch]
        optimizer.zero_grad()
        F.cross_entropy(model(x), y, label_smoothing=0.1).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        with torch.no_grad():
            first.weight.copy_(torch.renorm(first.weight, 2, 0, 1.0))
    found = weights(run)
    for name, value in model.state_dict().items():
        assert torch.allclose(found[f"model.layers.{name}"].double(), value.double(), atol=1e-6)


def test_a_batch_of_one_sample_has_no_variance(tmp_path: Path) -> None:
    size = len(held_out(digits().train, 0.2, 0)[0]) - 1
    own = (*SMALL, "model.norm=batch", f"data.batch_size={size}")
    with pytest.raises(InputError, match=rf"the last batch of data\.batch_size={size} has one"):
        fit(compose(*own), tmp_path / "refused")
    for more in (("data.drop_last=true",), (f"data.batch_size={size + 1}",), ("model.norm=layer",)):
        assert fit(compose(*own, *more), tmp_path / more[0]).result["status"] == "finished"
    alone = (*SMALL, "model.norm=batch", "data.batch_size=1")
    with pytest.raises(InputError, match=r"one sample has no variance.*type data\.batch_size=2"):
        compose(*alone)


def test_max_norm_is_torchs_renorm_and_touches_nothing_below_it() -> None:
    torch.manual_seed(0)
    weight = torch.randn(3, 5, 7, dtype=torch.double)
    expected = torch.stack([torch.renorm(each, 2, 0, 2.5) for each in weight])
    bounded = weight.clone()
    bound_rows(bounded, 2.5)
    assert torch.allclose(bounded, expected, atol=1e-6)
    below = weight.norm(dim=-1) <= 2.5
    assert 0 < below.sum() < below.numel()
    assert torch.equal(bounded[below], weight[below])
    assert (bounded.norm(dim=-1) <= 2.5 + 1e-12).all()


def test_the_average_is_its_formula() -> None:
    tensor = torch.tensor([1.0], dtype=torch.double)
    average = Average(0.5, [tensor])
    expected = 1.0
    for step, value in enumerate((3.0, -2.0, 4.0, 8.0, 1.0, 0.0, 5.0, 2.0, 9.0, 7.0)):
        tensor.fill_(value)
        average.update(step)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * value
    assert decay == 0.5  # the last steps are at the bound
    with average.in_place():
        assert tensor.item() == pytest.approx(expected, rel=1e-14)
        assert average.values[0][0].item() == 7.0
    assert tensor.item() == 7.0


def test_what_is_validated_kept_and_tested_is_the_average(tmp_path: Path) -> None:
    """Batches of the whole training set, so that a loop of three steps is the run."""
    config = compose(
        *SMALL, "trainer.max_epochs=3", "data.batch_size=2000", "optimizer.lr=0.2",
        "trainer.ema_decay=0.9", "scheduler=none", "trainer.precision=64",
    )  # fmt: skip
    run = fit(config, tmp_path / "run")
    torch.manual_seed(0)
    model = Mlp(784, [32], 10).double()
    train, validation = held_out(digits().train, 0.2, 0)
    averages = [p.detach().clone() for p in model.parameters()]
    losses = []
    for step in range(3):
        model.zero_grad()
        F.cross_entropy(model(train.features.double()), train.labels).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for parameter, average in zip(model.parameters(), averages, strict=True):
                assert parameter.grad is not None
                parameter.sub_(0.2 * parameter.grad)
                average.lerp_(parameter, 1 - min(0.9, (1 + step) / (10 + step)))
            state = dict(zip(model.state_dict(), averages, strict=True))
            outputs = torch.func.functional_call(model, state, (validation.features.double(),))
            losses.append(F.cross_entropy(outputs, validation.labels).item())
    assert [row["val/loss"] for row in run.history[1:]] == pytest.approx(losses, rel=1e-6)
    kept, last = weights(run, "best"), weights(run)
    assert run.result["best"]["epoch"] == 3
    for name, average in zip(model.state_dict(), averages, strict=True):
        assert torch.allclose(kept[f"model.{name}"].double(), average, atol=1e-6)
        assert torch.allclose(last[f"model.{name}"].double(), model.state_dict()[name], atol=1e-6)
    trained = open_trained(run.best_checkpoint)
    found = (
        trained.model(validation.features.double())
        .argmax(1)
        .eq(validation.labels)
        .double()
        .mean()
        .item()
    )
    assert found == pytest.approx(run.result["best"]["val/acc"], abs=1e-9)


@pytest.mark.parametrize("scheduler", ["none", "multistep", "cosine"])
def test_warm_up_grows_by_the_same_amount_to_the_rate_itself(scheduler: str) -> None:
    chosen = compose(f"scheduler={scheduler}", "scheduler.warmup_epochs=1.5").scheduler
    plain = compose(f"scheduler={scheduler}").scheduler
    warm, cold = Schedule(chosen, 0.3, 8, 10), Schedule(plain, 0.3, 8, 10)
    factors = [warm(step) / cold(step) for step in range(80)]
    assert factors == pytest.approx([min(1, (step + 1) / 15) for step in range(80)])


def test_dropout_of_each_layer_and_of_the_input() -> None:
    model = Mlp(784, [8, 6], 10, dropout=[0.5, 0.0], input_dropout=0.2)
    assert [layer.p for layer in model.modules() if isinstance(layer, nn.Dropout)] == [
        0.2,
        0.5,
        0.0,
    ]
    torch.manual_seed(0)
    seen = model.input_dropout(torch.ones(200, 784))
    assert set(seen.unique().tolist()) == {0.0, 1.25}
    assert seen.mean().item() == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(
    ("overrides", "fault"),
    [
        (["model.dropout=[0.1,0.2]"], "model.dropout=[0.1,0.2]: is one number, or one for each"),
        (["model.dropout=[1.5]"], "model.dropout=[1.5]"),
        (["model.norm=bach"], "model.norm=bach: must be one of batch, layer; did you mean batch?"),
        (["model.max_norm=0"], "model.max_norm=0: must be greater than 0"),
        (["trainer.label_smoothing=1"], "trainer.label_smoothing=1: must be less than 1"),
        (["trainer.ema_decay=1"], "trainer.ema_decay=1: must be less than 1"),
        (["trainer.early_stopping_patience=0"], "trainer.early_stopping_patience=0"),
        (["scheduler.warmup_epochs=-1"], "scheduler.warmup_epochs=-1"),
        (["scheduler=onecycle", "+scheduler.warmup_epochs=1"], "onecycle has no such key"),
        (["model.norm=batch", "trainer.devices=2"], "type model.norm=layer"),
        (["trainer.ema_decay=0.9", "trainer.strategy=fsdp"], "type trainer.strategy=ddp"),
        (["model.max_norm=2", "trainer.strategy=fsdp"], "type trainer.strategy=ddp"),
    ],
)  # fmt: skip
def test_wrong_recipes_are_told(overrides: list[str], fault: str) -> None:
    with pytest.raises(InputError) as caught:
        compose(*overrides)
    assert fault in str(caught.value)
