"""The engine: a trial has the same bits, whoever is beside it."""

import copy
import itertools
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from kindling.config.compose import compose
from kindling.config.schema import Config
from kindling.models.closed_form import ACTIVATIONS, Activation
from kindling.models.mlp import Mlp
from kindling.records.folder import Run
from kindling.steps.base import StepPlan
from kindling.steps.kernel import why_no_kernel
from kindling.steps.lanes import Lanes
from kindling.steps.native import NativeLearner, NativeModel, why_not_native
from kindling.steps.schedule import Schedule
from kindling.tasks.task import build_task
from kindling.training.fit import fit, fit_stack
from tests.helpers.blocks import BATCHES, block
from tests.helpers.commands import SMALL
from tests.helpers.stacks import INPUTS, models_of
from tests.helpers.steps import needs_engine
from tests.helpers.tasks import SQUARED, classes
from tests.helpers.weights import same

SHAPES: list[tuple[list[int], dict[str, Any]]] = [
    ([], {}),
    ([7], {}),
    ([16, 3], {"norm": "batch"}),
    ([40], {"norm": "layer"}),
]


@pytest.mark.parametrize(("hidden", "options"), SHAPES)
def test_a_model_keeps_its_values_and_shares_the_vector(
    hidden: list[int], options: dict[str, Any]
) -> None:
    (model,) = models_of([hidden], **options)
    original = copy.deepcopy(model)
    native = NativeModel(model, classes(10))
    before, after = original.state_dict(), model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    x = torch.randn(5, INPUTS, dtype=torch.double)
    assert torch.allclose(model.eval()(x), original.eval()(x), rtol=1e-12)

    native.weights.add_(1.0)
    counts = "num_batches_tracked"
    for name, value in model.state_dict().items():
        assert name.endswith(counts) or torch.equal(value, before[name] + 1)
    model.load_state_dict(before)
    again = NativeModel(original, classes(10))
    places = again.weights != 0  # padding was changed above
    assert torch.equal(native.weights[places], again.weights[places])


@pytest.mark.parametrize(("hidden", "options"), SHAPES)
def test_views_have_the_shapes_of_the_parameters(
    hidden: list[int], options: dict[str, Any]
) -> None:
    (model,) = models_of([hidden], **options)
    native = NativeModel(model, classes(10))
    vector = native.new_vector()
    views = native.views(vector)
    assert [view.shape for view in views] == [p.shape for p in model.parameters()]
    for number, view in enumerate(views, 1):
        view.fill_(number)
    used = sum(p.numel() for p in model.parameters())
    assert int((vector != 0).sum()) == used


def test_foreign_memory_is_never_touched() -> None:
    native = NativeModel(models_of([[7]])[0].float(), classes(10))
    x = torch.zeros(4, INPUTS)
    with pytest.raises(ValueError, match=r"features \(4, 11\), must be \(N, 12\)"):
        native.logits(x[:, 1:])
    for label in (-1, 5):
        with pytest.raises(
            ValueError, match=rf"from {min(0, label)} to {max(0, label)}, must be from 0 to 4"
        ):
            native.samples(x, torch.tensor([0, 0, label, 0]))
    y, w = torch.tensor([0, 4, 2, 0]), torch.ones(4)
    for features in (x.double(), x.half(), x.long(), x > 0):
        with pytest.raises(ValueError, match=rf"features of {features.dtype}, must be"):
            native.logits(features)
    for labels in (y.int(), y.byte(), y.float(), y[1:], torch.eye(5, dtype=torch.int64)[y]):
        with pytest.raises(ValueError, match=r"labels .* must be 4 values of torch.int64"):
            native.samples(x, labels)
    for weights in (w.double(), w.long(), w[1:]):
        with pytest.raises(ValueError, match=r"weights .* must be 4 values of torch.float32"):
            native.samples(x, y, weights)
    assert native.samples(x, y, w).size == 4
    assert NativeModel(models_of([[7]])[0].double(), classes(10)).samples(x.double(), y).size == 4
    numbers = NativeModel(models_of([[7]])[0].float(), build_task(SQUARED, 5))
    for labels in (torch.zeros(4, 5).double(), torch.zeros(4, 4), torch.zeros(3, 5), y):
        with pytest.raises(ValueError, match=r"labels .* must be 20 values of torch.float32"):
            numbers.samples(x, labels)


pytestmark = needs_engine


def draw(number: int) -> list[Config]:
    """Four trials that could form a group, of different widths, rates and seeds."""
    chance = random.Random(number)
    common = [
        f"optimizer={chance.choice(['sgd', 'adam', 'adamw'])}",
        f"model.activation={chance.choice(['relu', 'tanh', 'gelu'])}",
        f"model.norm={chance.choice(['null', 'batch', 'layer'])}",
        f"model.dropout={chance.choice([0.0, 0.3])}",
        f"model.input_dropout={chance.choice([0.0, 0.1])}",
        f"model.noise={chance.choice([0.0, 0.3])}",
        f"model.max_norm={chance.choice(['null', 0.8])}",
        f"trainer.precision={chance.choice([32, 64])}",
        f"trainer.label_smoothing={chance.choice([0.0, 0.1])}",
        f"trainer.accumulate_grad_batches={chance.choice([1, 3])}",
        f"trainer.gradient_clip_val={chance.choice(['null', 0.5])}",
        f"trainer.ema_decay={chance.choice(['null', 0.9])}",
        f"scheduler={chance.choice(['none', 'cosine', 'onecycle'])}",
        f"data.batch_size={chance.choice([30, 100])}",
    ]
    depth = chance.randint(1, 2)
    return [
        compose(
            *SMALL, *common, f"seed={chance.randint(0, 2)}",
            f"optimizer.lr={chance.choice([0.01, 0.003])}",
            f"model.hidden_sizes={[chance.choice([5, 16, 33]) for _ in range(depth)]}",
        )
        for _ in range(4)
    ]  # fmt: skip


