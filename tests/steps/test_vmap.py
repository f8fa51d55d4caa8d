"""Models of any family side by side: each trains as it would alone."""

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kindling.config.compose import compose
from kindling.models import try_model
from kindling.models.closed_form import SegmentBatch, StackedParameters
from kindling.models.cnn import Cnn
from kindling.models.mlp import Mlp
from kindling.steps.stack import Stack
from kindling.steps.vmap import Vmapped, difference_by_vmap
from kindling.system.errors import InputError
from kindling.training.fit import fit, fit_stack
from kindling.training.grouping import VMAP_PAYS, group_trials, why_alone
from tests.helpers.kills import Killed, die_after_writing
from tests.helpers.tasks import classes
from tests.helpers.weights import same, weights

SHAPE, CLASSES, BATCH = (2, 8, 8), 5, 7


class Attention(nn.Module):
    """A layer norm, attention, a buffer that is not trained, and a weight that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(16, 6)
        self.register_buffer("positions", torch.randn(8, 6))
        self.keys, self.values = nn.Linear(6, 6), nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)
        self.output = nn.Linear(6, CLASSES)
        self.again = self.embed
        self.unused = nn.Parameter(torch.randn(3))

    def forward(self, features: Tensor) -> Tensor:
        tokens = self.embed(features.reshape(-1, 8, 16)) + self.positions
        scores = tokens @ self.keys(tokens).mT
        tokens = tokens + scores.softmax(-1) @ self.values(tokens)
        twice = tokens + self.again(F.pad(tokens, (0, 10)))
        logits: Tensor = self.output(self.norm(twice).mean(1))
        return logits


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(27, CLASSES),
    )  # fmt: skip


def plain() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(128, 4), nn.SiLU(), nn.Linear(4, CLASSES))


@pytest.mark.parametrize("build", [Attention, convolutional, plain])
@pytest.mark.parametrize(("trials", "batches"), [(1, 1), (3, 1), (4, 2), (3, 3)])
def test_steps_are_those_of_each_model(
    build: Callable[[], nn.Module], trials: int, batches: int
) -> None:
    """Logits, gradients times scale and running statistics, in float64."""
    torch.manual_seed(trials)
    models = [build().double() for _ in range(trials)]
    alone = [build().double() for _ in range(trials)]
    for own, other in zip(alone, models, strict=True):
        own.load_state_dict(other.state_dict())
    stack = Stack(
        models, [n * batches // trials for n in range(trials)], kind=Vmapped, task=classes(CLASSES)
    )
    (segment,) = stack.segments
    features = torch.randn(batches, BATCH, *SHAPE).double()
    labels = torch.randint(CLASSES, (batches, BATCH))
    targets = F.one_hot(labels, CLASSES).mT.double().unsqueeze(1) * 0.8 + 0.04
    scale = torch.rand(trials, 1, 1).double()
    logits = torch.empty(trials, CLASSES, BATCH).double()
    segment.make_gradients()
    for overwrite in (True, False):
        use = partial(StackedParameters.accumulate, overwrite=overwrite)
        segment.differentiate(SegmentBatch(features, targets, None, scale, logits), use)
    segment.attach_gradients()
    names = [name for name, _ in models[0].named_parameters()]
    for number, own in enumerate(alone):
        batch = number * batches // trials
        for _ in range(2):
            found = own(features[batch])
            loss = F.cross_entropy(found, labels[batch], reduction="sum", label_smoothing=0.2)
            (loss * scale[number]).sum().backward()  # type: ignore[no-untyped-call]
        torch.testing.assert_close(logits[number], found.detach().mT)
        for parameter, name in zip(segment.parameters, names, strict=True):
            gradient = own.get_parameter(name).grad
            expected = torch.zeros_like(own.get_parameter(name)) if gradient is None else gradient
            assert parameter.grad is not None
            torch.testing.assert_close(
                parameter.grad.view(trials, *expected.shape)[number], expected
            )
        for name, value in own.state_dict().items():
            torch.testing.assert_close(models[number].state_dict()[name], value)
    evaluated = stack.logits(features[0])
    expected = torch.stack([own.eval()(features[0]).mT for own in alone])
    torch.testing.assert_close(evaluated, expected.detach())


def test_each_trial_draws_a_dropout_mask_of_its_own() -> None:
    models = [nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(128, 5)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    segment = Vmapped([0, 1], models, [0])
    segment.task = classes(CLASSES)
    logits = torch.empty(2, CLASSES, BATCH)
    targets = torch.full((1, 1, CLASSES, BATCH), 0.2)
    batch = SegmentBatch(torch.ones(1, BATCH, *SHAPE), targets, None, 1.0, logits)
    segment.differentiate(batch, lambda *_: None)
    assert not torch.equal(logits[0], logits[1])
    same_features = segment.forward(torch.ones(BATCH, *SHAPE))
    assert torch.equal(same_features[0], same_features[1])


class TorchsAttention(nn.Module):
    """torch.func.vmap has no rule for its fast kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.output = (
            nn.MultiheadAttention(16, 2, batch_first=True),
            nn.Linear(16, CLASSES),
        )

    def forward(self, features: Tensor) -> Tensor:
        tokens = features.reshape(-1, 8, 16)
        logits: Tensor = self.output(self.attention(tokens, tokens, tokens)[0].mean(1))
        return logits


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(128, CLASSES)

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.layer(features.flatten(1))
        return logits if logits.sum() > 0 else -logits


