"""The ladder network against the formulas of its paper, and the losses that models add."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kindling import sweep
from kindling.config.compose import compose
from kindling.data.sources.digits import digits
from kindling.data.sources.source import split_off_validation
from kindling.models.ladder import Ladder
from kindling.records.folder import Run
from kindling.system.errors import InputError
from kindling.training.fit import fit
from tests.helpers.commands import ROOT, SMALL
from tests.helpers.own import RECIPE, X, Y, recipe

WIDTHS, DENOISING = [6, 5, 4, 3], [7.0, 2.0, 0.5]
LADDER = (
    *SMALL, "model=ladder", "model.hidden_sizes=[12,8]", "data=digits", "optimizer=adam",
    "optimizer.lr=0.01", "scheduler=none",
)  # fmt: skip


def batch_normalised(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    mean, variance = values.mean(0), values.var(0, correction=0)
    return (values - mean) / (variance + 1e-5).sqrt(), mean, variance


def paper(
    model: Ladder, x: Tensor, noise: list[Tensor], costs: list[float]
) -> tuple[Tensor, Tensor]:
    """Algorithm 1 of arXiv:1507.02672: logits with noise, and the weighted cost of denoising."""
    state, widths = dict(model.named_parameters()), [each.shape[1] for each in noise]
    layers = len(widths) - 1
    below, noisy = x + noise[0], [x + noise[0]]
    clean_below, clean, moments = x, [x], [(torch.zeros(()), torch.ones(()))]
    for place in range(layers):
        weight, beta = state[f"encoder.{place}.weight"], state[f"shifts.{place}"]
        last = place == layers - 1
        gamma = state["scale"] if last else torch.ones(widths[place + 1])
        noisy.append(batch_normalised(below @ weight.T)[0] + noise[place + 1])
        below = gamma * (noisy[-1] + beta)
        values, mean, variance = batch_normalised(clean_below @ weight.T)
        clean.append(values.detach())
        moments.append((mean.detach(), variance.detach() + 1e-5))
        clean_below = gamma * (values + beta)
        if not last:
            below, clean_below = below.clamp(min=0), clean_below.clamp(min=0)
    logits, cost, estimate = below, torch.zeros(()), torch.empty(0)
    for place in range(layers, -1, -1):
        above = torch.softmax(logits, 1)
        if place < layers:
            above = estimate @ state[f"decoder.{place}.weight"].T
        u, a = batch_normalised(above)[0], state[f"combinators.{place}.factors"]
        mu, v = (b[0] * torch.sigmoid(b[1] * u + b[2]) + b[3] * u + b[4] for b in (a[:5], a[5:]))
        estimate = (noisy[place] - mu) * v + mu
        mean, variance = moments[place]
        error = (estimate - mean) / variance.sqrt() - clean[place]
        cost = cost + costs[place] * (error**2).sum() / error.numel()
    return logits, cost


@pytest.mark.parametrize(
    ("widths", "denoising", "costs"),
    [
        (WIDTHS, DENOISING, [7.0, 2.0, 0.5, 0.5]),
        ([4, 3], [3.0], [3.0, 3.0]),
        ([3, 9, 2], [0.0, 1.0, 2.0, 5.0], [0.0, 1.0, 2.0]),
        ([1, 7, 7, 1, 6, 2], [2.0, 0.0], [2.0, 0.0, 0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_training_is_the_papers_algorithm(
    widths: list[int], denoising: list[float], costs: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = Ladder(widths, 0.3, denoising).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.7)
    x = torch.randn(9, widths[0], dtype=torch.float64)
    noise = [0.3 * torch.randn(9, width, dtype=torch.float64) for width in widths]
    drawn = iter(noise)
    monkeypatch.setattr("kindling.models.ladder.noise_like", lambda *_: next(drawn))
    found: list[list[Tensor | None]] = []
    for logits, cost in ((model(x), model.auxiliary_loss), paper(model, x, noise, costs)):
        assert cost is not None
        model.zero_grad()
        (cost + logits.cos().sum()).backward()  # type: ignore[no-untyped-call]
        found.append([logits.detach(), cost.detach(), *(p.grad for p in model.parameters())])
    for ours, theirs in zip(*found, strict=True):
        assert ours is not None
        torch.testing.assert_close(ours, theirs, check_dtype=False)


def test_evaluation_has_the_running_statistics_without_noise() -> None:
    model, x = Ladder(WIDTHS, 0.3, DENOISING), torch.randn(50, 6)
    hidden, before = x, []
    for place, linear in enumerate(model.encoder):
        before.append(linear(hidden))
        hidden = batch_normalised(before[-1])[0]
        hidden = hidden.relu() if place < 2 else hidden
    model(x)
    for norm, values in zip(model.norms, before, strict=True):
        assert norm.num_batches_tracked == 1
        torch.testing.assert_close(norm.running_mean, 0.1 * values.mean(0))
    model.auxiliary_loss = None
    model.eval()
    hidden = x
    for place, (linear, norm) in enumerate(zip(model.encoder, model.norms, strict=True)):
        mean, variance, _ = norm.buffers()
        hidden = (linear(hidden) - mean) / (variance + 1e-5).sqrt()
        hidden = hidden.relu() if place < 2 else hidden
    torch.testing.assert_close(model(x), hidden)
    assert torch.equal(model(x), model(x))
    assert model.auxiliary_loss is None


def test_a_resumed_run_has_the_same_bits(tmp_path: Path) -> None:
    whole = fit(compose(*LADDER, "trainer.max_epochs=4"), tmp_path / "whole")
    part = fit(compose(*LADDER, "trainer.max_epochs=2"), tmp_path / "part")
    more = fit(compose(*LADDER, "trainer.max_epochs=4"), part.folder, resume=True)
    assert whole.result["step"] == "autograd"
    first, second = (torch.load(run.best_checkpoint)["state_dict"] for run in (whole, more))
    assert all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.mark.parametrize(
    "setting",
    [
        "trainer.precision=64",
        "trainer.precision=bf16-mixed",
        "trainer.ema_decay=0.9",
        "model.noise=0",
        "model.denoising=[0]",
    ],
)
def test_it_learns_with_any_setting(setting: str, tmp_path: Path) -> None:
    run = fit(compose(*LADDER, setting, "trainer.max_epochs=8"), tmp_path / "run")
    assert (run.result["best"]["val/acc"] or 0) > 0.8


@pytest.mark.parametrize(
    ("overrides", "fault"),
    [
        (["task=regression", "data=diabetes"], "model=ladder: learns classification, not task="),
        (["trainer.devices=2"], "part of a batch; type trainer.devices=1\n"),
        (["data.batch_size=1"], "model=ladder: one sample has no variance"),
        (["model.denoising=[]"], "model.denoising=[]"),
        (["model.denoising=[-1]"], "must be greater than or equal to 0"),
        (["model.hidden_sizes=[2000000,2000000]"], "weights, at most"),
        (["trainer.step=native"], "trainer.step=native supports only"),
    ],
)
def test_what_it_cannot_is_refused(overrides: list[str], fault: str) -> None:
    with pytest.raises(InputError) as caught:
        compose("model=ladder", *overrides)
    assert fault in f"{caught.value}\n"
    assert str(caught.value).count(fault.strip()) == 1


def test_a_last_batch_of_one_sample_is_refused(tmp_path: Path) -> None:
    size = len(split_off_validation(digits().train, 0.2, 0)[0]) - 1
    with pytest.raises(InputError, match=r"^model=ladder: of .* the last batch .* has only one"):
        fit(compose(*LADDER, f"data.batch_size={size}"), tmp_path / "run")


class Decayed(nn.Module):
    """Adds half of the squares of its weights to the loss."""

    def __init__(self, strength: float) -> None:
        super().__init__()
        self.linear, self.strength = nn.Linear(4, 2), strength

    def forward(self, features: Tensor) -> Tensor:
        if self.training and self.strength:
            squares = [(each**2).sum() for each in self.parameters()]
            self.auxiliary_loss: Tensor | None = self.strength * torch.stack(squares).sum() / 2
        logits: Tensor = self.linear(features)
        return logits


@pytest.mark.parametrize("accumulate", [1, 2])
def test_an_auxiliary_loss_is_added(accumulate: int, tmp_path: Path) -> None:
    """Half of the squares of the weights act as a weight decay. The history has the task's loss."""
    torch.manual_seed(0)
    start = Decayed(0).state_dict()

    def run(strength: float, *overrides: str) -> Run:
        model = Decayed(strength)
        model.load_state_dict(start)
        common = ("optimizer=sgd", f"trainer.accumulate_grad_batches={accumulate}")
        config = recipe(*common, *overrides, epochs=3)
        return fit(config, tmp_path / f"{strength}{overrides}", model=model, data=(X, Y))

    added, decayed = run(0.5), run(0.0, "optimizer.weight_decay=0.5")
    without = run(0.0)
    losses = [[row["train/loss"] for row in each.history[1:]] for each in (added, decayed, without)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0] != pytest.approx(losses[2], rel=1e-2)


