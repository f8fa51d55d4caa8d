"""Graphs of blocks, as far as a CPU can test them. The tests marked gpu do the rest."""

from collections.abc import Sequence
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from src.config.compose import compose
from src.data.loader import Block
from src.models.stack import Stack
from src.training.cuda_graph import BlockGraph
from src.training.optimizers import build_stacked_optimizer
from src.training.schedule import Schedule
from src.training.steps import ClosedFormSteps, StepPlan
from tests.helpers.blocks import BATCHES, SIZE, block, model

RECIPES = {
    "direct": (),
    "momentum": ("optimizer.momentum=0.9",),
    "adamw": ("optimizer=adamw", "optimizer.weight_decay=0.1"),
    "class weights": ("trainer.class_weights=[1,5,0.2]",),
    "accumulated, clipped": ("trainer.accumulate_grad_batches=3", "trainer.gradient_clip_val=0.1"),
}


def stacked_steps(widths: Sequence[int], overrides: Sequence[str]) -> ClosedFormSteps:
    configs = [
        compose("scheduler=onecycle", *overrides, f"optimizer.lr={0.1 / (n + 1)}")
        for n in range(len(widths))
    ]
    trainer = configs[0].trainer
    weights = trainer.class_weights
    assert weights != "balanced"
    step_plan = StepPlan(
        BATCHES,
        trainer.accumulate_grad_batches,
        trainer.gradient_clip_val,
        class_weights=None if weights is None else tuple(weights),
    )
    stack = Stack([model(n, width) for n, width in enumerate(widths)], [0] * len(widths))
    schedules = [
        Schedule(c.scheduler, c.optimizer.lr, 4, step_plan.steps_per_epoch) for c in configs
    ]
    optimizer = build_stacked_optimizer([c.optimizer for c in configs], stack)
    return ClosedFormSteps(stack, optimizer, schedules, step_plan)


def values(steps: ClosedFormSteps) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in steps.stack.parameters]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("widths", [[5, 5], [5, 7, 5]])
def test_a_graph_trains_like_eager_blocks(recipe: str, widths: list[int]) -> None:
    """A stand-in for the capture runs the function it was given. The fixed addresses, the table of
    rates and the restored state are the same as on a GPU."""
    eager, graphed = (stacked_steps(widths, RECIPES[recipe]) for _ in range(2))
    mean = 1 / (SIZE * graphed.step_plan.accumulate)
    graph: BlockGraph | None = None
    for epoch in range(4):
        whole = block(epoch)
        expected = eager(whole, epoch, 0)
        steps = [graphed.step_plan.step_of(epoch, batch) for batch in range(BATCHES)]
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


def test_a_replay_with_other_results_is_refused() -> None:
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


def test_blocks_on_a_cpu_run_without_a_graph() -> None:
    steps = stacked_steps([5], ())
    assert steps.why_no_graph == "the device is not a CUDA GPU"
    whole = block()
    with torch.no_grad():
        logits = steps.stack.models[0](whole.features[0, 0])
    found = steps(whole, 0, 0)
    assert found.losses[0, 0].item() == pytest.approx(
        F.cross_entropy(logits, whole.labels[0, 0]).item(), rel=1e-5
    )


def test_a_block_that_begins_within_a_step_is_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed run may begin between two steps, if its blocks have another size than before."""
    eager, graphed = (stacked_steps([5, 7], RECIPES["accumulated, clipped"]) for _ in range(2))
    graphed.why_no_graph = None
    stand_in = partial(BlockGraph, warm_up=lambda _run: None, capture=lambda run: run)
    monkeypatch.setattr("src.training.steps.BlockGraph", stand_in)
    half = Block(*(tensor[: BATCHES // 2] for tensor in block()))
    for epoch, batch, captured in ((0, 4, False), (1, 0, True)):
        eager(half, epoch, batch)
        graphed(half, epoch, batch)
        assert (graphed.graph is not None) == captured
    for one, other in zip(values(eager), values(graphed), strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-7)


def test_a_short_last_block_is_not_captured_and_ends_no_use_of_graphs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for overrides, batch in (((), 8), (("trainer.accumulate_grad_batches=5",), 10)):
        steps = stacked_steps([5, 7], overrides)
        steps.why_no_graph = None
        stand_in = partial(BlockGraph, warm_up=lambda _run: None, capture=lambda run: run)
        monkeypatch.setattr("src.training.steps.BlockGraph", stand_in)
        steps(Block(*(tensor[: BATCHES - batch] for tensor in block())), 0, batch)
        assert (steps.graph, steps.why_no_graph) == (None, None)
        steps(Block(*(tensor[:5] for tensor in block())), 1, 0)
        assert steps.graph is not None
