"""Losses of an extension whose outputs are not the numbers: the logarithm of a rate (Poisson), and
a mean beside the logarithm of a variance. Against plain torch in float64 and scikit-learn."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from kindling.config import registry
from kindling.system.errors import InputError
from kindling.tasks import measures
from kindling.tasks.task import CustomLoss, build_task
from tests.helpers.commands import ROOT
from tests.helpers.installed import install, python
from tests.helpers.tasks import SQUARED

PAGE = (ROOT / "docs" / "extending.md").read_text()
SECTION = PAGE.partition("## A regression of your own")[2].partition("\n## ")[0]
FILES = dict(re.findall(r"^```python\n# (mine/\S+)\n(.*?)^```$", SECTION, re.M | re.S))
SMALL = """
import json, math, sys
from pathlib import Path

import numpy as np, torch
import kindling
from kindling.data.module import DataModule
from kindling.models import build_model
from kindling.training.fit import fit_stack
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error
import mine.losses

loss, labels, each = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
TARGETS = "[" + ",".join(f"y{n}" for n in range(labels)) + "]"

def config(*more):
    return kindling.compose(
        "task=regression", f"task.loss={loss}", "data=csv", f"data.path=table{labels}.csv",
        f"data.target={TARGETS}", "data.batch_size=64", "data.val_fraction=0.25",
        "data.test_fraction=0.25", "optimizer=sgd", "optimizer.lr=0.05", "scheduler=none",
        "model.hidden_sizes=[6]", "data.encode=null", "data.fill=null",
        "trainer=cpu", "trainer.max_epochs=4", "trainer.precision=64", *more)

def weights(run):
    return torch.load(run.last_checkpoint, weights_only=True)["state_dict"]
"""
PLAIN = """
chosen = config("data.batch_size=180", "checkpoint.monitor=val/mae", "checkpoint.mode=min")
data = DataModule(chosen.data, task=chosen.task); data.setup()
targets = data.source.targets
train, held = data.train, data.validations[0]
torch.manual_seed(chosen.seed)
own = build_model(chosen.model, (3,), labels * each).double()
optimizer = torch.optim.SGD(own.parameters(), 0.05)
function = getattr(mine.losses, loss)
shaped = lambda o: o.view(-1, labels, each) if each > 1 else o
for _ in range(4):
    for first in range(0, len(train), 180):
        optimizer.zero_grad()
        x, y = train.features.double(), train.labels.double()
        function(shaped(own(x)), y).mean().backward()
        optimizer.step()
raw = np.genfromtxt(f"table{labels}.csv", delimiter=",", names=True)
runs = {}
for step in ("auto", "autograd", "vmap"):
    runs[step] = kindling.fit(config("data.batch_size=180", "checkpoint.monitor=val/mae",
                                     "checkpoint.mode=min", f"trainer.step={step}"), f"run-{step}")
    for (name, value), got in zip(own.state_dict().items(), weights(runs[step]).values()):
        assert torch.allclose(value, got, atol=1e-9), (step, name)
model = kindling.load("run-auto")
with torch.no_grad():
    outputs = shaped(own(held.features.double()))
    numbers = outputs.exp() if loss == "poisson" else outputs[..., 0]
if loss == "gaussian":
    numbers = numbers * torch.tensor(targets.deviations) + torch.tensor(targets.means)
true = targets.restored(held.labels)
row = runs["auto"].history[-1]
assert math.isclose(float(row["val/mae"]), mean_absolute_error(true, numbers), rel_tol=1e-6), row
scaled = (true / torch.tensor(targets.units), numbers / torch.tensor(targets.units))
assert math.isclose(float(row["val/loss"]),
                    function(outputs, held.labels.double()).mean(), rel_tol=1e-6), row
