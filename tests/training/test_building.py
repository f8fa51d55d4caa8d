"""Fine-tuning: weights of another run, and layers that keep theirs."""

import shutil
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from kindling.config.compose import compose
from kindling.data.module import DataModule
from kindling.models import build_model
from kindling.models.mlp import Mlp
from kindling.records.checkpoint import read
from kindling.records.folder import Run
from kindling.records.loading import open_trained
from kindling.system.errors import InputError
from kindling.training.building import freeze, load_weights
from kindling.training.fit import fit, fit_stack
from tests.helpers.commands import SMALL, Command, Train

DEEP = ("model.hidden_sizes=[16,8]",)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fit(compose(*SMALL, *DEEP, "seed=4"), tmp_path_factory.mktemp("base") / "run")


def weights(run: Run) -> dict[str, torch.Tensor]:
    return open_trained(run.folder).model.state_dict()


def first_row(run: Run) -> dict[str, float | int | None]:
    """The metrics before training."""
    return {key: run.history[0][key] for key in ("val/loss", "val/acc")}


@pytest.mark.parametrize("step", ["native", "closed_form", "autograd"])
def test_training_begins_with_the_weights(base: Run, step: str, tmp_path: Path) -> None:
    config = compose(*SMALL, *DEEP, f"start_from={base.folder}", f"trainer.step={step}")
    run = fit(config, tmp_path / "run")
    best = base.history[base.result["best"]["epoch"] or 0]
    assert first_row(run) == pytest.approx({key: best[key] for key in first_row(run)}, rel=1e-5)
    assert f"weights of {base.best_checkpoint}: 3 of 3 layers" in run.log_file.read_text()


def test_layers_that_do_not_fit_are_new(base: Run) -> None:
    config = compose(*SMALL, "model.hidden_sizes=[16,9]", f"start_from={base.folder}")
    torch.manual_seed(1)
    model = build_model(config.model, (1, 28, 28), 10)
    fresh = {name: value.clone() for name, value in model.state_dict().items()}
    told = load_weights(model, config)
    assert told.endswith("1 of 3 layers; new: layers.2, layers.4")
    theirs = weights(base)
    for name, value in model.state_dict().items():
        assert value.equal(theirs[name] if name.startswith("layers.0.") else fresh[name])


