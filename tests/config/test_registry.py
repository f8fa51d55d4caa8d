"""What extensions register: found by their entry points, and used by every command."""

import csv
import json
import re
import signal
import subprocess
import tomllib
from pathlib import Path

import pytest

from kindling.config import registry
from kindling.config.compose import compose
from kindling.config.faults import options
from kindling.data.paths import FOLDERS
from kindling.inference.pictures import reader_of
from kindling.system.errors import InputError
from kindling_digits import reader
from tests.helpers.commands import ROOT
from tests.helpers.installed import install, python

MODULE = """
from pathlib import Path
from typing import ClassVar, Literal

from kindling.config import registry
from kindling.config.executors import ExecutorEntry
from kindling.config.measures import Measure
from kindling.config.section import (
    DataSection, ModelSection, OptimizerSection, PositiveFloat, PositiveInt, SchedulerSection,
)


class Points(DataSection):
    pictures: ClassVar = None
    name: Literal["points"]
    count: PositiveInt


class Bent(ModelSection):
    name: Literal["bent"]
    units: PositiveInt


class Lion(OptimizerSection):
    name: Literal["rms"]
    alpha: PositiveFloat


class Halves(SchedulerSection):
    name: Literal["halves"]


registry.register_data(Points, "mine.points")
registry.register_model(Bent, "mine.parts:build")
registry.register_optimizer(Lion, "torch.optim:RMSprop")
registry.register_scheduler(Halves, "mine.parts:rate")
registry.register_measure("errors", Measure("errors", "mine.parts:ERRORS", higher_is_better=False))
registry.register_loss("focal", "mine.parts:focal")
registry.register_callback("counter", "mine.parts:counter")
registry.register_logger("lines", "mine.parts:Lines")
registry.register_augmentation("noise", "mine.parts:noise")
registry.register_configs(Path(__file__).parent / "conf")
registry.register_command("hello", "mine.hello")
registry.register_executor("backwards", ExecutorEntry("mine.parts:Backwards", ["slots"]))
"""
PARTS = """
import os
import signal

import torch
from lightning.pytorch import Callback
from torch import nn
from kindling.sweeps.executors.base import Executor
from kindling.tasks.measures import Tally
from kindling.training.loggers.base import RunLogger


def build(config, shape, classes):
    units = nn.Linear(shape[0], config.units)
    return nn.Sequential(units, nn.Softplus(), nn.Linear(config.units, classes))


def none(config, shape, classes):
    build(config, shape, classes)


class Detached(nn.Linear):
    def forward(self, x):
        return super().forward(x).detach()


def detached(config, shape, classes):
    return Detached(shape[0], classes)


def focal(outputs, labels):
    loss = torch.nn.functional.cross_entropy(outputs, labels, reduction="none")
    return (1 - (-loss).exp()) ** 2 * loss


def rate(config, lr, epoch, epochs):
    return lr / 2**epoch


ERRORS = Tally(
    lambda logits, labels: (logits.argmax(1) != labels).sum(-1),
    lambda total, samples: [count / samples for count in total.tolist()],
)


class Backwards(Executor):
    def __init__(self, execution, configs):
        self.slots = execution.slots or 2

    def run(self, tasks):
        super().run(tasks[::-1])


class Counter(Callback):
    def __init__(self):
        self.epochs = 0

    def on_train_epoch_end(self, trainer, module):
        self.epochs += 1
        module.log("counted", self.epochs)

    def state_dict(self):
        return {"epochs": self.epochs}

    def load_state_dict(self, state):
        self.epochs = state["epochs"]


def counter(config):
    return Counter()


class Lines(RunLogger):
    def __init__(self, config, values, run, seconds):
        super().__init__(config, values, run, seconds)
        self.file = (run.folder / "lines.txt").open("w")
        print("data.used", values["data.used"], file=self.file)

    def log_metrics(self, metrics, step):
        print(step, *sorted(metrics.items()), file=self.file, flush=True)

    def close(self, status):
        print(status, file=self.file)
        self.file.close()


calls = 0


def noise(pictures, generator):
    global calls
    calls += 1
    if calls == int(os.environ.get("KILLED_AT", "0")):
        os.kill(os.getpid(), signal.SIGKILL)
    return pictures + 0.5 * torch.randn(pictures.shape, generator=generator)
"""
POINTS = """
import torch
from kindling.data.sources.source import Source, Split

def open_source(config):
    x = torch.linspace(-1, 1, config.count)[:, None]
    split = Split(x, (x[:, 0] > 0).long())
    return Source("points", split, split, ("left", "right"))
"""
HELLO = '''"""Greets. More follows."""

def main():
    print("hello")
'''
SMALL = ("data=points", "data.count=80", "trainer=cpu", "trainer.max_epochs=3")


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder with an installed package `mine`, which Kindling does not know."""
    files = {
        "mine/extension.py": MODULE,
        "mine/points.py": POINTS,
        "mine/hello.py": HELLO,
        "mine/parts.py": PARTS,
        "mine/conf/data/points.yaml": "defaults: [_common]\nname: points\ncount: 60\n",
        "mine/conf/model/bent.yaml": "name: bent\nunits: 5 # the width of the only layer\n",
        "mine/conf/optimizer/rms.yaml": "name: rms\nlr: 0.01\nalpha: 0.9\n",
        "mine/conf/scheduler/halves.yaml": "name: halves\nwarmup_epochs: 0\n",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    return install(tmp_path, "mine.extension")


@pytest.mark.slow
def test_an_installed_extension_brings_a_data_set_and_a_command(installed: Path) -> None:
    wrong = python(installed, "-m", "kindling", "train", "data=point", "data.cout=1")
    assert wrong.returncode == 2
    assert "data=point: must be one of " in wrong.stderr
    assert "did you mean points?" in wrong.stderr
    assert "data.cout=1: unknown key; did you mean data.count?" in wrong.stderr
    done = python(installed, "-m", "kindling", "train", *SMALL, "hydra.run.dir=run")
    assert done.returncode == 0, done.stderr
    assert "points: 2 classes" in done.stdout
    again = python(installed, "-m", "kindling", "evaluate", "run")
    assert "on 80 test samples of points" in again.stdout, again.stderr
    assert python(installed, "-m", "kindling", "hello").stdout == "hello\n"
    shown = python(installed, "-m", "kindling", "--help").stdout
    assert "  demo       Serves a page on which you draw a digit" in shown
    assert "  hello      Greets\n" in shown


ALL = (
    "model=bent", "optimizer=rms", "scheduler=halves", "checkpoint.monitor=val/errors",
    "checkpoint.mode=min", "callbacks=[counter]", "task.loss=focal",
)  # fmt: skip


def command(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    done = python(folder, "-m", "kindling", *arguments)
    assert done.returncode == 0, done.stderr
    return done


def history(folder: Path) -> list[dict[str, str]]:
    return [*csv.DictReader((folder / "history.csv").read_text().splitlines())]


@pytest.mark.slow
def test_a_run_of_everything_that_an_extension_may_bring(installed: Path) -> None:
    command(installed, "train", *SMALL, *ALL, "hydra.run.dir=run")
    *_, last = rows = history(installed / "run")
    assert [float(row["lr"]) for row in rows[1:]] == [0.01, 0.005, 0.0025]
    assert [row["counted"] for row in rows] == ["", "1.0", "2.0", "3.0"]
    assert float(last["val/errors"]) == pytest.approx(1 - float(last["val/acc"]))
    result = json.loads((installed / "run" / "result.json").read_text())
    assert (result["parameters"], result["step"]) == (5 * 2 + 2 * 6, "autograd")
    assert (installed / "run/.hydra/extensions.yaml").read_text() == (
        "data=points: mine 1.0\nmodel=bent: mine 1.0\noptimizer=rms: mine 1.0\n"
        "scheduler=halves: mine 1.0\ntask.loss=focal: mine 1.0\n"
        "checkpoint.monitor=val/errors: mine 1.0\ncallbacks=counter: mine 1.0\n"
    )
    command(installed, "train", "data=digits", "trainer=cpu", "hydra.run.dir=other")
    assert not (installed / "other/.hydra/extensions.yaml").exists()


@pytest.mark.slow
def test_a_sweep_over_a_model_of_an_extension_has_the_results_of_single_runs(
    installed: Path,
) -> None:
    swept = ("-m", "hydra/launcher=fused", "optimizer.lr=0.1,0.2", "hydra.sweep.dir=sweep")
    told = command(installed, "train", *SMALL, "model=bent", *swept).stdout
    assert "vmap" in json.loads((installed / "sweep/0/result.json").read_text())["step"], told
    command(installed, "train", *SMALL, "model=bent", "optimizer.lr=0.2", "hydra.run.dir=run")
    alone, fused = (history(installed / name)[-1] for name in ("run", "sweep/1"))
    assert float(alone["val/loss"]) == pytest.approx(float(fused["val/loss"]), rel=1e-4)
    # An optimizer without a class for stacks, and callbacks, which follow one run.
    for choice, why in (("optimizer=rms", "trains one model"), ("callbacks=counter", "follow")):
        name = choice.partition("=")[0]
        last = ("optimizer.lr=0.1,0.2", f"hydra.sweep.dir={name}")
        told = command(
            installed, "train", *SMALL, "model=bent", choice, "-m", "hydra/launcher=fused", *last
        ).stdout
        assert why in told
        assert len(history(installed / name / "1")) == 4


@pytest.mark.slow
def test_a_loss_of_an_extension_trains_as_plain_torch(installed: Path) -> None:
    """In every way of a step that differentiates by autograd, and for networks of ours."""
    check = (
        "import torch; from torch import nn; from mine.parts import focal\n"
        "import kindling; from kindling.data.sources.catalogue import open_source\n"
        "from kindling.models import build_model\n"
        "def config(step): return kindling.compose('data=points', 'data.count=80', 'trainer=cpu',"
        " 'trainer.max_epochs=5', 'data.batch_size=80', 'data.val_fraction=null',"
        " 'task.loss=focal', f'trainer.step={step}', 'scheduler=none', 'model.activation=tanh')\n"
        "torch.manual_seed(0); own = build_model(config('auto').model, (1,), 2)\n"
        "optimizer = torch.optim.SGD(own.parameters(), config('auto').optimizer.lr)\n"
        "train = open_source(config('auto').data).train\n"
        "for _ in range(5):\n"
        "    optimizer.zero_grad(); focal(own(train.features), train.labels).mean().backward()\n"
        "    optimizer.step()\n"
        "for step in ('auto', 'autograd', 'vmap'):\n"
        "    run = kindling.fit(config(step), f'run-{step}')\n"
        "    found = torch.load(run.last_checkpoint, weights_only=True)['state_dict']\n"
        "    for (name, value), got in zip(own.state_dict().items(), found.values()):\n"
        "        assert torch.allclose(value, got, atol=1e-5), (step, name)\n"
        "    print(step, run.result['step'], run.result['step_reason'])\n"
    )
    done = python(installed, "-c", check)
    assert done.returncode == 0, done.stderr
    assert "the gradient of task.loss=focal is not written out" in done.stdout
    wrong = python(
        installed, "-m", "kindling", "train", *SMALL, "task.loss=focal", "trainer.step=native"
    )
    assert wrong.returncode == 2
    assert "trainer.step=native supports only cross_entropy" in wrong.stderr
    unknown = python(installed, "-m", "kindling", "train", *SMALL, "task.loss=foca")
    assert "must be one of cross_entropy, focal; did you mean focal?" in unknown.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("return outputs.sum()", "returns () for 2 samples, must return the loss of each, (2,)"),
        ("return 3.0", "returns float for 2 samples, must return the loss of each"),
        ("return outputs.log().sum(1)", "must return finite numbers"),
        ("return outputs.detach().sum(1)", "no gradient reaches the outputs"),
        ("return outputs[:, 7]", "fails for 2 samples (IndexError: index 7 is out of bounds"),
    ],
)
def test_a_loss_that_cannot_be_used_is_one_line(installed: Path, body: str, told: str) -> None:
    file = installed / "mine/parts.py"
    text = file.read_text()
    file.write_text(
        text.replace("    loss = torch.nn.functional.cross", f"    {body}\n    loss = t.c")
    )
    done = python(
        installed, "-m", "kindling", "train", *SMALL, "task.loss=focal", "hydra.run.dir=run"
    )
    assert done.returncode == 2
    assert "task.loss=focal" in done.stderr
    assert "mine.parts:focal" in done.stderr
    assert told in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_sweep_by_an_executor_of_an_extension(installed: Path) -> None:
    """Which trains the last stack first; the stacks are those of its slots."""
    chosen = ("hydra/launcher=fused", "hydra.launcher.executor=backwards", "hydra.sweep.dir=sweep")
    command(installed, "train", *SMALL, "-m", *chosen, "optimizer.lr=0.1,0.2,0.3")
    ended = [(installed / f"sweep/{n}/result.json").stat().st_mtime_ns for n in range(3)]
    assert [history(installed / f"sweep/{n}")[-1]["epoch"] for n in range(3)] == ["3"] * 3
    assert ended[1] < ended[0] or ended[2] < ended[0]
    near = ("hydra/launcher=fused", "hydra.launcher.executor=backward", "seed=1,2")
    wrong = python(installed, "-m", "kindling", "train", *SMALL, "-m", *near)
    assert "must be one of local, slurm, ray, backwards; did you mean backwards?" in wrong.stderr


@pytest.mark.slow
def test_a_search_has_the_parts_of_an_extension(installed: Path) -> None:
    space = ("optimizer.lr=interval(0.01,0.1)", "search.trials=2", "search.folder=found")
    command(installed, "search", *SMALL, *ALL, *space)
    for number in range(2):
        *_, last = history(installed / "found" / str(number))
        assert (last["counted"], last["val/errors"] != "") == ("3.0", True)


@pytest.mark.slow
def test_a_killed_run_with_an_extension_ends_as_if_it_had_not_been_killed(installed: Path) -> None:
    common = (*SMALL, *ALL, "checkpoint.every_n_epochs=1")
    command(installed, "train", *common, "hydra.run.dir=whole")
    command(installed, "train", *common, "trainer.max_epochs=2", "hydra.run.dir=half")
    command(installed, "train", "resume=half", "trainer.max_epochs=3")
    assert [*map(clean, history(installed / "half"))] == [*map(clean, history(installed / "whole"))]


def clean(row: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in row.items() if name != "seconds"}


@pytest.mark.slow
def test_a_run_whose_extension_is_not_installed_says_what_it_needs(installed: Path) -> None:
    command(installed, "train", *SMALL, *ALL, "hydra.run.dir=run")
    (installed / "mine-1.0.dist-info/entry_points.txt").unlink()
    for arguments in (("evaluate", "run"), ("train", "resume=run", "trainer.max_epochs=4")):
        done = python(installed, "-m", "kindling", *arguments)
        assert done.returncode == 2
        assert (
            "model=bent comes from the package mine 1.0, which is not installed; if you trust its "
            "source, install the package"
        ) in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_another_version_of_an_extension_is_told(installed: Path) -> None:
    command(installed, "train", *SMALL, "model=bent", "scheduler=none", "hydra.run.dir=run")
    old = installed / "mine-1.0.dist-info"
    (old / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.1\n")
    old.rename(installed / "mine-1.1.dist-info")
    done = command(installed, "train", "resume=run", "trainer.max_epochs=4")
    assert "model=bent came from mine 1.0, and comes from mine 1.1 now" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import nothing_of_this_name", "ModuleNotFoundError: No module named"),
        ("x = 1 / 0", "ZeroDivisionError: division by zero"),
        (
            MODULE.replace("registry.register_model(Bent", "registry.register_model(Bent, 'a:b')\n"
                           "registry.register_model(Bent"),
            "mine 1.0 registers the model bent, as mine 1.0 does; choose another name",
        ),
        (MODULE.replace('"bent"', '"mlp"'), "mine 1.0 registers model=mlp, which Kindling has"),
        (MODULE.replace('"errors"', '"acc"'), "mine 1.0 registers the measure acc, which"),
        (MODULE.replace('"lines"', '"wandb"'), "mine 1.0 registers the logger wandb, which"),
        (
            MODULE.replace('"focal"', '"cross_entropy"'),
            "mine 1.0 registers the loss cross_entropy, which Kindling has",
        ),
        ("def f(:", "SyntaxError: invalid syntax"),
        ("raise SystemExit(0)", "SystemExit: 0"),
        (MODULE.replace('Literal["bent"]', "str"), "Bent, whose key name has not one value"),
        (MODULE.replace('Literal["bent"]', 'Literal["a", "b"]'), "name has not one value"),
        (MODULE.replace('"bent"', '"a b=c"'), "the model 'a b=c'; a name has a letter, then"),
        (MODULE.replace('"mine.parts:ERRORS", ', ""), "the measure errors without a tally"),
        (
            "from kindling.config import registry\nregistry.register_pictures('whole', 'a')",
            "mine 1.0 registers the pictures whole a second time",
        ),
    ],
    ids=["import", "error", "twice", "ours", "measure", "logger", "loss", "syntax", "exit",
         "no name", "two names", "odd name", "no tally", "reader"],
)  # fmt: skip
def test_a_faulty_extension_is_one_line_that_names_it(
    text: str, told: str, installed: Path
) -> None:
    (installed / "mine/extension.py").write_text(text)
    # A command of an extension needs no configuration, so it does not ask for our own names.
    other = [("hello",)] if "which Kindling has" not in told else []
    for arguments in (("train", "data=digits"), ("evaluate", "run"), *other):
        done = python(installed, "-m", "kindling", *arguments)
        assert done.returncode == 2
        assert told in done.stderr
        assert "Traceback" not in done.stderr
        if "which Kindling has" not in told or "registers the" in told:
            assert f"{installed / 'mine/extension.py'}:" in done.stderr
        if told.startswith(
            ("ModuleNotFoundError", "ZeroDivisionError", "SyntaxError", "SystemExit")
        ):
            assert f"{installed / 'mine/extension.py'}:1: " in done.stderr
            assert "pip uninstall mine" in done.stderr


def test_a_fault_lies_in_the_extension_and_not_in_an_environment_in_its_folder() -> None:
    library = compile("1 / 0", "/home/mine/.venv/lib/site-packages/torch/nn.py", "exec")
    own = compile("\nexec(library)", "/home/mine/src/mine/parts.py", "exec")
    with pytest.raises(ZeroDivisionError) as caught:
        exec(own, {"library": library})
    told = registry.place_of(caught.value, "mine.parts:build")
    assert told == "/home/mine/src/mine/parts.py:2: "


def test_a_command_of_ours_is_not_replaced(installed: Path) -> None:
    file = installed / "mine/extension.py"
    file.write_text(file.read_text().replace('"hello"', '"train"'))
    done = python(installed, "-m", "kindling", "hello")
    assert done.returncode == 2
    assert "an extension brings the command train, which Kindling has" in done.stderr
    assert python(installed, "-m", "kindling", "train", "--help").returncode == 0


@pytest.mark.slow
def test_a_key_without_a_default_must_be_typed(installed: Path) -> None:
    (installed / "mine/conf/model/bent.yaml").write_text("name: bent\n")
    done = python(installed, "-m", "kindling", "train", *SMALL, "model=bent")
    assert done.returncode == 2
    assert "model.units: is missing" in done.stderr
    command(installed, "train", *SMALL, "model=bent", "model.units=3", "hydra.run.dir=run")
    assert json.loads((installed / "run" / "result.json").read_text())["parameters"] == 14


@pytest.mark.slow
def test_the_module_of_the_documentation_registers_what_it_says(installed: Path) -> None:
    page = (ROOT / "docs" / "extending.md").read_text()
    module, *_ = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    (installed / "mine/extension.py").write_text(
        f"{module}\nregistry.register_logger('lines', 'mine.logger:Lines')\n"
        "registry.register_augmentation('noise', 'mine.augmentation:noise')\n"
    )
    files = {"model/mine": "units: 5", "optimizer/rmsprop": "lr: 0.1", "scheduler/halves": ""}
    for name, keys in files.items():
        file = installed / "mine" / "conf" / f"{name}.yaml"
        file.write_text(f"name: {file.stem}\n{keys}\n")
    flat = PARTS.replace("shape[0]", "784").replace("Sequential(", "Sequential(nn.Flatten(), ")
    counter = PARTS.replace("def build", "def of_model").replace("def counter", "def build")
    texts = {
        "model": flat,
        "schedule": PARTS,
        "measures": PARTS,
        "callback": counter,
        "loss": PARTS,
    }
    own = re.findall(r"^```python\n# mine/(logger|augmentation)\.py\n(.*?)^```$", page, re.M | re.S)
    assert [name for name, _ in own] == ["logger", "augmentation"]
    texts |= dict(own)
    (installed / "mine/conf/logger").mkdir()
    (installed / "mine/conf/logger/lines.yaml").write_text("own: [lines]\n")
    for name, text in texts.items():
        (installed / "mine" / f"{name}.py").write_text(text)
    choices = (
        "model=mine", "optimizer=rmsprop", "scheduler=halves", "scheduler.warmup_epochs=1",
        "checkpoint.monitor=val/errors", "checkpoint.mode=min", "callbacks=[norm]",
        "task.loss=focal", "logger=[tensorboard,lines]", "augmentation.own=[noise]",
    )  # fmt: skip
    common = ("data=digits", "trainer=cpu", "trainer.max_epochs=2", "hydra.run.dir=run")
    command(installed, "train", *common, *choices)
    values, *rows = map(json.loads, (installed / "run/lines.jsonl").read_text().splitlines())
    assert (values["data.name"], values["augmentation.own"]) == ("digits", "[noise]")
    assert [row["val/loss"] for row in rows[:3]] == [
        float(row["val/loss"]) for row in history(installed / "run")
    ]
    assert [*(installed / "run/tensorboard").iterdir()] != []
    assert [*history(installed / "run")[0]][-2:] == ["val/errors", "counted"]


@pytest.mark.slow
def test_the_measure_of_the_documentation(installed: Path) -> None:
    page = (ROOT / "docs" / "extending.md").read_text()
    section = page.partition("## A measure of your own")[2].partition("\n## ")[0]
    for name, text in re.findall(r"^```python\n# (mine/\S+)\n(.*?)^```$", section, re.M | re.S):
        (installed / name).write_text(text)
    (words,) = re.findall(r"^```sh\nkindling train (.*)\n```$", section, re.M)
    common = ("trainer=cpu", "trainer.max_epochs=2", "hydra.run.dir=run")
    command(installed, "train", *words.split(), *common)
    for row in history(installed / "run"):
        assert float(row["val/misses"]) == pytest.approx(1 - float(row["val/acc"]))
    wrong = (installed / "mine/extension.py").read_text().replace(":MISSES", ":NONE")
    (installed / "mine/extension.py").write_text(wrong)
    done = python(installed, "-m", "kindling", "train", *words.split(), *common[:2])
    assert done.returncode == 2
    assert "measure misses: mine.measures:NONE cannot be imported (" in done.stderr
    assert "Traceback" not in done.stderr


PICTURES = (
    "data=digits", "trainer=cpu", "trainer.max_epochs=3", "model.hidden_sizes=16",
    "checkpoint.every_n_steps=5", "trainer.steps_per_call=5", "trainer.limit_train_batches=10",
)  # fmt: skip


def rows_of(folder: Path) -> list[str]:
    """What the logger `lines` must hold: each row of the history once, in its order."""
    rows = []
    for row in history(folder):
        step = row.pop("step")
        found = sorted((name, float(value)) for name, value in row.items() if value)
        rows.append(" ".join([step, *map(str, found)]))
    return rows


@pytest.mark.slow
def test_a_logger_of_an_extension_holds_each_row_once_also_after_kills(installed: Path) -> None:
    chosen = (*PICTURES, "logger.own=[lines,lines]", "augmentation.own=[noise]")
    command(installed, "train", *chosen, "hydra.run.dir=whole")
    lines = (installed / "whole/lines.txt").read_text().splitlines()
    assert lines[0] == "data.used digits"
    assert lines[1:-2] == rows_of(installed / "whole")
    result = json.loads((installed / "whole/result.json").read_text())
    assert f"('test/acc', {result['test/acc']})" in lines[-2]
    assert lines[-1] == "finished"
    assert (installed / "whole/.hydra/extensions.yaml").read_text() == (
        "augmentation.own=noise: mine 1.0\nlogger.own=lines: mine 1.0\n"
    )
    # Two kills within epochs, by the augmentation. Each process calls it twice before it trains.
    for killed_at, arguments in ((17, (*chosen, "hydra.run.dir=killed")), (13, ("resume=killed",))):
        done = python(installed, "-m", "kindling", "train", *arguments, killed_at=killed_at)
        assert done.returncode == -signal.SIGKILL, done.stderr
    command(installed, "train", "resume=killed")
    assert (installed / "killed/lines.txt").read_text().splitlines()[1:-2] == rows_of(
        installed / "killed"
    )
    assert [*map(clean, history(installed / "killed"))] == [
        *map(clean, history(installed / "whole"))
    ]
    check = (
        "import torch\n"
        "a, b = (torch.load(f'{run}/checkpoints/last.ckpt', weights_only=True)['state_dict']"
        " for run in ('whole', 'killed'))\n"
        "assert all(torch.equal(a[name], b[name]) for name in a), a\n"
    )
    assert python(installed, "-c", check).returncode == 0


@pytest.mark.parametrize(
    ("old", "new", "rc", "told"),
    [
        ("self.file = (", "1 / 0; (", 2,
         "logger.own=lines: mine.parts:Lines cannot begin (ZeroDivisionError: division by zero)"),
        ("class Lines(RunLogger):", "class Lines(dict):", 2, "mine.parts:Lines cannot begin ("),
        ("counter(config):", "Lines(*_):", 2, "mine.parts:Lines returns Counter, must return"),
        ("print(step, *s", "(1 / 0)(", 0, "logger=lines cannot write (division by zero); it"),
        ("print(status,", "(1 / 0)(", 0, "logger=lines cannot close (division by zero); it"),
    ],
    ids=["begin", "class", "returned", "write", "close"],
)  # fmt: skip
def test_a_logger_that_fails(old: str, new: str, rc: int, told: str, installed: Path) -> None:
    """Before training it ends the run with one line; later it is left out, and the run goes on."""
    file = installed / "mine/parts.py"
    text = file.read_text()
    renamed = text.replace("class Lines", "class _") if "Lines(*_)" in new else text
    file.write_text(renamed.replace(old, new))
    chosen = (*SMALL, "logger.own=[lines]", "hydra.run.dir=run")
    done = python(installed, "-m", "kindling", "train", *chosen)
    assert done.returncode == rc, done.stderr
    assert told in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    status = json.loads((installed / "run/result.json").read_text())["status"]
    assert status == ("failed" if rc else "finished")


@pytest.mark.slow
def test_trials_with_a_logger_of_an_extension_train_alone(installed: Path) -> None:
    swept = ("-m", "hydra/launcher=fused", "optimizer.lr=0.1,0.2", "hydra.sweep.dir=sweep")
    told = command(installed, "train", *SMALL, "logger.own=[lines]", *swept).stdout
    assert "logger=lines follows one run" in told
    for number in range(2):
        lines = (installed / f"sweep/{number}/lines.txt").read_text().splitlines()
        assert lines[1:-2] == rows_of(installed / f"sweep/{number}")


@pytest.mark.slow
def test_a_lightning_module_has_the_logger_and_the_augmentation_of_an_extension(
    installed: Path,
) -> None:
    page = (ROOT / "docs" / "extending.md").read_text()
    _, register, module, *_ = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    text = register[: register.index("registry.register_configs")].partition("\n")[2]
    with (installed / "mine/extension.py").open("a") as file:
        file.write(text)
    (installed / "mine/module.py").write_text(module)
    (installed / "mine/conf/model/net.yaml").write_text("name: net\nunits: 8\n")
    common = (*PICTURES[:3], "model=net", "optimizer=adam", "logger.own=[lines]")
    own = "augmentation.own=[noise]"
    for name, more in (("plain", ()), ("whole", (own,)), ("half", (own, "trainer.max_epochs=2"))):
        command(installed, "train", *common, *more, f"hydra.run.dir={name}")
    command(installed, "train", "resume=half", "trainer.max_epochs=3")
    rows = {name: [*map(clean, history(installed / name))] for name in ("plain", "whole", "half")}
    assert rows["half"] == rows["whole"] != rows["plain"]
    for name in ("whole", "half"):
        lines = (installed / name / "lines.txt").read_text().splitlines()
        assert lines[1 : 1 + len(rows[name])] == rows_of(installed / name)


def test_an_augmentation_of_an_extension_changes_each_batch_by_its_own_numbers(
    installed: Path,
) -> None:
    """Plain and after a shift, in two orders of a stack, and for the copies of an evaluation."""
    check = (
        "import torch, kindling\n"
        "from kindling.data.augmentation import OWN_STREAM, Augmentation\n"
        "from kindling.data.loader import Block, random_stream\n"
        "def build(*texts, seeds=(3, 4)):\n"
        "    config = kindling.compose('data=digits', *texts).augmentation\n"
        "    return Augmentation(config, (1, 8, 8), seeds, 5, 2)\n"
        "def changed(augmentation, pictures, *place):\n"
        "    block = Block(pictures.clone(), torch.zeros(2, 2, 5))\n"
        "    augmentation(block, *place); return block.features\n"
        "pictures = torch.rand(2, 2, 5, 1, 8, 8)\n"
        "shift, own = 'augmentation.shift=2', 'augmentation.own=[noise,noise]'\n"
        "for texts, before in (((own,), pictures), ((own, shift),"
        " changed(build(shift), pictures, 6, 10))):\n"
        "    found = changed(build(*texts), pictures, 6, 10)\n"
        "    for batch in range(2):\n"
        "        for order, seed in enumerate((3, 4)):\n"
        "            expected = before[batch, order].clone()\n"
        "            for place in range(2):\n"
        "                random = random_stream(seed, 6, 10 + batch, 0, kind=[OWN_STREAM, place])\n"
        "                expected += 0.5 * torch.randn(expected.shape, generator=random)\n"
        "            assert torch.equal(found[batch, order], expected)\n"
        "    alone = Block(pictures[:, :1].clone(), torch.zeros(2, 1, 5))\n"
        "    build(*texts, seeds=[3])(alone, 6, 10)\n"
        "    assert torch.equal(alone.features[:, 0], found[:, 0])\n"
        "    other = Block(pictures.clone(), torch.zeros(2, 2, 5))\n"
        "    build(*texts)(other, 6, 10, 1)\n"
        "    assert not torch.equal(other.features, found)\n"
    )
    done = python(installed, "-c", check)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_stack_and_the_copies_of_an_augmentation_of_an_extension(installed: Path) -> None:
    chosen = (*PICTURES, "augmentation.own=[noise]")
    swept = ("-m", "hydra/launcher=fused", "seed=1,2", "hydra.sweep.dir=sweep")
    command(installed, "train", *chosen, *swept)
    command(installed, "train", *chosen, "seed=2", "hydra.run.dir=run")
    alone, fused = (json.loads((installed / r / "result.json").read_text())
                    for r in ("run", "sweep/1"))  # fmt: skip
    assert fused["stacked"] == 2
    a, b = (history(installed / name)[-1] for name in ("run", "sweep/1"))
    assert float(a["val/loss"]) == pytest.approx(float(b["val/loss"]), rel=1e-4)
    assert alone["test/acc"] == pytest.approx(fused["test/acc"], abs=0.01)
    # A sample has the same copies in any company.
    check = (
        "import torch; from kindling.records.loading import open_trained\n"
        "from dataclasses import replace\n"
        "from kindling.inference.logits import _averaged\n"
        "from pathlib import Path\n"
        "answer = _averaged(replace(open_trained(Path('run')), copies=2))\n"
        "pictures = torch.rand(6, 1, 28, 28)\n"
        "together, alone = answer(pictures), torch.cat([*map(answer, pictures.split(1))])\n"
        "assert torch.allclose(together, alone, atol=1e-5), (together - alone).abs().max()\n"
    )
    done = python(installed, "-c", check)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("return pictures + torch.randn(pictures.shape)", "draws numbers that are not of its gen"),
        ("return pictures.flatten(1)", "returns (8, 784) for pictures (8, 1, 28, 28), must return"),
        ("pictures *= 2", "returns NoneType for pictures (8, 1, 28, 28), must return the changed"),
        ("return pictures.log() * float('nan')", "must return finite numbers"),
        ("return pictures[9]", "fails for pictures (8, 1, 28, 28) (IndexError: index 9 is out of"),
    ],
)
def test_an_augmentation_that_cannot_be_used_is_one_line(
    installed: Path, body: str, told: str
) -> None:
    file = installed / "mine/parts.py"
    file.write_text(file.read_text().replace("    return pictures + 0.5", f"    {body}\n    0.5"))
    chosen = ("augmentation.own=[noise]", "hydra.run.dir=run")
    done = python(installed, "-m", "kindling", "train", *PICTURES, *chosen)
    assert done.returncode == 2
    assert "augmentation.own=noise: mine.parts:noise" in done.stderr
    assert told in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_wrong_names_of_loggers_and_augmentations_are_told_before_torch_is_imported(
    installed: Path,
) -> None:
    with (installed / "mine/extension.py").open("a") as file:
        file.write("registry.register_logger('others', 'mine.parts:Lines')\n")
        file.write("registry.register_augmentation('blur', 'mine.parts:noise')\n")
    wrong = ("logger.own=[line]", "augmentation.own=[blur,nois]")
    done = python(
        installed, "-X", "importtime", "-m", "kindling", "train", *SMALL, *wrong, cold=True
    )
    assert done.returncode == 2
    assert "logger.own=[line]: must be one of lines, others; did you mean lines?" in done.stderr
    assert "[blur,nois]: must be one of blur, noise; did you mean noise?" in done.stderr
    assert not re.search(r"\| +torch$", done.stderr, re.M)
    # The data of `points` are not pictures; the annealing has nothing to weaken.
    for texts, told in (
        (("data=points",), "augmentation.own=[noise] changes pictures, and data=points has"),
        (("data=digits", "augmentation.anneal=0.5"), "augmentation.anneal=0.5 has no use without"),
    ):
        done = python(installed, "-m", "kindling", "train", *texts, "augmentation.own=[noise]")
        assert done.returncode == 2
        assert told in done.stderr


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("mine.nothing:build", "model bent: mine.nothing:build cannot be imported (No module"),
        ("mine.parts:none", "model=bent: its function returned a NoneType, must return a torch"),
        ("mine.parts:detached", "model=bent: no gradient reaches its weights; leave torch.no_grad"),
        ("mine.parts:nothing", "model bent: mine.parts:nothing cannot be imported (module 'mine"),
    ],
)
def test_code_that_is_not_there_is_named(where: str, told: str, installed: Path) -> None:
    file = installed / "mine/extension.py"
    file.write_text(file.read_text().replace("mine.parts:build", where))
    done = python(installed, "-m", "kindling", "train", *SMALL, "model=bent")
    assert done.returncode == 2, done.stderr
    assert told in done.stderr


@pytest.mark.parametrize(
    "override",
    [
        "model=mine.parts:build", "model=mine/parts", "+model._target_=os.system",
        "callbacks=[os.system]", "logger.own=[mine.parts:Lines]", "augmentation.own=[os.system]",
        "callbacks=[mine.parts:counter]", "+callbacks=[nothing]",
        "checkpoint.monitor=val/mine.parts", "scheduler=mine.parts:rate",
    ],
)  # fmt: skip
def test_a_configuration_names_what_is_registered_and_nothing_else(
    override: str, installed: Path
) -> None:
    done = python(installed, "-m", "kindling", "train", *SMALL, override)
    assert done.returncode == 2
    assert "1 fault" in done.stderr
    assert "Traceback" not in done.stderr
    assert not [*installed.glob("runs/*")]


@pytest.mark.parametrize(
    "said",
    [
        "model=bent: mine 1.0; rm -rf ~", "model=bent: [1]", "[a]", "1: 2", "model=bent: {a: b}",
        "model=bent: !!python/object/apply:os.system [ls]", "\x00", "",
    ],
)  # fmt: skip
def test_what_a_stranger_says_of_extensions_is_not_believed(said: str, installed: Path) -> None:
    command(installed, "train", *SMALL, "model=bent", "hydra.run.dir=run")
    (installed / "mine-1.0.dist-info/entry_points.txt").unlink()
    (installed / "run/.hydra/extensions.yaml").write_text(said)
    done = python(installed, "-m", "kindling", "train", "resume=run", "trainer.max_epochs=4")
    assert done.returncode == 2
    assert "rm -rf" not in done.stderr
    assert "Traceback" not in done.stderr


def test_help_and_completion_know_what_an_extension_brings(installed: Path) -> None:
    told = command(installed, "train", "model=bent", "--help").stdout
    assert "the width of" in told
    for name in ("bent", "points", "rms", "halves", "val/errors", "counter", "lines", "noise"):
        assert name in told, name


def test_the_own_extension_is_the_one_of_the_wheel() -> None:
    """A checkout that is not installed has no entry points."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert [*project["entry-points"][registry.GROUP].values()] == [registry.OWN]


