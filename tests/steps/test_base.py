"""The moving average of the weights, by its formula and by a run."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from kindling.config.compose import compose
from kindling.data.sources.digits import digits
from kindling.data.sources.source import split_off_validation
from kindling.models.mlp import Mlp
from kindling.records.loading import open_trained
from kindling.steps.base import Average
from kindling.training.fit import fit
from tests.helpers.commands import SMALL
from tests.helpers.weights import weights


def test_the_average_follows_its_formula() -> None:
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


def test_the_average_is_validated_kept_and_tested(tmp_path: Path) -> None:
    """A batch is the whole training set, so that a run is a loop of three steps."""
    config = compose(
        *SMALL, "trainer.max_epochs=3", "data.batch_size=2000", "optimizer.lr=0.2",
        "trainer.ema_decay=0.9", "scheduler=none", "trainer.precision=64",
    )  # fmt: skip
    run = fit(config, tmp_path / "run")
    torch.manual_seed(0)
    model = Mlp(784, [32], 10).double()
    train, validation = split_off_validation(digits().train, 0.2, 0)
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