def test_frozen_layers_keep_their_weights(base: Run, tmp_path: Path) -> None:
    """And the others train as by plain torch, with the same decay for them alone."""
    config = compose(
        *SMALL, *DEEP, f"start_from={base.folder}", "freeze=[layers.0]", "trainer.max_epochs=1",
        "optimizer.weight_decay=0.1", "optimizer.momentum=0.9", "optimizer.lr=0.05",
        "scheduler=none",
    )  # fmt: skip
    run = fit(config, tmp_path / "run")
    assert run.result["step"] == "autograd"
    assert "freeze=[layers.0]: the closed form trains all layers" in str(run.result["step_reason"])
    trained, before = read(run.last_checkpoint)["state_dict"], weights(base)
    model = Mlp(784, [16, 8], 10)
    model.load_state_dict(before)
    data = DataModule(config.data, steps_per_call=1)
    data.setup()
    data.set_orders([data.order(config.seed, None)], 1)
    others = [p for name, p in model.named_parameters() if not name.startswith("layers.0.")]
    optimizer = torch.optim.SGD(others, 0.05, momentum=0.9, weight_decay=0.1)
    for block in data.train_dataloader():
        features, labels = block.features[0, 0], block.labels[0, 0]
        features = features.float() / 255 if features.dtype == torch.uint8 else features
        optimizer.zero_grad()
        F.cross_entropy(model(features), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    for name, value in model.state_dict().items():
        found = trained[f"model.{name}"]
        if name.startswith("layers.0."):
            assert found.equal(before[name])
        else:
            torch.testing.assert_close(found, value, atol=1e-5, rtol=1e-4)
            assert not found.equal(before[name])


def test_a_resumed_run_needs_no_base(base: Run, tmp_path: Path) -> None:
    copied = shutil.copytree(base.folder, tmp_path / "copied")
    common = (*SMALL, *DEEP, f"start_from={copied}", "freeze=layers.2", "optimizer=adamw",
              "trainer.accumulate_grad_batches=5", "trainer.gradient_clip_val=0.5")  # fmt: skip
    whole = fit(compose(*common, "trainer.max_epochs=4"), tmp_path / "whole")
    part = fit(compose(*common, "trainer.max_epochs=2"), tmp_path / "part")
    shutil.rmtree(copied)
    resumed = fit(compose(*common, "trainer.max_epochs=4"), part.folder, resume=True)
    expected, found = (read(run.last_checkpoint)["state_dict"] for run in (whole, resumed))
    assert all(value.equal(found[name]) for name, value in expected.items())
    with pytest.raises(InputError, match="there is no such file"):
        fit(compose(*common), tmp_path / "another")


def test_a_stack_begins_with_the_same_weights(base: Run, tmp_path: Path) -> None:
    common = (*SMALL, *DEEP, f"start_from={base.folder}")
    configs = [compose(*common, f"optimizer.lr={lr}") for lr in (0.1, 0.2)]
    runs = fit_stack(configs, [tmp_path / str(n) for n in range(2)], tmp_path / "stack")
    for config, run in zip(configs, runs, strict=True):
        alone = fit(config, tmp_path / f"alone{run.folder.name}")
        assert [row["val/loss"] for row in run.history] == [r["val/loss"] for r in alone.history]
        assert first_row(run) == first_row(runs[0])


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (
            ["layers.9"],
            "freeze=layers.9: no layer .* the layers are layers.0",
        ),
        (["layers.1"], "no layer with weights"),  # an activation
        (["layers.0", "layers.2", "layers.4"], "leaves nothing to train"),
        (["layers"], "leaves nothing to train"),
        (["layer"], "no layer with weights"),
    ],
)
def test_wrong_layers(names: list[str], told: str) -> None:
    with pytest.raises(InputError, match=told):
        freeze(Mlp(5, [4, 3], 2), names)


def test_a_base_of_other_sizes(base: Run) -> None:
    config = compose(*SMALL, "model.hidden_sizes=[5,7]", f"start_from={base.folder}")
    model = build_model(config.model, (1, 28, 28), 12)
    with pytest.raises(InputError, match="none of its weights fits, because it is mlp 784-16-8-10"):
        load_weights(model, config)


@pytest.mark.slow
def test_the_command(command: Command, train: Train, tmp_path: Path) -> None:
    assert command("src.train", *SMALL, *DEEP, "name=base").returncode == 0
    done = command("src.train", *SMALL, *DEEP, "start_from=base", "freeze=layers.0")
    assert done.returncode == 0, done.stderr
    assert "3 of 3 layers" in done.stdout
    for arguments, fault in (
        (("start_from=nix",), "start_from=nix: nix: there is no such file or folder"),
        (("start_from=latest",), "start_from=latest: must be a folder or a name"),
        (("freeze=layers.0",), "type start_from=RUN too"),
        (("start_from=base", "freeze=layers.0", "trainer.step=native"), "trains all layers"),
        (("start_from=base", "freeze=[a b]"), "the name of a layer"),
    ):
        refused = command("src.train", *SMALL, *DEEP, *arguments)
        assert (refused.returncode, refused.stdout) == (2, ""), arguments
        assert fault in refused.stderr, refused.stderr


def test_runs_without_a_base_have_the_identity_of_old_runs() -> None:
    values = compose(*SMALL).identity_values()
    assert not {"start_from", "freeze", "name", "tags", "resume"} & {*values}
    changed = compose(*SMALL, "start_from=x").hash()
    assert compose(*SMALL).hash() != changed
