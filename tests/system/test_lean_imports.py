"""Lightning without the libraries that few runs use: what is not imported, and that all of it is
there when somebody asks. Each test needs a process of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kindling.records.folder import Run
from tests.helpers.commands import SMALL

# What Lightning and torch import without need. If one of them is back, a command is up to three
# times as slow to start.
HEAVY = {
    "IPython", "matplotlib", "onnx", "optuna", "pandas", "plotly", "scipy", "sklearn", "sympy",
    "torch._dynamo", "torch._inductor", "torch.distributed.fsdp", "torch.distributed.tensor",
    "torch.onnx", "torch.utils.flop_counter", "torch.utils.tensorboard", "torchmetrics.functional",
    "torchvision",
}  # fmt: skip


def imported(folder: Path, *arguments: str) -> set[str]:
    """The modules that a process of Python imported."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return set(re.findall(r"^import time: +\d+ \| +\d+ \| +(\S+)$", done.stderr, re.M))


def told(program: str) -> str:
    """What a program prints, in a process that has imported nothing."""
    # Lightning's own Trainer refuses some jobs of Slurm.
    environment = {key: value for key, value in os.environ.items() if "SLURM" not in key}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("arguments", "used"),
    [
        ([], set()),
        (["model.dropout=0.3", "optimizer=adamw", "scheduler=cosine", "logger=none"], set()),
        (["trainer.step=closed_form", "trainer.ema_decay=0.9"], set()),
        pytest.param(  # by its report
            ["-m", "optimizer.lr=0.1,0.2"], {"matplotlib"}, marks=pytest.mark.slow
        ),
        (["model=cnn", "trainer.max_epochs=1", "optimizer=adam"], set()),
    ],
    ids=["a run", "a recipe", "closed form", "a sweep", "autograd"],
)
def test_training_imports_no_more_than_it_uses(
    arguments: list[str], used: set[str], tmp_path: Path
) -> None:
    found = imported(tmp_path, "-m", "src.train", *SMALL, *arguments)
    assert {"torch", "lightning.pytorch", "torchmetrics.metric"} <= found
    assert "torch.distributed.nn.functional" in found  # before a process group; ranks/processes.py
    assert found & HEAVY == used
    assert len(found) < 2_100 or used


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "used"), [("evaluate", set()), ("report", {"matplotlib"}), ("runs", set())]
)
def test_commands_import_no_more_than_they_use(
    command: str, used: set[str], finished: Run, tmp_path: Path
) -> None:
    found = imported(tmp_path, "-m", f"src.{command}", str(finished.folder))
    assert found & HEAVY == used
    assert ("torch" in found) == (command != "runs")
    assert "lightning" not in found


@pytest.mark.slow
def test_torchmetrics_is_whole_when_it_is_asked_for() -> None:
    program = """
import sys, kindling, lightning.pytorch
import torchmetrics, torch
assert "torchmetrics.functional" not in sys.modules
from torchmetrics import Metric, MetricCollection, __version__
assert "torchmetrics.functional" not in sys.modules
accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=3)
print(float(accuracy(torch.tensor([0, 1, 2, 2]), torch.tensor([0, 1, 1, 2]))))
assert isinstance(accuracy, Metric) and isinstance(accuracy, torchmetrics.Metric)
names = {}
exec("from torchmetrics import *", names)
assert {"AUROC", "MeanMetric", "functional"} <= {*names} & {*dir(torchmetrics)}
"""
    assert told(program) == "0.75"


@pytest.mark.slow
def test_going_through_all_modules_imports_nothing() -> None:
    """As unittest does, to find warnings that were given before."""
    program = """
import sys, unittest, warnings, kindling, lightning.pytorch, torchmetrics
with unittest.TestCase().assertWarns(UserWarning):
    warnings.warn("of this test")
print("torchmetrics.functional" in sys.modules, torchmetrics.__license__)
"""
    assert told(program) == "False Apache-2.0"


@pytest.mark.slow
@pytest.mark.parametrize("first", ["", "from torchmetrics.utilities.plot import plot_curve"])
def test_a_metric_can_be_plotted(first: str) -> None:
    program = f"""
import kindling, lightning.pytorch, matplotlib
matplotlib.use("agg")
{first}
from torchmetrics.aggregation import MeanMetric
mean = MeanMetric()
mean.update(3.0)
figure, axes = mean.plot()
print(axes.lines[0].get_ydata())
"""
    assert told(program) == "[3.]"


