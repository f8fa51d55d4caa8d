"""Graphs of blocks, as far as a CPU can test them. The tests marked gpu do the rest."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kindling.config.compose import compose
from kindling.data.loader import Block
from kindling.steps import closed_form, cuda_graph
from kindling.steps.base import StepPlan
from kindling.steps.closed_form import ClosedFormLearner
from kindling.steps.cuda_graph import Replay
from kindling.steps.lanes import Lanes
from kindling.steps.schedule import Schedule
from kindling.steps.vmap import VmapLearner, Vmapped
from tests.helpers.blocks import BATCHES, block, model
from tests.helpers.tasks import classes

RECIPES = {
    "direct": (),
    "momentum": ("optimizer.momentum=0.9",),
    "adamw": ("optimizer=adamw", "optimizer.weight_decay=0.1"),
    "class weights": ("trainer.class_weights=[1,5,0.2]",),
    "accumulated, clipped": ("trainer.accumulate_grad_batches=3", "trainer.gradient_clip_val=0.1"),
    "no divisor of a block": ("trainer.accumulate_grad_batches=5",),
}
Outputs = tuple[Tensor, ...]


def twice(run: Callable[[], Outputs]) -> None:
    """A stand-in for the warm-up on a stream of a GPU."""
    run()
    run()


def itself(run: Callable[[], Outputs]) -> Replay:
    """A stand-in for a capture: the replay runs the function. The fixed addresses, the table of
    rates and the restored state are the same as on a GPU."""
    return run


def graphed(learner: ClosedFormLearner, monkeypatch: pytest.MonkeyPatch, **stand_ins: Any) -> None:
    """Lets a learner use graphs of at least four batches."""
    monkeypatch.setattr(closed_form, "GRAPH_BATCHES", 4)
    for name, stand_in in ({"warm_up": twice, "capture": itself} | stand_ins).items():
        monkeypatch.setattr(cuda_graph, name, stand_in)
    learner.why_no_graph = None


def captured(learner: ClosedFormLearner) -> list[int]:
    """The numbers of batches in the graphs."""
    return sorted(shapes[1][0] for shapes, graph in learner.graphs.items() if graph is not None)


def stacked_learner(
    widths: Sequence[int], overrides: Sequence[str] = (), **settings: Any
) -> ClosedFormLearner:
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
    models = [model(n, width, **settings) for n, width in enumerate(widths)]
    schedules = [
        Schedule(c.scheduler, c.optimizer.lr, 4, step_plan.steps_per_epoch) for c in configs
    ]
    learner = ClosedFormLearner(configs, models, [0] * len(widths), Lanes(), classes(3))
    learner.begin(schedules, step_plan)
    return learner


def state(learner: ClosedFormLearner) -> list[Tensor]:
    """Weights, and what the optimizer remembers of earlier steps."""
    remembered = [
        value
        for each in learner.optimizer.state.values()
        for value in each.values()
        if isinstance(value, Tensor) and value.any()
    ]
    return [value.detach().clone() for value in (*learner.stack.parameters, *remembered)]


def equal(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("widths", [[5, 5], [5, 7, 5]])
def test_graphs_train_like_eager_batches(
    recipe: str, widths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, through several epochs and from the middle of an epoch."""
    eager, ours = (stacked_learner(widths, RECIPES[recipe]) for _ in range(2))
    graphed(ours, monkeypatch)
    for epoch, first in ((0, 0), (1, 7), (2, 0), (3, 0)):
        part = Block(*(tensor[first:] for tensor in block(epoch)[:2]))
        expected, found = eager.train(part, epoch, first), ours.train(part, epoch, first)
        assert equal(found, expected)
    assert equal(state(ours), state(eager))
    # Of 12 batches, 4 + 4 + 4, 6 + 6, or 5 + 5 + 2 that are no whole step.
    size = {"accumulated, clipped": 6, "no divisor of a block": 5}.get(recipe, 4)
    assert captured(ours) == [size]
    assert ours.why_no_graph is None