def test_what_the_digits_bring() -> None:
    assert str(compose("data=mnist_and_none").data.name) == "mnist_and_none"
    assert "mnist_and_none" in options("data")
    assert "digits_or_none" in options("experiment")
    assert FOLDERS["mnist_and_none"] == FOLDERS["mnist"]
    assert reader_of(compose("data=mnist").data.pictures) is reader
    assert reader_of(compose("data=kmnist").data.pictures) is not reader


def test_an_absent_reader_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(registry.PLACES, ("pictures", "drawing"))
    with pytest.raises(InputError, match=r"^no installed extension reads pictures as drawing$"):
        reader_of("drawing")


def test_registering_does_not_import_torch() -> None:
    code = "import sys, kindling.config.schema as s; print('torch' in sys.modules, s.Data)"
    done = python(ROOT, "-c", code, cold=True)
    assert done.stdout.startswith("False ")
    assert "MnistAndNone" in done.stdout


@pytest.mark.slow
def test_another_hydra_application_gets_nothing(tmp_path: Path) -> None:
    """Hydra asks the plugins of an environment in every application."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text("a: 1\n")
    (tmp_path / "app.py").write_text(
        "import sys, hydra\n"
        "@hydra.main(version_base=None, config_path='conf', config_name='config')\n"
        "def main(config): print(config, 'kindling.config.registry' in sys.modules)\n"
        "main()\n"
    )
    assert python(tmp_path, "app.py", cold=True).stdout == "{'a': 1} False\n"
    # As a group of the extension, the word would become the data set's keys.
    plain = python(tmp_path, "app.py", "+data=mnist_and_none", cold=True)
    assert plain.stdout == "{'a': 1, 'data': 'mnist_and_none'} False\n"