def train(
    configs: Sequence[Config], folder: Path, threads: int, monkeypatch: pytest.MonkeyPatch
) -> list[Run]:
    monkeypatch.setattr("kindling.training.building.available", lambda: threads)
    folders = [folder / str(number) for number in range(len(configs))]
    return fit_stack(configs, folders, folder / "stack")


def with_blocks(config: Config, size: int) -> Config:
    trainer = config.trainer.model_copy(update={"steps_per_call": size})
    return config.model_copy(update={"trainer": trainer})


@pytest.mark.slow
@pytest.mark.parametrize("number", range(12))
def test_neighbours_order_threads_and_blocks_change_no_bit(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs = draw(number)
    runs = train(configs, tmp_path / "one thread", 1, monkeypatch)
    assert {run.result["step"] for run in runs} == {"native"}
    threads = train(configs, tmp_path / "threads", 3, monkeypatch)
    reversed_ = train(configs[::-1], tmp_path / "reversed", 2, monkeypatch)[::-1]
    pair = train(configs[1:3], tmp_path / "pair", 2, monkeypatch)
    short = train(
        [with_blocks(config, 2) for config in configs], tmp_path / "short", 2, monkeypatch
    )
    monkeypatch.setattr(
        "kindling.training.building.available", lambda: 4
    )  # a team of four trains it
    alone = fit(configs[1], tmp_path / "alone")
    for others in (threads, reversed_, short):
        assert all(same(run, other) for run, other in zip(runs, others, strict=True))
    assert same(runs[1], pair[0])
    assert same(runs[2], pair[1])
    assert same(runs[1], alone)
    names = ("test/acc", "test/loss", "best", "last")
    for other in (threads[1], reversed_[1], short[1], pair[0], alone):
        assert [other.result[name] for name in names] == [runs[1].result[name] for name in names]  # type: ignore[literal-required]


@pytest.mark.slow
def test_copied_blocks_and_workers_change_no_bit(tmp_path: Path) -> None:
    common = (*SMALL, "model.dropout=0.2", "model.noise=0.3", "optimizer=adamw")
    resident = fit(compose(*common), tmp_path / "resident")
    workers = fit(
        compose(*common, "data.loader=workers", "data.num_workers=1"), tmp_path / "workers"
    )
    assert same(resident, workers)


def test_steps_within_an_epoch_are_checkpoints_when_they_are_due(tmp_path: Path) -> None:
    """A block of the engine is not longer than the steps between two checkpoints."""
    config = compose(*SMALL, "data.batch_size=10", "checkpoint.every_n_steps=7")
    seen: list[int] = []

    class Seen(Callback):
        def on_train_batch_end(
            self, trainer: Trainer, pl_module: LightningModule, *_: object
        ) -> None:
            seen.append(trainer.global_step)

    fit(config, tmp_path / "run", callbacks=[Seen()])
    assert all(b - a <= 7 for a, b in itertools.pairwise(seen))


@pytest.mark.parametrize("settings", [{}, {"dropout": 0.5}, {"noise": 0.3}], ids=str)
def test_each_seed_has_masks_and_noise_of_its_own(settings: dict[str, float]) -> None:
    """The same weights and batches."""
    trained = []
    for seed in (1, 2, 2):
        config = compose(*SMALL, f"seed={seed}", "optimizer.lr=0.1", "scheduler=none")
        torch.manual_seed(0)
        mlp = Mlp(6, [20], 3, **settings)  # type: ignore[arg-type]
        learner = NativeLearner([config], [mlp], [0], Lanes(1), classes(3))
        schedule = Schedule(config.scheduler, 0.1, 1, BATCHES)
        learner.begin([schedule], StepPlan(BATCHES, 1, None, 0.0))
        learner.train(block(), 0, 0)
        trained.append(torch.cat([p.detach().flatten() for p in mlp.parameters()]))
    assert torch.equal(trained[1], trained[2])
    assert torch.equal(trained[0], trained[1]) == (not settings)


def test_an_activation_that_only_torch_has_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """In C and CUDA the last of the activations is what no other is."""
    silu = Activation(torch.nn.SiLU, torch.nn.functional.silu, torch.ops.aten.silu_backward, True)
    monkeypatch.setitem(ACTIVATIONS, "silu", silu)
    model = Mlp(4, [3], 2, activation="silu")
    assert why_not_native(model) == "the engine has no model.activation=silu"
    reason = why_no_kernel([compose("optimizer=sgd", "trainer=cpu")], [model])
    assert reason == "the kernel has no model.activation=silu"