class Counting(Branching):
    """Replaces its buffer, where vmap needs a change in place."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, features: Tensor) -> Tensor:
        self.seen = self.seen + len(features)
        logits: Tensor = self.layer(features.flatten(1))
        return logits


class CountingInPython(nn.Module):
    """Its second layer depends on how often it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(1), nn.Linear(128, CLASSES), Counter())

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.layers(features)
        return logits


class Counter(nn.Module):
    steps = 0

    def forward(self, features: Tensor) -> Tensor:
        self.steps += 1
        return features * (1 + 1e-9 * self.steps)


class InPlace(Branching):
    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.layer(features.mul_(2.0).flatten(1))
        return logits


class Frozen(Branching):
    def __init__(self) -> None:
        super().__init__()
        self.layer.bias.requires_grad = False


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (convolutional, None),
        (Attention, None),
        (lambda: nn.Sequential(nn.Dropout(), plain()), None),
        (
            TorchsAttention,
            "cannot be evaluated by torch.func.vmap (There is a perf",
        ),
        (Branching, "cannot be evaluated by torch.func.vmap"),
        (Counting, "computes something else by torch.func.vmap"),
        (CountingInPython, "changes layers.2.steps, which all models of a stack would share"),
        (InPlace, "changes its inputs in place"),
        (lambda: nn.Sequential(nn.ReLU(inplace=True), plain()), "changes its inputs in place"),
        (Frozen, "cannot be evaluated by torch.func.vmap"),
        (lambda: nn.Sequential(nn.Flatten(1), nn.Linear(7, 3)), "cannot be evaluated"),
    ],
)
def test_a_model_that_vmap_does_not_take_is_told(
    build: Callable[[], nn.Module], reason: str | None
) -> None:
    before = torch.random.get_rng_state()
    with warnings.catch_warnings(action="ignore"):  # as outside of tests
        found = difference_by_vmap(build, SHAPE)
    assert (found or "").startswith(reason or "")
    assert bool(found) == bool(reason)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.slow
def test_rounding_is_no_difference() -> None:
    """In float32 a batch norm of two samples made 1 of 40 such models seem different."""
    for seed in range(100):
        torch.manual_seed(seed)
        assert difference_by_vmap(lambda: Cnn((1, 8, 9), [2, 3], 6, 1, "batch"), (1, 8, 9)) is None


def test_weights_are_bounded_as_the_model_says() -> None:
    models = [Mlp(4, [3], 2, max_norm=0.5) for _ in range(2)]
    for model in models:
        nn.init.ones_(next(model.parameters()))
    (segment,) = Stack(models, [0, 0], kind=Vmapped, task=classes(CLASSES)).segments
    segment.constrain()
    for model in models:
        torch.testing.assert_close(next(model.parameters()).data, torch.full((3, 4), 0.25))