@pytest.mark.parametrize("model", [{"dropout": 0.5}, {"noise": 0.3}, {"norm": "batch"}])
def test_building_a_graph_draws_no_random_numbers(
    model: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a resumed run, which builds its graph later, would not repeat the run."""
    eager, ours = (stacked_learner([5, 5], **model) for _ in range(2))
    graphed(ours, monkeypatch)
    finished = []
    for learner in (eager, ours):
        torch.manual_seed(1)
        results = [learner.train(block(epoch), epoch, 0) for epoch in range(2)]
        finished.append((torch.get_rng_state(), *state(learner), *results[1]))
    assert equal(*finished)
    assert captured(ours) == [4]


def failing(message: str) -> Callable[[Callable[[], Outputs]], Replay]:
    def fails(run: Callable[[], Outputs]) -> Replay:
        run()
        raise RuntimeError(message)

    return fails


def wrong(run: Callable[[], Outputs]) -> Replay:
    """A replay that does half of the work."""
    calls = []

    def replay() -> Outputs:
        calls.append(run)
        return run() if len(calls) % 2 else ()

    return replay


FAILURES: dict[str, tuple[dict[str, Any], str]] = {
    "warm-up": ({"warm_up": failing("CUDA out of memory")}, "CUDA out of memory"),
    "capture": ({"capture": failing("operation not permitted")}, "operation not permitted"),
    "replay": ({"capture": lambda run: partial(failing("launch failed"), run)}, "launch failed"),
    "check": ({"capture": wrong}, "its replay is off by"),
}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("recipe", ["direct", "adamw", "accumulated, clipped"])
def test_whatever_fails_the_batches_are_trained_once(
    failure: str, recipe: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With the weights, the optimizer and the random numbers of a run without graphs."""
    stand_ins, reason = FAILURES[failure]
    eager, ours = (stacked_learner([5, 7], RECIPES[recipe], dropout=0.5) for _ in range(2))
    graphed(ours, monkeypatch, **stand_ins)
    finished = []
    for learner in (eager, ours):
        torch.manual_seed(1)
        with caplog.at_level("INFO", "kindling"):
            results = [learner.train(block(epoch), epoch, 0) for epoch in range(2)]
        finished.append((torch.get_rng_state(), *state(learner), *results[1]))
    assert equal(*finished)
    assert ours.why_no_graph is not None
    assert ours.why_no_graph.startswith(reason)
    assert caplog.text.count("batches run without CUDA graphs: ") == 1


def test_a_graph_of_any_model_counts_batches_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch norm of torch counts its batches: those of the warm-up and of the check are no
    batches of the training."""
    config, finished = compose("optimizer.lr=0.1"), []
    for use in (False, True):
        torch.manual_seed(0)
        networks = [
            nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)) for _ in range(2)
        ]
        learner = VmapLearner([config] * 2, networks, [0, 0], Lanes(), classes(3))
        schedule = Schedule(config.scheduler, 0.1, 2, BATCHES)
        learner.begin([schedule] * 2, StepPlan(BATCHES))
        if use:
            graphed(learner, monkeypatch)
        for epoch in range(2):
            learner.train(block(epoch), epoch, 0)
        assert captured(learner) == [4] * use
        (segment,) = learner.stack.segments
        assert isinstance(segment, Vmapped)
        assert segment.buffers["1.num_batches_tracked"].tolist() == [2 * BATCHES] * 2
        finished.append([tensor.detach().clone() for tensor in learner.stack.changing])
    assert equal(*finished)


def test_a_trial_that_diverges_ends_no_use_of_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN in both, the replay and its check, are equal."""
    learner = stacked_learner([5, 5])
    with torch.no_grad():
        learner.stack.parameters[0][0] = torch.nan
    graphed(learner, monkeypatch)
    losses = learner.train(block(), 0, 0).losses
    assert losses.isnan().any(0).tolist() == [True, False]
    assert (captured(learner), learner.why_no_graph) == ([4], None)


def test_a_replay_with_other_results_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graph, "warm_up", twice)
    monkeypatch.setattr(cuda_graph, "capture", itself)
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    count = [0.0]

    def run(x: Tensor, *_others: Tensor) -> tuple[Tensor, ...]:
        # A number that lives in Python: a graph would hold the one it was captured with.
        count[0] += 1
        with torch.no_grad():
            weight.sub_(x * count[0])
        return (weight.sum(),)

    with pytest.raises(RuntimeError, match="its replay is off by"):
        cuda_graph.BatchGraph(run, [torch.ones(3)], [weight], optimizer)
    assert torch.equal(weight.detach(), torch.ones(3))


def test_few_shapes_have_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first batches of a shape run without, and no more than MOST_GRAPHS shapes have one."""
    learner = stacked_learner([5, 7])
    graphed(learner, monkeypatch)
    monkeypatch.setattr(closed_form, "MOST_GRAPHS", 2)
    for epoch, size in enumerate((1, 2, 3, 1, 2, 3)):
        learner.train(Block(*(tensor[:size] for tensor in block()[:2])), epoch % 4, 0)
    assert captured(learner) == [1, 2]


def test_blocks_on_a_cpu_run_without_a_graph() -> None:
    learner = stacked_learner([5])
    assert learner.why_no_graph == "the device is not a CUDA GPU"
    whole = block()
    with torch.no_grad():
        logits = learner.stack.models[0](whole.features[0, 0])
    found = learner.train(whole, 0, 0)
    assert found.losses[0, 0].item() == pytest.approx(
        F.cross_entropy(logits, whole.labels[0, 0]).item(), rel=1e-5
    )