def make_decayed(shape: Any, outputs: int) -> nn.Module:
    return Decayed(0.5)


def test_models_with_an_auxiliary_loss_train_one_after_the_other(tmp_path: Path) -> None:
    rows = sweep(
        *RECIPE, "seed=0,1", "trainer.max_epochs=1", folder=tmp_path / "sweep",
        model=make_decayed, data=(X, Y),
    )  # fmt: skip
    results = [Run(row["folder"]).result for row in rows]
    assert [result["step"] for result in results] == ["autograd"] * 2
    with pytest.raises(InputError, match="vmap: model=own adds a loss of its own"):
        fit(recipe("trainer.step=vmap"), tmp_path / "refused", model=make_decayed, data=(X, Y))


def test_the_example_of_the_documents(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "extending.md").read_text()
    code = page.partition("#### A loss of the model")[2].split("```")[1].removeprefix("python")
    names: dict[str, Any] = {"nn": nn}
    exec(code, names)
    model = names["Sparse"](4, 5, 2)
    run = fit(recipe(), tmp_path / "run", model=model, data=(X, Y))
    assert run.result["status"] == "finished"
    hidden = model.first(torch.ones(3, 4)).relu()
    model(torch.ones(3, 4))
    torch.testing.assert_close(model.auxiliary_loss, 0.01 * hidden.mean())


class Sometimes(Decayed):
    """Adds to the loss of every second batch."""

    added = False

    def forward(self, features: Tensor) -> Tensor:
        self.strength = float(self.training and not self.added)
        self.added = bool(self.strength)
        return super().forward(features)


def test_an_auxiliary_loss_is_of_one_batch(tmp_path: Path) -> None:
    run = fit(recipe(), tmp_path / "run", model=Sometimes(0), data=(X, Y))
    assert run.result["status"] == "finished"


class OfSamples(Decayed):
    def forward(self, features: Tensor) -> Tensor:
        logits = super().forward(features)
        self.auxiliary_loss = logits.square().mean(1) if self.training else None
        return logits


def test_an_auxiliary_loss_of_many_numbers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"OfSamples.auxiliary_loss: has the shape \(16,\), must"):
        fit(recipe("data.batch_size=16"), tmp_path / "run", model=OfSamples(0), data=(X, Y))


class WithMethod(Decayed):
    def auxiliary_loss(self) -> float:  # type: ignore[override]
        return 1.0


def test_a_method_of_that_name_is_the_models_own(tmp_path: Path) -> None:
    run = fit(recipe(), tmp_path / "run", model=WithMethod(0), data=(X, Y))
    assert run.result["status"] == "finished"