CNN = (
    "data=synthetic", "data.shape=[1,6,6]", "data.samples=120", "data.test_samples=30",
    "data.batch_size=25", "trainer=cpu", "trainer.precision=64", "trainer.max_epochs=3",
    "model=cnn", "model.channels=[3,4]",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe",
    [
        ("optimizer.momentum=0.9", "optimizer.weight_decay=0.01,0.1", "data.fold=0,1",
         "data.folds=2", "trainer.ema_decay=0.9"),
        ("optimizer=adamw", "trainer.gradient_clip_val=0.1", "trainer.accumulate_grad_batches=2",
         "trainer.ema_decay=0.9", "model.norm=layer", "trainer.class_weights=balanced"),
    ],
)  # fmt: skip
def test_a_fused_trial_is_its_single_run_by_autograd(
    recipe: tuple[str, ...], tmp_path: Path
) -> None:
    keys = [setting for setting in recipe if "," not in setting]
    configs = [
        compose(*CNN, *keys, f"seed={seed}", f"optimizer.lr={rate}", *_choice(recipe, number))
        for number, (seed, rate) in enumerate([(0, 0.01), (0, 0.1), (1, 0.1), (2, 0.03)])
    ]
    (group,) = group_trials(configs)
    assert group.trials == [0, 1, 2, 3]
    fused = fit_stack(configs, [tmp_path / str(n) for n in range(4)], tmp_path / "stack")
    assert {run.result["step"] for run in fused} == {"vmap"}
    for number in (0, 3):
        single = fit(configs[number], tmp_path / f"single{number}")
        assert single.result["step"] == "autograd"
        assert single.result["step_reason"] == "Cnn has no closed form"
        found = weights(fused[number])
        for name, value in weights(single).items():
            torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-9)


def _choice(recipe: tuple[str, ...], number: int) -> list[str]:
    """Of `key=a,b` the value of a trial."""
    pairs = [setting.split("=") for setting in recipe if "," in setting]
    return [f"{key}={values.split(',')[number % 2]}" for key, values in pairs]


@pytest.mark.slow
def test_a_stack_that_is_killed_at_every_checkpoint_ends_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of its trials diverges."""
    own = ("model.dropout=0.3", "optimizer.momentum=0.9", "checkpoint.every_n_epochs=1")
    configs = [compose(*CNN, *own, f"optimizer.lr={rate}") for rate in (0.01, 1e9, 0.1)]
    whole = fit_stack(configs, [tmp_path / f"whole{n}" for n in range(3)], tmp_path / "stack")
    assert [run.result["status"] for run in whole] == ["finished", "diverged", "finished"]
    die_after_writing(monkeypatch)
    folders, deaths = [tmp_path / f"killed{n}" for n in range(3)], 0
    while not (folders[0] / "result.json").exists():
        try:
            killed = fit_stack(configs, folders, tmp_path / "other")
        except Killed:
            deaths += 1
    assert deaths >= 3
    assert all(same(killed[n], whole[n]) for n in (0, 2))


def test_on_a_cpu_large_convolutions_train_alone_unless_vmap_is_asked_for() -> None:
    large = ("data=synthetic", "data.shape=[1,28,28]", "data.batch_size=128", "model=cnn")
    operations = try_model(compose(*large).model, (1, 28, 28), 10).operations
    batch = int(VMAP_PAYS / operations)
    assert why_alone(compose(*large, "trainer=cpu", f"data.batch_size={batch}")) is None
    reason = "model=cnn trains faster alone on a CPU; trainer.step=vmap makes a stack"
    assert why_alone(compose(*large, "trainer=cpu", f"data.batch_size={batch + 1}")) == reason
    assert why_alone(compose(*large, "trainer=cpu", "trainer.step=vmap")) is None
    assert why_alone(compose(*CNN)) is None
    frozen = compose(*large, "trainer=cpu", "start_from=x", "freeze=[output]")
    assert why_alone(frozen) == "freeze=[output]: a stack trains all layers"


def test_a_step_by_vmap_that_would_differ_is_refused(tmp_path: Path) -> None:
    """torch.func.vmap does not take the noise, which is drawn in place."""
    shape = [setting for setting in CNN if not setting.startswith("model")]
    noisy = (*shape, "model=mlp", "model.noise=0.3", "trainer.step=vmap")
    with pytest.raises(InputError, match=r"trainer\.step=vmap: model=mlp .*torch\.func\.vmap"):
        fit(compose(*noisy), tmp_path / "run")


def test_mixed_precision_is_not_by_vmap() -> None:
    mixed = compose(*CNN, "trainer.precision=bf16-mixed")
    told = "trainer.precision=bf16-mixed: torch.func.vmap has no mixed precision"
    assert why_alone(mixed) == told
    with pytest.raises(InputError, match=r"trainer\.step=vmap has no mixed precision"):
        compose(*CNN, "trainer.precision=bf16-mixed", "trainer.step=vmap")
