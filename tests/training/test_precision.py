"""Gradient scaling and graphs, as far as a CPU shows them; the tests marked gpu show the rest."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from src.config.compose import compose
from src.data.loader import Block
from src.models.mlp import Mlp
from src.models.stack import Stack
from src.system import machine
from src.training.cuda_graph import BlockGraph
from src.training.optimizers import Schedule, build_optimizer, build_stacked_optimizer
from src.training.steps import AutogradSteps, ClosedFormSteps, Stepping

BATCHES, SIZE = 12, 8


def block(seed: int = 0) -> Block:
    stream = torch.Generator().manual_seed(seed)
    features = torch.randn(BATCHES, 1, SIZE, 6, generator=stream)
    return Block(features, torch.randint(3, (BATCHES, 1, SIZE), generator=stream))


def model(seed: int = 0, width: int = 5) -> Mlp:
    torch.manual_seed(seed)
    return Mlp(6, [width], 3)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("blocks", [1, 3])
def test_scaled_gradients_are_the_gradients(optimizer: str, blocks: int) -> None:
    """Accumulated, clipped and scaled by a power of two, in blocks of any length: the scale
    leaves no trace."""
    config = compose(f"optimizer={optimizer}", "optimizer.lr=0.1", "scheduler=none")
    when = Stepping(BATCHES, accumulate=3, clip=0.05)
    schedules = [Schedule(config.scheduler, 0.1, 1, when.steps_per_epoch)]
    found = []
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=2.0**12)):
        net = model()
        steps = AutogradSteps(
            net, build_optimizer(config.optimizer, net.parameters()), schedules, when, scaler=scaler
        )
        whole, size = block(), BATCHES // blocks
        for first in range(0, BATCHES, size):
            part = Block(*(tensor[first : first + size] for tensor in whole))
            steps(part, 0, first)
        found.append([parameter.detach() for parameter in net.parameters()])
    for plain, scaled in zip(*found, strict=True):
        assert torch.allclose(plain, scaled, rtol=1e-6, atol=1e-7)


def test_a_step_that_overflows_is_left_out() -> None:
    config = compose("optimizer.lr=0.1", "scheduler=none")
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)  # any loss overflows float32
    net, when = model(), Stepping(1)
    before = [parameter.detach().clone() for parameter in net.parameters()]
    schedule = Schedule(config.scheduler, 0.1, 1, 1)
    steps = AutogradSteps(
        net, build_optimizer(config.optimizer, net.parameters()), [schedule], when, scaler=scaler
    )
    whole = block()
    steps(Block(100 * whole.features[:1], whole.labels[:1]), 0, 0)
    for one, other in zip(before, net.parameters(), strict=True):
        assert torch.equal(one, other)
    assert scaler.get_scale() == 2.0**126


def test_a_precision_that_the_cpu_lacks_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = compose("trainer.precision=bf16-mixed").trainer
    monkeypatch.setattr(machine, "cpu_flags", lambda: {"avx2"})
    assert "this CPU has no bf16 instructions" in (
        machine.slow_precision(trainer.precision, "cpu") or ""
    )
    assert machine.slow_precision(trainer.precision, "cuda") is None
    assert machine.slow_precision("32", "cpu") is None
    monkeypatch.setattr(machine, "cpu_flags", lambda: {"avx2", "avx512_bf16"})
    assert machine.slow_precision(trainer.precision, "cpu") is None


# --- blocks as graphs --------------------------------------------------------------------------

RECIPES = {
    "direct": (),
    "momentum": ("optimizer.momentum=0.9",),
    "adamw": ("optimizer=adamw", "optimizer.weight_decay=0.1"),
    "accumulated, clipped": ("trainer.accumulate_grad_batches=3", "trainer.gradient_clip_val=0.1"),
}


def stacked_steps(widths: Sequence[int], overrides: Sequence[str]) -> ClosedFormSteps:
    configs = [
        compose("scheduler=onecycle", *overrides, f"optimizer.lr={0.1 / (n + 1)}")
        for n in range(len(widths))
    ]
    trainer = configs[0].trainer
    when = Stepping(BATCHES, trainer.accumulate_grad_batches, trainer.gradient_clip_val)
    stack = Stack([model(n, width) for n, width in enumerate(widths)], [0] * len(widths))
    schedules = [Schedule(c.scheduler, c.optimizer.lr, 4, when.steps_per_epoch) for c in configs]
    optimizer = build_stacked_optimizer([c.optimizer for c in configs], stack)
    return ClosedFormSteps(stack, optimizer, schedules, when)


def values(steps: ClosedFormSteps) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in steps.stack.parameters]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("widths", [[5, 5], [5, 7, 5]])
def test_a_graph_trains_as_its_blocks_do(recipe: str, widths: list[int]) -> None:
    """With a stand-in for the capture that runs what it was given: the fixed places, the table of
    rates, and what building it puts back are the same as on a GPU."""
    eager, graphed = (stacked_steps(widths, RECIPES[recipe]) for _ in range(2))
    mean = 1 / (SIZE * graphed.when.accumulate)
    graph: BlockGraph | None = None
    for epoch in range(4):
        whole = block(epoch)
        expected = eager(whole, epoch, 0)
        steps = [graphed.when.step_of(epoch, batch) for batch in range(BATCHES)]
        table = torch.tensor([[rate(step) for rate in graphed.schedules] for step in steps])
        if graph is None:
            before = values(graphed)
            graph = BlockGraph(
                lambda x, y, rates: graphed._train(x, y, rates, mean, 0, 0),
                (whole.features, whole.labels, table),
                graphed.stack.parameters,
                graphed.optimizer,
                warm_up=lambda run: (run(), run(), None)[-1],
                capture=lambda run: run,
            )
            for one, other in zip(before, values(graphed), strict=True):
                assert torch.equal(one, other)
        losses, correct = graph(whole.features, whole.labels, table)
        assert torch.allclose(losses, expected.losses, rtol=1e-5)
        assert torch.equal(correct, expected.correct)
    for one, other in zip(values(eager), values(graphed), strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-7)


def test_a_replay_that_does_something_else_is_refused() -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    count = [0.0]

    def run(x: Tensor, *_others: Tensor) -> tuple[Tensor, ...]:
        count[0] += (
            1  # a number that lives in Python: a graph would hold the one it was captured with
        )
        with torch.no_grad():
            weight.sub_(x * count[0])
        return (weight.sum(),)

    with pytest.raises(RuntimeError, match="its replay is off by"):
        BlockGraph(
            run, [torch.ones(3)], [weight], optimizer,
            warm_up=lambda _run: None, capture=lambda run: run,
        )  # fmt: skip
    assert torch.equal(weight.detach(), torch.ones(3))


def test_cross_entropy_of_a_block_without_a_graph_on_a_cpu() -> None:
    steps = stacked_steps([5], ())
    assert steps.eager == "the device is no CUDA GPU"
    whole = block()
    with torch.no_grad():
        logits = steps.stack.models[0](whole.features[0, 0])
    found = steps(whole, 0, 0)
    assert found.losses[0, 0].item() == pytest.approx(
        F.cross_entropy(logits, whole.labels[0, 0]).item(), rel=1e-5
    )
