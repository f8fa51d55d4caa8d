"""LightningModules and LightningDataModules of the user's own.

The modules are in tests/helpers/lit/, and the runs in tests/helpers/lit/scenarios.py, in a process
of their own, because a process knows the extensions that were installed when it began.
"""

import csv
import json
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kindling.config import registry
from kindling.config.measures import higher_is_better, known_entry
from kindling.data.sources.source import Split, as_float
from kindling.system.errors import InputError
from kindling.training.lightning_module import Batches
from tests.helpers.commands import ROOT
from tests.helpers.installed import install, python

ODD = ("model=odd", "data=digits", "checkpoint.monitor=val_loss", "checkpoint.mode=min")
SHORT = ("trainer=cpu", "trainer.max_epochs=2")
TEMPLATE = ("model=template", "data=template")


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    return install(tmp_path, "tests.helpers.lit.extension")


def scenario(folder: Path, name: str) -> Any:
    done = python(folder, "-m", "tests.helpers.lit.scenarios", str(folder / "runs"), name)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def train(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return python(folder, "-m", "src.train", *arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
def test_a_validation_step_may_change_its_batches(dtype: torch.dtype) -> None:
    """As those of a DataLoader, which are copies."""
    split = Split(torch.arange(10, dtype=dtype).view(5, 2), torch.arange(5))
    data: Any = SimpleNamespace(data=SimpleNamespace(config=SimpleNamespace(batch=2)))
    before = split.features.clone(), split.labels.clone()
    for _ in range(2):
        for number, (features, labels) in enumerate(Batches._in_order(data, split)):
            assert torch.equal(features, as_float(before[0][2 * number : 2 * number + 2]))
            assert torch.equal(labels, before[1][2 * number : 2 * number + 2])
            features.add_(1)
            labels.add_(1)
    assert torch.equal(split.features, before[0])
    assert torch.equal(split.labels, before[1])


@pytest.mark.slow
def test_a_run_killed_after_each_epoch_ends_as_an_undisturbed_one(installed: Path) -> None:
    """With one optimizer or several, own and foreign data, measures, callbacks, streams."""
    for name, found in scenario(installed, "resumed").items():
        assert found["same"] is True, name
        assert found["epochs"] == {"template": 6, "swa": 5, "early": 2}.get(name, 4)


@pytest.mark.slow
def test_a_signal_within_an_epoch(installed: Path) -> None:
    """The run goes on from the last epoch. A run with more epochs is as one that had them."""
    found = scenario(installed, "interrupted")
    assert found.pop("more") is True
    for status, epochs, told, same in found.values():
        assert (status, epochs, same) == ("interrupted", 2, True)
        assert re.match(r"stopped after 2 epochs, \d+ steps; to go on, type\n  ", told)


@pytest.mark.slow
def test_the_templates_parts_train_as_by_lightning_alone(installed: Path) -> None:
    found = scenario(installed, "plain_lightning")
    assert len(found["same"]) == 9
    assert set(found["same"].values()) == {True}
    assert found["history"][-1] == found["theirs"] == max(found["history"])
    assert found["tested"][0] == pytest.approx(found["tested"][1])
    # Our data, optimizer and schedule, against our own step by autograd.
    assert found["difference"] == 0
    assert found["loss"][0] == pytest.approx(found["loss"][1], rel=1e-6)
    assert found["lr"][0] == found["lr"][1]


@pytest.mark.slow
def test_what_modules_that_cannot_train_are_told(installed: Path) -> None:
    found = scenario(installed, "told")
    assert found.pop("nan") == ["diverged", 12, 1]
    assert "register it by register_lightning_module" in found.pop("wrong")
    assert found.pop("weighted") == (
        "data=npz: has weights of samples, and model=odd is a LightningModule, whose batches are "
        "features and labels; leave the weights out"
    )
    columns, lines = found.pop("many")
    assert len(columns) == 4 + 64
    assert columns[:7] == ["epoch", "step", "seconds", "lr", "val_loss", "val/score", "val/class_0"]
    assert "the history has columns for 64 of the logged names" in lines
    assert "self.log: the history leaves out =HYPERLINK(), epoch, lr, step; the name" in lines
    columns, tested, epochs, lines = found.pop("hidden")
    assert columns[4:] == ["val_loss", "both", "train/loss", "train/loss_step", "train/loss_epoch"]
    assert tested == ["test_loss"]
    assert epochs == 2  # a callback stops it, by a value that no logger gets
    assert "leaves out" not in lines  # Lightning gives loggers an epoch
    assert found.pop("raises") == [
        "ValueError", "boom in batch 0", "failed", ["training_step", "helper"]
    ]  # fmt: skip
    texts = {
        "silent": "the module logs val/error_rate; type checkpoint.monitor=val/error_rate "
        "checkpoint.mode=min, or log it",
        "not_validated": "type checkpoint.monitor=train/loss checkpoint.mode=min, or log it",
        "refused": "model=odd: Lightning refuses it: No `training_step()` method defined.",
        "no_optimizer": "model=odd: configure_optimizers returns no optimizer; return one",
        "lambda": "mine['function'] is a builtin_function_or_method; add numbers",
        "text": "model=odd: its function returned a str, must return a LightningModule",
    }
    for name, text in texts.items():
        kind, message, status, _ = found[name]
        assert (kind, status) == ("InputError", "failed")
        assert text in message


@pytest.mark.slow
def test_the_best_state_is_saved_and_loaded_through_the_hooks_as_by_lightning(
    installed: Path,
) -> None:
    """Of the module, its callback and its data: states, and what on_save_checkpoint adds."""
    found = scenario(installed, "best")
    assert found.pop("two") == [1, 2, 2]
    names, expected, tested = found.pop("partial")  # strict_loading=False
    assert names == ["layer.weight", "layer.bias"]
    assert tested == pytest.approx(expected, rel=1e-5)
    for name, ((ours, theirs), hooks, seen, same) in found.items():
        assert ours == pytest.approx(theirs), name
        assert hooks[0] == hooks[1] == ["module", "data", "callback", "state"]
        assert seen[0] == seen[1] == "{'epoch': 1, 'of': (0, [tensor([2.])])}"
        assert same is True
    steps = {name: found[name][0][0]["test/steps"] for name in found}
    assert steps == {"whole": 10, "within": 8}


@pytest.mark.slow
def test_lazy_layers(installed: Path) -> None:
    found = scenario(installed, "lazy")
    assert found["parameters"] == (784 + 1) * 8 + (8 + 1) * 10
    assert found["summary"] == "odd, lazy layers, whose sizes come with the first batch"
    assert found["loss"][0] == pytest.approx(found["loss"][1], rel=1e-5)
    assert found["loss"][0] < 1.5
    assert found["told"] == (
        "trainer.devices=2: the module has lazy layers, which DDP refuses; name their sizes in the "
        "module, or type trainer.devices=1"
    )


@pytest.mark.slow
def test_two_ranks_train_as_one_with_twice_the_batch_size(installed: Path) -> None:
    """Own and foreign data; a rank that is killed, and a signal within an epoch."""
    found = scenario(installed, "two_ranks")
    assert found["same"] == {"killed": True, "term": True}
    assert found["interrupted"] == ["interrupted", 2]
    for kind in ("plain", "manual"):
        (two, *ours), (one, *theirs) = found[kind]
        assert (two, one) == (2, 1)
        assert ours == pytest.approx(theirs, rel=1e-5)


@pytest.mark.slow
def test_the_keys_of_lightnings_trainer(installed: Path) -> None:
    """60 samples of 240 are a batch of the template's data; 1,150 of the digits are 12 batches."""
    found = scenario(installed, "keys")
    counts = {
        name: (each["epochs"], each["steps"], each["stopped"])
        for name, each in found.items()
        if isinstance(each, dict)
    }
    assert counts == {
        "all": (4, 16, None),
        "fast_dev_run": (1, 1, None),
        "limited": (4, 8, None),
        "limited_ours": (4, 12, None),
        "overfit": (30, 30, None),
        "accumulated": (4, 8, None),
        "early": (2, 24, "callback"),
        "min_epochs": (5, 60, "callback"),
        "patience": (2, 24, "early_stopping"),
    }
    assert found["overfit"]["train"] == 1
    assert found["validations"] == 4 * 4
    assert found["between"][0] == pytest.approx(found["between"][1], rel=1e-5)
    norm, value, mixed = found["norm 32"], found["value 32"], found["norm bf16-mixed"]
    assert (norm[0], value[1], mixed[0]) == pytest.approx((0.001,) * 3, rel=0.01)
    assert value[0] > 10 * norm[0]
    assert found["lines"] == ["step 5", "step 10"]
    assert found["anomaly"].startswith("Function 'MulBackward0' returned nan values")


@pytest.mark.slow
def test_lightnings_callbacks(installed: Path) -> None:
    found = scenario(installed, "callbacks")
    assert found["file"] == f"mine-epoch={found['epoch'] - 1}.ckpt"
    assert found["same"] is True  # ModelCheckpoint's best weights are those of best.ckpt
    assert "lr-Adam" in found["columns"]
    assert found["rates"] == pytest.approx([0.01] * 4)
    loaded, averaged, plain = found["swa"]
    assert loaded == pytest.approx(averaged, rel=1e-5)
    assert averaged != pytest.approx(plain, rel=1e-3)
    assert found["ema"][0] == pytest.approx(found["ema"][1], rel=1e-5)


@pytest.mark.slow
def test_a_run_and_its_folder(installed: Path) -> None:
    done = train(installed, *TEMPLATE, *SHORT, "checkpoint.monitor=val/acc_best",
                 "hydra.run.dir=run")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "model=template configures its optimizers" in done.stdout
    assert "data=template: a LightningDataModule" in done.stdout
    run = installed / "run"
    rows = [*csv.DictReader((run / "history.csv").read_text().splitlines())]
    assert [*rows[0]] == [
        "epoch", "step", "seconds", "lr", "val/loss", "val/acc", "val/acc_best", "train/loss",
        "train/acc",
    ]  # fmt: skip
    assert [row["train/acc"] == "" for row in rows] == [True, False, False]
    result = json.loads((run / "result.json").read_text())
    assert (result["step"], result["resumes_from"], result["data"]) == (
        "lightning", "epoch", {"name": "template"}
    )  # fmt: skip
    assert result["best"] == {
        name: float(value) if name != "epoch" else 2
        for name, value in rows[2].items()
        if name not in ("step", "seconds", "lr")
    }
    assert {"test/loss", "test/acc"} < result.keys()
    assert (run / ".hydra" / "config.yaml").exists()
    assert "data=template: mine 1.0" in (run / ".hydra/extensions.yaml").read_text()
    assert "epoch 2/2" in (run / "train.log").read_text()
    for command in ("evaluate", "export", "demo"):
        used = python(installed, "-m", f"src.{command}", "run")
        assert used.returncode == 2
        assert "has the weights of model=template, a LightningModule" in used.stderr
    listed = python(installed, "-m", "src.runs", "run", "--json")
    (entry,) = json.loads(listed.stdout)
    assert (entry["monitor"], entry["best"], entry["data"]) == (
        "val/acc_best", result["best"]["val/acc_best"], "template"
    )  # fmt: skip
    shown = python(installed, "-m", "src.report", "run")
    assert shown.returncode == 0, shown.stderr
    assert "val/acc_best" in (run / "report.html").read_text()


@pytest.mark.slow
def test_a_sweep_with_an_executor_and_a_trial_that_raises(installed: Path) -> None:
    done = train(
        installed, "-m", "hydra/launcher=fused", "hydra.launcher.executor=local", *ODD, *SHORT,
        "model.kind=plain,manual,raises", "hydra.sweep.dir=sweep",
    )  # fmt: skip
    assert done.returncode == 1
    assert "trials 0, 1, 2 train alone: model=odd is a LightningModule" in done.stdout
    shown = done.stdout + done.stderr
    assert re.search(r"failed\nTraceback .*\n  File .*odd.py.*, in training_step\n", shown)
    rows = [*csv.DictReader((installed / "sweep" / "results.csv").read_text().splitlines())]
    assert [row["status"] for row in rows] == ["finished", "finished", "failed"]
    assert {"val_loss", "test_loss"} < rows[0].keys()
    assert not {"val/acc", "test/acc"} & rows[0].keys()
    first = json.loads((installed / "sweep/0/result.json").read_text())
    assert float(rows[0]["test_loss"]) == pytest.approx(first["test_loss"], abs=1e-4)
    best = min(rows[:2], key=lambda row: float(row["val_loss"]))
    assert f"best val_loss {float(best['val_loss']):.4f}" in done.stdout


@pytest.mark.slow
def test_commands_about_runs_of_foreign_data(installed: Path) -> None:
    """What needs a model of Kindling's own steps is refused in a line."""
    words = (*ODD, "model.kind=words", "data=tokens", *SHORT)
    assert train(installed, *words, "hydra.run.dir=run").returncode == 0
    shutil.copytree(installed / "run", installed / "other")
    done = python(installed, "-m", "src.committee", "run", "other", "--folder", "c")
    assert done.returncode == 2
    assert "run: model=odd is a LightningModule; a committee averages" in done.stderr
    done = python(installed, "-m", "src.report", "run", "--bundle", "run.zip")
    assert done.returncode == 2
    assert "run: model=odd is a LightningModule, which no bundle repeats" in done.stderr


@pytest.mark.slow
def test_a_search_over_a_key_of_the_module(installed: Path) -> None:
    done = python(
        installed, "-m", "src.search", *TEMPLATE, *SHORT, "model.lr=interval(0.0001,0.1)",
        "search.trials=3", "search.folder=search",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [*csv.DictReader((installed / "search" / "results.csv").read_text().splitlines())]
    assert len({row["model.lr"] for row in rows}) == 3
    assert f"best val/acc {max(float(row['val/acc']) for row in rows):.2%}" in done.stdout


REFUSED = {
    "trainer.label_smoothing=0.1": "does not go with a LightningModule: the module computes its",
    "trainer.class_weights=balanced": "does not go with a LightningModule: the module computes its",
    "trainer.ema_decay=0.9": "register Lightning's WeightAveraging by register_callback",
    "trainer.compile=true": "do that in the function that builds the module",
    "trainer.log_every_step=true": "type trainer.log_every_n_steps=1",
    "trainer.steps_per_call=5": "each call has one batch",
    "trainer.strategy=fsdp": "its weights are whole; type trainer.strategy=ddp",
    "checkpoint.every_n_steps=5": "type checkpoint.every_n_epochs=1",
    "freeze=[layer]": "do that in the function that builds the module",
    "trainer.step=autograd": "model=odd is a LightningModule; type trainer.step=auto",
    "trainer.step=vmap": "model=odd is a LightningModule; type trainer.step=auto",
    "trainer.step=native": "does not go with model=odd; type trainer.step=auto",
    "data.batch_size=auto": "type data.batch_size=100",
    "checkpoint.mode=max": "would keep the worst val_loss; type checkpoint.mode=min",
}
OTHERS = {
    ("model=mlp", "data=digits", "trainer.step=lightning"): "model=mlp is not a LightningModule",
    ("model=mlp", "data=tokens"): "data=tokens: is a LightningDataModule, and model=mlp is not",
    ("model=mlp", "data=digits", "checkpoint.monitor=val_loss"): "must be one of val/acc",
    ("model=mlp", "data=digits", "trainer.val_check_interval=0.5"): "trainer.limit_train_batches",
    (*ODD, "checkpoint.monitor=speed"): "its name does not tell whether more is better; write "
    "monitors={'speed': 'min'} into the extension",
    (*ODD, "checkpoint.monitor=val/score"): "would keep the worst val/score",
    ("model=odd", "data=csv", "data.path=a.csv", "data.target=a", "data.weights=b", *ODD[2:]): (
        "data.weights=b does not go with a LightningModule: its batches are features and labels"
    ),
    (*TEMPLATE, "augmentation.shift=1"): "augmentation has no pictures in data=template",
    (*TEMPLATE, "data.val_fraction=0.5"): "data=template has no such key",
}


@pytest.mark.slow
def test_faults_are_told_before_torch_is_imported(installed: Path) -> None:
    cases = {(*ODD, key): text for key, text in REFUSED.items()} | OTHERS
    script = f"""
import sys, json
from kindling.config.compose import compose
from kindling.system.errors import InputError
found = []
for overrides in {[*cases]}:
    try:
        compose(*overrides)
        found.append("")
    except InputError as error:
        found.append(str(error))
assert "torch" not in sys.modules
compose(*{ODD}, "trainer.step=lightning", "checkpoint.monitor=val/score", "checkpoint.mode=max")
print(json.dumps(found))
"""
    done = python(installed, "-c", script, cold=True)
    assert done.returncode == 0, done.stderr
    for (overrides, text), told in zip(cases.items(), json.loads(done.stdout), strict=True):
        assert text in told, overrides
        only = "2 faults" if "freeze=[layer]" in overrides else "1 fault"  # freeze needs start_from
        assert told.startswith(only), told


def test_the_example_of_the_documents(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "extending.md").read_text()
    section = page.partition("## A LightningModule of your own")[2].partition("\n## ")[0]
    files = re.findall(r"^```(?:python|yaml)\n# (mine/\S+)\n(.*?)^```$", section, re.M | re.S)
    lines = [line for _, text in files for line in text.splitlines()]
    own = [line for line in lines if line and not line.startswith(("from ", "import "))]
    assert len(own) <= 25
    install(tmp_path, "mine.extension")
    for name, text in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (command,) = re.findall(r"^```sh\nkindling (.*)\n```$", section, re.M)
    done = python(tmp_path, "-m", "kindling", *command.split(), "hydra.run.dir=run")
    assert done.returncode == 0, done.stderr
    assert "model=net has no configure_optimizers: optimizer and scheduler are used" in done.stdout
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["step"], result["parameters"]) == ("lightning", 785 * 32 + 33 * 10)
    assert result["best"]["val/acc"] > 0.9
    assert [*result["best"]] == ["epoch", "val/acc"]


def test_lr_find_is_refused(installed: Path) -> None:
    done = python(installed, "-m", "src.lr_find", *TEMPLATE)
    assert done.returncode == 2
    assert "sweep its own key in place of optimizer.lr" in done.stderr


def test_a_name_tells_its_direction() -> None:
    higher = ("val/acc_best", "val_acc", "valid/Accuracy", "test_f1", "val/auroc_macro")
    assert [higher_is_better(name) for name in higher] == [True] * 5
    lower = (
        "val_mse",
        "val/error_rate",
        "val_loss",
        "val/brier_score",
        "train/loss_epoch",
        "val-loss",
    )
    assert [higher_is_better(name) for name in lower] == [False] * 6
    assert [known_entry(name) for name in ("val/score", "speed", "lossy")] == [None] * 3


def test_a_monitor_has_one_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    section = type("Section", (), {})
    monkeypatch.setattr(registry, "_register_section", lambda *_: None)
    monkeypatch.setattr(registry, "_name", lambda _: "mine")
    monkeypatch.setattr(registry, "LIGHTNING", set())
    monkeypatch.setattr(registry, "LOGGED", {})
    register: Any = registry.register_lightning_module
    register(section, "mine:build", {"val/x": "max"})
    register(section, "mine:build", {"val/x": "max"})
    for mode in ("min", "maximum"):
        with pytest.raises(InputError, match="the monitor val/x as"):
            register(section, "mine:build", {"val/x": mode})
