"""A new family with its own closed form is one file, a section and a YAML."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.commands import ROOT

FAMILY = '''
"""Logistic regression of inputs that are multiplied by learned factors."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from kindling.config import schema
from kindling.models.closed_form import (
    ClosedForm, SegmentBatch, StackedParameters, UseGradient, stack_linear, stack_tensors
)


def build(config: schema.Scaled, shape: Sequence[int], classes: int) -> "Scaled":
    return Scaled(math.prod(shape), classes, config.initial)


class ScaledClosedForm(ClosedForm):
    def stack(self, models: Sequence[nn.Module]) -> Sequence[StackedParameters]:
        own = models[0].factors
        if len(models) > 1:
            own = nn.Parameter(stack_tensors([model.factors for model in models]))
        self.factors = StackedParameters([own], own.data.view(len(models), -1, 1), None)
        self.output = stack_linear([model.output for model in models], len(models))
        self.classes = models[0].output.out_features
        return [self.factors, self.output]

    def forward(self, features: Tensor) -> Tensor:
        inputs = self.output.shaped(self.factors.weight * features.flatten(1).mT)
        return self.output.forward(inputs).view(len(self.trials), self.classes, -1)

    def differentiate(self, batch: SegmentBatch, use: UseGradient) -> None:
        features, logits = batch.features, batch.logits
        trials, batches = len(self.trials), len(self.batches)
        own = features.flatten(2).repeat_interleave(trials // batches, 0).mT
        inputs = self.output.shaped(self.factors.weight * own)
        logits.copy_(self.output.forward(inputs).view_as(logits))
        delta = self.task.residual(logits, batch.targets, batch.totals)
        delta = self.output.shaped(delta.mul_(batch.scale))
        back = self.output.backward(delta).view_as(own)
        use(self.output, delta, inputs)
        gradient = (back * own).sum(-1)
        use(self.factors, gradient, gradient)


class Scaled(nn.Module):
    closed_form = ScaledClosedForm

    def __init__(self, inputs: int, classes: int, initial: float) -> None:
        super().__init__()
        self.factors = nn.Parameter(torch.full((inputs,), initial))
        self.output = nn.Linear(inputs, classes)

    def forward(self, features: Tensor) -> Tensor:
        return self.output(self.factors * features.flatten(1))
'''

SECTION = """
@has_closed_form
class Scaled(ModelSection):
    name: Literal["scaled"]
    initial: PositiveFloat


class Sgd(OptimizerSection):
"""

RUNS = """
import json, sys
from pathlib import Path

import torch
from kindling.config.compose import compose
from kindling.training.fit import fit, fit_stack
from kindling.training.grouping import group_trials

def weights(run):
    return torch.load(run.last_checkpoint, weights_only=True)["state_dict"]

def difference(a, b):
    assert a.keys() == b.keys()
    return max((a[name] - b[name]).abs().max().item() for name in a)

folder = Path(sys.argv[1])
common = ["model=scaled", "data=digits", "trainer=cpu", "trainer.max_epochs=2",
          "trainer.precision=64"]
recipes = {
    "direct": ["optimizer.lr=0.1"],
    "accumulated": ["optimizer=adamw", "trainer.accumulate_grad_batches=3",
                    "trainer.gradient_clip_val=0.5"],
}
found = {}
for name, recipe in recipes.items():
    configs = [compose(*common, *recipe, f"seed={seed}", f"optimizer.lr={rate}")
               for seed in (0, 1) for rate in (0.01, 0.1)]
    groups = [group.trials for group in group_trials(configs)]
    folders = [folder / name / str(number) for number in range(4)]
    fused = fit_stack(configs, folders, folder / name / "stack")
    single = {n: fit(configs[n], folder / name / f"single{n}") for n in (1, 2)}
    slow = fit(compose(*common, *recipe, "optimizer.lr=0.1", "trainer.step=autograd"),
               folder / name / "slow")
    found[name] = {
        "groups": groups,
        "steps": [run.result["step"] for run in (*fused, slow)],
        "fused": [difference(weights(fused[n]), weights(run)) for n, run in single.items()],
        "autograd": difference(weights(single[1]), weights(slow)),
        "moved": difference(weights(single[1]), weights(single[2])),
        "accuracy": single[1].result["test/acc"],
    }
print(json.dumps(found))
"""


@pytest.mark.slow
def test_a_family_in_one_file_trains_in_closed_form_and_in_stacks(tmp_path: Path) -> None:
    """Its steps are those of autograd, and a fused trial is its single run."""
    root = tmp_path / "code"
    for name in ("src", "conf"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "src/kindling/models/scaled.py").write_text(FAMILY)
    (root / "conf/model/scaled.yaml").write_text("name: scaled\ninitial: 1.5\n")
    schema = root / "src/kindling/config/schema.py"
    text = schema.read_text()
    for old, new in (
        ("\nclass Sgd(OptimizerSection):\n", SECTION),
        (
            "\nModel = LogisticRegression | Mlp | Cnn | Ladder | Own\n",
            "\nModel = LogisticRegression | Mlp | Cnn | Ladder | Own | Scaled\n",
        ),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    schema.write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", RUNS, str(tmp_path / "runs")],
        cwd=root, env={**os.environ, "PYTHONPATH": str(root / "src")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for found in json.loads(done.stdout.splitlines()[-1]).values():
        assert found["groups"] == [[0, 1, 2, 3]]
        assert found["steps"] == ["closed_form"] * 4 + ["autograd"]
        assert max(found["fused"]) < 1e-7
        assert found["autograd"] < 1e-7
        assert found["moved"] > 1e-3
        assert found["accuracy"] > 0.8