both = ((scaled[0] - scaled[1])**2).sum(), ((scaled[0] - scaled[0].mean(0))**2).sum()
assert math.isclose(float(row["val/r2"]), 1 - both[0] / both[1], rel_tol=1e-6), row
table = {name: raw[name] for name in ("a", "b", "c")}
found = model.predict(table)
low, high = model.interval(table)
wanted = np.stack([raw[f"y{n}"] for n in range(labels)], 1)
wanted = wanted[:, 0] if labels == 1 else wanted
assert found.shape == wanted.shape == low.shape
assert (found > 0).all() or loss == "gaussian"
assert math.isclose(model.score(table, wanted), np.mean(r2_score(wanted, found)), rel_tol=1e-6)
assert 0.7 < ((low <= wanted) & (wanted <= high)).mean() <= 1
print("plain", float(row["val/r2"]), found.mean(), wanted.mean())
"""
FUSED = """
configs = [config(f"optimizer.lr={lr}", f"model.hidden_sizes=[{width}]", f"seed={seed}")
           for lr, width, seed in ((0.05, 6, 0), (0.02, 4, 1), (0.03, 6, 2))]
together = fit_stack(configs, [Path(f"s/{n}") for n in range(3)], state_folder=Path("s/state"))
for number, each_config in enumerate(configs):
    alone = kindling.fit(each_config, f"alone/{number}")
    a, b = together[number].history, alone.history
    assert [float(x["val/loss"]) for x in a] == [  # by vmap
        __import__("pytest").approx(float(x["val/loss"]), rel=1e-6) for x in b], (a, b)
print("fused", together[0].result["step"])
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = install(tmp_path, "mine.extension")
    (folder / "mine").mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    numbers = np.random.default_rng(0)
    x = numbers.normal(size=(320, 3))
    rate = np.exp(1.5 + x @ [0.5, -0.4, 0.2])
    y = np.stack([numbers.poisson(rate), 100 * x[:, 0] + 10 * numbers.normal(size=320)], 1)
    for labels in (1, 2):
        rows = [[f"{value:.6g}" for value in row] for row in np.hstack([x, y[:, :labels]])]
        lines = [["a", "b", "c", "y0", "y1"][: 3 + labels], *rows]
        (folder / f"table{labels}.csv").write_text("\n".join(map(",".join, lines)) + "\n")
    return folder


CASES = pytest.mark.parametrize(
    ("loss", "labels", "each"), [("poisson", 1, 1), ("gaussian", 1, 2), ("gaussian", 2, 2)]
)


@pytest.mark.slow
@CASES
def test_a_run_is_that_of_plain_torch(loss: str, labels: int, each: int, project: Path) -> None:
    done = python(project, "-c", SMALL + PLAIN, loss, str(labels), str(each))
    assert done.returncode == 0, done.stderr[-3000:]
    r2 = float(re.findall(r"plain (\S+)", done.stdout)[0])
    assert r2 > -5


@pytest.mark.slow
@CASES
def test_fused_trials_are_those_of_single_runs(
    loss: str, labels: int, each: int, project: Path
) -> None:
    done = python(project, "-c", SMALL + FUSED, loss, str(labels), str(each))
    assert done.returncode == 0, done.stderr[-3000:]
    assert "fused vmap" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("loss", "labels"), [("poisson", 1), ("gaussian", 2)])