@pytest.mark.slow
def test_a_compiled_module_is_one_to_lightning() -> None:
    program = """
import kindling, torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.compile import OptimizedModule, to_uncompiled
from lightning.pytorch.utilities.model_summary.model_summary import FlopCounterMode

module = LightningModule()
assert not isinstance(module, OptimizedModule)
compiled = torch.compile(module, backend="eager")
assert isinstance(compiled, OptimizedModule)
assert to_uncompiled(compiled) is module
with FlopCounterMode(display=False) as counter:
    torch.ones(2, 3) @ torch.ones(3, 4)
print(counter.get_total_flops())
"""
    assert told(program) == "48"


@pytest.mark.slow
def test_a_compiled_training_step_logs_and_steps_as_without_the_compiler() -> None:
    program = """
import sys, warnings
import kindling, torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")  # Lightning's about few workers and an unknown step

class Line(LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def training_step(self, batch, number):
        loss = ((self.weight - batch[0]) ** 2).sum()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.25)

def trained(compiles):
    module = Line()
    trainer = Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )
    data = DataLoader(TensorDataset(torch.ones(1)))
    trainer.fit(torch.compile(module, backend="eager") if compiles else module, data)
    return float(module.weight), float(trainer.callback_metrics["loss"])

print(trained(False), trained(True), "torch._dynamo" in sys.modules)
"""
    assert told(program) == "(0.75, 0.25) (0.75, 0.25) True"


@pytest.mark.slow
def test_optimizers_take_the_same_steps_without_and_with_the_compiler() -> None:
    """Also as a part of a compiled function, with hooks, closures and differentiable steps."""
    program = """
import sys, warnings, kindling, lightning.pytorch, torch
warnings.simplefilter("ignore")
KINDS = [
    kind for kind in vars(torch.optim).values()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    and kind not in (torch.optim.Optimizer, torch.optim.SparseAdam)
]

def trained(kind, compiles=False, **settings):
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(4, 3))
    calls = []
    optimizer = kind([weight], lr=0.1, **settings)
    optimizer.register_step_post_hook(lambda *_: calls.append(torch.is_grad_enabled()))

    def closure():
        optimizer.zero_grad()
        loss = (weight ** 2).sum()
        loss.backward()
        return loss

    step = torch.compile(optimizer.step, backend="eager") if compiles else optimizer.step
    found = [float(closure() if compiles else step(closure)) for _ in range(3)]
    for _ in range(3) if compiles else ():
        closure()
        step()
    return weight.detach().tolist(), found, calls

before = {kind: trained(kind) for kind in KINDS}
assert "torch._dynamo" not in sys.modules
torch.manual_seed(0)
weight = torch.nn.Parameter(torch.randn(4, 3))
copy = weight.clone()
copy.grad = torch.ones(4, 3)
torch.optim.SGD([copy], 0.1, differentiable=True).step()
assert copy.requires_grad and copy.equal(weight - 0.1)
assert torch.is_grad_enabled()
import torch._dynamo
assert {kind: trained(kind) for kind in KINDS} == before
compiled = trained(torch.optim.SGD, compiles=True)
assert compiled[0] == before[torch.optim.SGD][0]
print(len(KINDS) > 10, "torch._dynamo" in sys.modules)
"""
    assert told(program) == "True True"


@pytest.mark.slow
def test_lightning_that_was_imported_before_stays_as_it_is() -> None:
    program = """
import sys, lightning
before = {*sys.modules}
import kindling
assert "torch._dynamo.utils" in before
assert not any("Lean" in repr(each) for each in sys.meta_path)
print(type(sys.modules["torchmetrics"]).__name__)
"""
    assert told(program) == "module"


@pytest.mark.slow
def test_lightning_is_imported_whole_where_a_stand_in_fails() -> None:
    program = """
import sys, kindling
from kindling.system import lean_imports

def fail():
    __import__("torchmetrics.utilities")
    raise AttributeError("of another version")

lean_imports.import_metrics = fail
import lightning.pytorch as pl
import torchmetrics
from lightning.pytorch.core.module import Metric
assert Metric is torchmetrics.Metric and "torch._dynamo.utils" in sys.modules
print(pl.Trainer.__name__)
"""
    assert told(program) == "Trainer"


@pytest.mark.slow
def test_the_loader_of_lightning_is_its_own() -> None:
    """Python's tools ask it for the source."""
    program = """
import inspect, kindling, lightning
print(type(lightning.__loader__).__name__, lightning.__spec__.loader is lightning.__loader__)
assert "Trainer" in inspect.getsource(lightning)
"""
    assert told(program) == "SourceFileLoader True"
