"""What a step does on a GPU, seen without one: torch's fake tensors have a device and a shape, but
no values, so each operation is noted and none is run."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kindling.config import schema
from kindling.config.compose import compose
from kindling.config.measures import CLASSIFICATION, MEASURES, tallied
from kindling.data.loader import Batch
from kindling.models.mlp import Mlp
from kindling.steps import autograd, closed_form
from kindling.steps.base import StepPlan
from kindling.steps.closed_form import ClosedFormLearner
from kindling.steps.lanes import Lanes
from kindling.steps.schedule import Schedule
from kindling.steps.stack import Stack
from kindling.tasks.measures import evaluate
from kindling.tasks.task import Task, build_task
from tests.helpers.tasks import HUBER, MULTILABEL, QUANTILES, SQUARED, classes

BATCHES, SIZE, CLASSES = 6, 100, 10
# Operations that only look at memory in another way.
VIEWS = {
    "alias", "as_strided", "detach", "expand", "permute", "reshape", "select", "slice", "split",
    "squeeze", "t", "transpose", "unbind", "unsqueeze", "view", "_unsafe_view", "_reshape_alias",
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "lift_fresh",
    "split_with_sizes", "diagonal", "unfold", "detach_", "_local_scalar_dense", "device",
}  # fmt: skip


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts kernels, and what makes the GPU wait for the CPU or the other way round."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernels: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        tensors = [leaf for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, Tensor)]
        places = {tensor.device.type for tensor in tensors}
        if "cpu" in places or name == "_local_scalar_dense":
            self.waits[name] += 1
        if name not in VIEWS:
            self.kernels[name] += 1
        return out


@pytest.fixture(autouse=True)
def no_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake tensors have no address that could be aligned."""
    for module in (autograd, closed_form):
        monkeypatch.setattr(module, "aligned", lambda tensor: tensor)


@contextmanager
def on_a_gpu() -> Iterator[None]:
    """Fake tensors; the weights of new models lie on the GPU."""
    with FakeTensorMode(), torch.device("cuda"):
        yield


# The overrides, the arguments of the models, their widths, the batches that they see, and the most
# kernels in a step.
Case = tuple[Sequence[str], dict[str, Any], Sequence[int], Sequence[int], int]
ALONE, STACK, SEEDS = ([32], [0]), ([32, 32], [0, 0]), ([32, 32], [0, 1])
THREE = ([5, 7, 5, 9], [0, 0, 1, 1])
NESTEROV = ("optimizer.momentum=0.9", "optimizer.nesterov=true")
CLIPPED = ("trainer.gradient_clip_val=0.1", "trainer.accumulate_grad_batches=3")
CASES: dict[str, Case] = {
    "alone": ((), {}, *ALONE, 17),
    "a stack": ((), {}, *STACK, 17),
    "own seeds": ((), {}, *SEEDS, 17),
    "three widths, own seeds": ((), {}, *THREE, 49),
    "nesterov": (NESTEROV, {}, *STACK, 35),
    "adam": (("optimizer=adam",), {}, *STACK, 57),
    "adamw": (("optimizer=adamw", "optimizer.weight_decay=0.1"), {}, *THREE, 189),
    "clipped, accumulated": (CLIPPED, {}, *STACK, 24),
    "batch norm": ((), {"norm": "batch"}, *STACK, 20),
    "layer norm": ((), {"norm": "layer"}, *STACK, 38),
    "dropout, gelu": ((), {"dropout": 0.5, "activation": "gelu"}, *STACK, 21),
    "max-norm": ((), {"max_norm": 2.0}, *STACK, 22),
    "noise, tanh": ((), {"noise": 0.3, "activation": "tanh"}, *STACK, 23),
    "bf16": (("trainer.precision=bf16-mixed",), {}, *STACK, 31),
    "smoothed, class weights": (("trainer.label_smoothing=0.1",), {}, *STACK, 22),
}


def prepared(
    case: Case, task: Task | None = None
) -> tuple[ClosedFormLearner, tuple[Tensor, Tensor, Tensor]]:
    """The learner of a case, and the features, labels and rates of a block, on a fake GPU."""
    task = task or classes(CLASSES)
    overrides, model, widths, batch_of, _ = case
    configs = [
        compose("scheduler=onecycle", *overrides, f"optimizer.lr={0.1 / (number + 1)}")
        for number in range(len(widths))
    ]
    trainer = configs[0].trainer
    plan = StepPlan(
        BATCHES, trainer.accumulate_grad_batches, trainer.gradient_clip_val,
        smoothing=trainer.label_smoothing,
        class_weights=(1.0,) * CLASSES if trainer.label_smoothing else None,
    )  # fmt: skip
    models = [Mlp(784, [width], task.outputs, **model) for width in widths]
    schedules = [Schedule(c.scheduler, c.optimizer.lr, 4, plan.steps_per_epoch) for c in configs]
    learner = ClosedFormLearner(configs, models, batch_of, Lanes(), task)
    learner.begin(schedules, plan)
    orders = max(batch_of) + 1
    features = torch.zeros(BATCHES, orders, SIZE, 784)
    labels = torch.zeros(BATCHES, orders, SIZE, dtype=torch.long)
    if task.section.name != CLASSIFICATION:
        labels = torch.zeros(BATCHES, orders, SIZE, task.labels)
    return learner, (features, labels, torch.zeros(BATCHES, len(widths)))


@pytest.mark.parametrize("name", CASES)
def test_no_step_of_a_block_waits(name: str) -> None:
    """A block that is captured must not touch the CPU, and each kernel costs microseconds."""
    with on_a_gpu():
        learner, inputs = prepared(CASES[name])
        learner._train(*inputs, 1 / SIZE, 0, 0)  # makes the optimizer's state
        with Operations() as seen:
            results = learner._train(*inputs, 1 / SIZE, 0, 0)
    assert {result.device.type for result in results} == {"cuda"}
    assert not seen.waits
    *_, most = CASES[name]
    assert most - 2 <= seen.kernels.total() / BATCHES <= most, seen.kernels


@pytest.mark.parametrize("section", [SQUARED, HUBER, QUANTILES, MULTILABEL], ids=lambda s: s.loss)
def test_no_step_of_another_task_waits(section: schema.Task) -> None:
    task = build_task(section, 3)
    with on_a_gpu():
        learner, inputs = prepared(CASES["own seeds"], task)
        learner._train(*inputs, 1 / SIZE, 0, 0)
        with Operations() as seen:
            results = learner._train(*inputs, 1 / SIZE, 0, 0)
            batch = Batch(torch.zeros(300, 784), torch.zeros(300, 3))
            found = evaluate(task, learner.stack.logits, batch, torch.float32, 2)
    assert {part.device.type for part in (*results, *found) if part is not None} == {"cuda"}
    assert not seen.waits
    assert seen.kernels.total() / BATCHES < 40, seen.kernels


def test_an_evaluation_does_not_wait() -> None:
    with on_a_gpu():
        stack = Stack([Mlp(784, [width], CLASSES) for width in (5, 7)], [0, 0])
        batch = Batch(torch.zeros(300, 784), torch.zeros(300, dtype=torch.long))
        known = [name for name in tallied() if CLASSIFICATION in MEASURES[name].tasks]
        for measure in (None, *known):
            with Operations() as seen:
                found = evaluate(
                    classes(CLASSES), stack.logits, batch, torch.float32, 2, measure=measure
                )
            assert not seen.waits, measure
            assert {part.device.type for part in found if part is not None} == {"cuda"}