def test_commands_know_the_numbers(loss: str, labels: int, project: Path) -> None:
    """A committee, its spread, an export and a report."""
    target = f"[{','.join(f'y{n}' for n in range(labels))}]"
    words = (
        "task=regression", f"task.loss={loss}", "data=csv", f"data.path=table{labels}.csv",
        f"data.target={target}", "trainer.max_epochs=3", "trainer=cpu", "seed=1,2",
        "hydra.sweep.dir=s", "data.val_fraction=0.2",
    )  # fmt: skip
    for command in (
        ("train", "-m", "hydra/launcher=fused", *words),
        ("committee", "s/0", "s/1", "--folder", "c"),
        ("evaluate", "c"),
        ("predict", "c", f"table{labels}.csv", "--csv", "c.csv"),
        ("predict", "s/0", f"table{labels}.csv", "--csv", "one.csv"),
        ("predict", "s/1", f"table{labels}.csv", "--csv", "two.csv"),
        ("export", "c", "--output", "c.onnx"),
        ("report", "c"),
    ):
        done = python(project, "-m", "kindling", *command)
        assert done.returncode == 0, (command, done.stderr[-2000:])
    tables = [(project / f"{name}.csv").read_text().splitlines() for name in ("c", "one", "two")]
    for together, *alone in zip(*map(csv.DictReader, tables), strict=True):
        for place in range(labels):
            said = [float(row[f"predicted_y{place}"]) for row in alone]
            mean = np.exp(np.log(said).mean()) if loss == "poisson" else np.mean(said)
            assert float(together[f"predicted_y{place}"]) == pytest.approx(mean, rel=1e-4)
            assert float(together[f"spread_y{place}"]) == pytest.approx(np.std(said), abs=1e-3)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"outputs": 2}, "several outputs need numbers="),
        ({"outputs": 0}, "with outputs=0; it must be a whole number from 1 on"),
        ({"outputs": 2.0, "numbers": "mine.losses:mean"}, "with outputs=2.0"),
        ({"task": "classification", "standardised": False}, "which are of regression"),
        ({"task": "multilabel", "outputs": 2, "numbers": "mine.losses:mean"}, "of regression"),
    ],
)
def test_faults_of_a_registration(arguments: dict[str, object], told: str) -> None:
    given = {"task": "regression", **arguments}
    with pytest.raises(InputError, match=re.escape(told)):
        registry.register_loss("mine", "mine.losses:gaussian", **given)  # type: ignore[arg-type]
    assert registry.location("regression.loss", "mine") is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("return outputs", "(mine.losses:mean): returns (2, 2, 2) for 2 samples, must return"),
        ("return outputs[:, 9]", "mine.losses:mean gets the outputs alone, and returns numbers"),
    ],
)
def test_faulty_numbers_are_one_line(body: str, told: str, project: Path) -> None:
    file = project / "mine/losses.py"
    file.write_text(file.read_text().replace("return outputs[..., 0]", body))
    done = python(
        project, "-m", "kindling", "train", "task=regression", "task.loss=gaussian", "data=csv",
        "data.path=table2.csv", "data.target=[y0,y1]",
    )  # fmt: skip
    assert done.returncode == 2
    assert told in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def squared(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs - labels / 2).square().mean(-1)


def squared_in_place(outputs: Tensor, labels: Tensor) -> Tensor:
    return outputs.sub_(labels.div_(2)).square().mean(-1)


@pytest.mark.parametrize(("models", "labels"), [(1, 1), (1, 3), (2, 1), (2, 3)])
def test_a_loss_and_its_numbers_may_change_what_they_get(models: int, labels: int) -> None:
    """Labels of a validation are those of all epochs, and its outputs give the scores too."""
    task = build_task(SQUARED, labels)
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(models, labels, 5, generator=generator)
    shape = models, 5, labels
    wanted = torch.randn(5, labels, generator=generator).expand(shape)
    before, found = (outputs.clone(), wanted.clone()), []
    for function, numbers in ((squared, torch.exp), (squared_in_place, torch.exp_)):
        custom, leaf = CustomLoss(task, function, numbers), outputs.clone().requires_grad_()
        losses = custom.losses(leaf, wanted)
        losses.sum().backward()  # type: ignore[no-untyped-call]
        found.append((losses, leaf.grad, custom._numbers(outputs.mT)))
        assert torch.equal(outputs, before[0])
        assert torch.equal(wanted, before[1])
    for plain, in_place in zip(*found, strict=True):
        assert torch.equal(plain, in_place)


def test_a_measure_may_change_what_it_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    def count(logits: Tensor, labels: Tensor) -> Tensor:
        return logits.sub_(1).ge_(0).sum(-1) + labels.zero_().sum()

    own = measures.Tally(count, lambda total, _: total[:, 0].tolist())
    monkeypatch.setattr(registry, "location", lambda *_: "mine.py")
    monkeypatch.setattr(registry, "resolve", lambda *_: own)
    logits, labels = torch.tensor([[[0.0, 1.0, 2.0]]]), torch.tensor([1, 1, 0])
    for _ in range(2):
        assert measures.tally("mine", logits, labels).tolist() == [[[2]]]
    assert logits.tolist() == [[[0.0, 1.0, 2.0]]]
    assert labels.tolist() == [1, 1, 0]
