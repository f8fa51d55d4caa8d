"""`trainer.strategy=fsdp` on two CPU ranks: sharded weights train as whole ones do."""

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional as F

from kindling.config.compose import compose
from kindling.data.loader import Block
from kindling.inference.evaluation import evaluate_path
from kindling.models.mlp import Mlp
from kindling.ranks import processes as ranks
from kindling.ranks.fsdp import shard
from kindling.records import checkpoint
from kindling.steps.autograd import AutogradLearner
from kindling.steps.base import StepPlan, whole
from kindling.steps.lanes import Lanes
from kindling.steps.schedule import Schedule
from kindling.system.errors import InputError
from kindling.training.checkpoints import Checkpoints
from kindling.training.fit import Job, fit, fit_rank
from kindling.training.grouping import why_alone
from tests.helpers.commands import SMALL
from tests.helpers.tasks import classes
from tests.helpers.weights import weights

SHARDED = (*SMALL, "data.batch_size=50", "data.drop_last=true", "trainer.strategy=fsdp")
RECIPES = {
    "sgd": ("optimizer.lr=0.1", "optimizer.momentum=0.9"),
    "adamw, clipped, accumulated": (
        "optimizer=adamw",
        "optimizer.lr=0.01",
        "trainer.gradient_clip_val=0.1",
        "trainer.accumulate_grad_batches=3",
    ),
    "logistic regression": ("model=logistic_regression", "optimizer.lr=0.1"),
    "checkpointing": ("model.gradient_checkpointing=true", "model.hidden_sizes=[16,16]"),
}


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_two_shards_are_one_model(recipe: tuple[str, ...], tmp_path: Path) -> None:
    one = fit(
        compose(*SMALL, "data.batch_size=100", "data.drop_last=true", *recipe), tmp_path / "1"
    )
    two = fit(compose(*SHARDED, "trainer.devices=2", *recipe), tmp_path / "2")
    a, b = weights(one), weights(two)
    assert a.keys() == b.keys()
    assert max((a[name] - b[name]).abs().max().item() for name in a) < 1e-5
    assert two.result["test/acc"] == one.result["test/acc"]
    assert (two.result["ranks"], two.result["step"]) == (2, "autograd")
    x, y = (checkpoint.read(run.last_checkpoint)["optimizer_states"][0] for run in (one, two))
    for number, state in x["state"].items():
        for name, value in state.items():
            torch.testing.assert_close(y["state"][number][name], value, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_the_best_weights_are_tested(tmp_path: Path) -> None:
    """Those of the first epoch, which no rank holds any more when training ends."""
    recipe = (
        "optimizer.lr=1.0", "optimizer.momentum=0.9", "checkpoint.monitor=val/loss",
        "checkpoint.mode=min",
    )  # fmt: skip
    run = fit(compose(*SHARDED, "trainer.devices=2", *recipe), tmp_path / "run")
    assert run.result["best"]["epoch"] == 1
    assert run.result["test/acc"] == evaluate_path(run.folder, None).accuracy


def notes_what_it_holds(job: Job) -> None:
    """fit_rank, but each rank leaves the shapes of its weights and moments behind, and rank 1 is
    killed in the second epoch of the first attempt."""
    after_batch = Checkpoints.on_train_batch_end

    def noted(self: Checkpoints, trainer: Any, classifier: Any, *others: Any) -> None:
        folder, rank = Path(job.folders[0]), trainer.global_rank
        parameters = list(classifier.parameters())
        moments = [trainer.optimizers[0].state[p].get("exp_avg", p) for p in parameters]
        shapes = [[list(t.to_local().shape) for t in parts] for parts in (parameters, moments)]
        (folder / f"shapes{rank}").write_text(json.dumps(shapes))
        after_batch(self, trainer, classifier, *others)  # a checkpoint, every second batch
        mark = folder / "died"
        within = classifier.batches_done == 4 and trainer.current_epoch == 1
        if rank == 1 and within and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    Checkpoints.on_train_batch_end = noted  # type: ignore[method-assign, assignment]
    fit_rank(job)


@pytest.mark.slow
def test_a_rank_holds_half_and_goes_on_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between two steps, with gradients that have come together: sharded ones, too."""
    monkeypatch.setattr("kindling.training.fit.fit_rank", notes_what_it_holds)
    recipe = (
        *SHARDED,
        "trainer.devices=2",
        "optimizer=adamw",
        "optimizer.lr=0.01",
        "model.dropout=0.1",
        "model.noise=0.1",
        "model.hidden_sizes=[16]",
        "trainer.accumulate_grad_batches=3",
        "trainer.steps_per_call=2",
        "checkpoint.every_n_steps=1",
    )
    left_alone, killed = (
        fit(compose(*recipe, f"trainer.max_restarts={restarts}"), folder)
        for restarts, folder in ((0, prepared(tmp_path / "left_alone")), (1, tmp_path / "killed"))
    )
    assert "going on from epoch 1, batch 4" in killed.log_file.read_text()
    one, other = (checkpoint.read(run.last_checkpoint) for run in (left_alone, killed))
    for name, value in one["state_dict"].items():
        assert torch.equal(other["state_dict"][name], value)
    for number, state in one["optimizer_states"][0]["state"].items():
        assert torch.equal(
            other["optimizer_states"][0]["state"][number]["exp_avg"], state["exp_avg"]
        )
    for rank in (0, 1):
        held, moments = json.loads((left_alone.folder / f"shapes{rank}").read_text())
        assert held == moments == [[8, 784], [8], [5, 16], [5]]


def prepared(folder: Path) -> Path:
    """A run here is not killed."""
    folder.mkdir()
    (folder / "died").touch()
    return folder


def scaled_steps(folder: Path) -> None:
    """Two steps with a scaler, the second of which overflows on one rank alone."""
    ranks.RanksStrategy.meet("gloo")
    rank = dist.get_rank()
    config = compose("optimizer.lr=0.1", "scheduler=none")
    torch.manual_seed(0)
    net, reference = Mlp(8, [6], 3), Mlp(8, [6], 3)
    reference.load_state_dict(net.state_dict())
    shard(net, torch.device("cpu"))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1000)
    schedule = Schedule(config.scheduler, 0.1, 1, 2)
    learner = AutogradLearner(
        [config], [net], [0], Lanes(), classes(3), SimpleNamespace(scaler=scaler)
    )
    learner.begin([schedule], StepPlan(2, 1, 0.5))
    features, labels = torch.randn(1, 1, 20, 8), torch.randint(3, (1, 1, 20))
    learner.train(Block(features[:, :, rank::2], labels[:, :, rank::2]), 0, 0)
    loss = F.cross_entropy(reference(features[0, 0]), labels[0, 0])
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
    torch.optim.SGD(reference.parameters(), 0.1).step()
    found = {name: whole(value).detach() for name, value in net.state_dict().items()}
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(found[name], value)
    if rank == 1:
        features = features * 1e38
    learner.train(Block(features[:, :, rank::2], labels[:, :, rank::2]), 0, 1)
    for name, value in net.state_dict().items():
        assert torch.equal(whole(value), found[name])
    assert scaler.get_scale() == 2.0**9
    (folder / str(rank)).touch()


@pytest.mark.slow
def test_gradients_of_shards_are_scaled_and_an_overflow_anywhere_is_left_out(
    tmp_path: Path,
) -> None:
    ranks.launch(scaled_steps, (tmp_path,), 2)
    assert {path.name for path in tmp_path.iterdir()} == {"0", "1"}


def test_what_shards_do_not_go_with() -> None:
    with pytest.raises(
        InputError, match=r"needs whole weights.* with trainer\.strategy=fsdp; type"
    ):
        compose("trainer.strategy=fsdp", "trainer.step=closed_form")
    assert (
        why_alone(compose("trainer.strategy=fsdp"))
        == "trainer.strategy=fsdp: a stack needs whole weights"
    )
