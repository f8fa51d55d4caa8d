"""A committee of the folds of a cross-validation, against its members one by one: each trial is
opened alone, with what its own training rows taught, and the means are taken here."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from kindling.config import schema
from kindling.config.compose import compose
from kindling.data.sources.csv import rows_of_test
from kindling.inference.committees.making import make_committee, summary
from kindling.inference.committees.members import read_request
from kindling.inference.evaluation import calibrate, evaluate, fit_temperature
from kindling.inference.export.export import export, open_safetensors
from kindling.inference.export.formats import FORMATS, FormatName, plan
from kindling.inference.form import Form
from kindling.inference.importance import importances
from kindling.inference.logits import compute_logits
from kindling.inference.model import load
from kindling.inference.regression import interval_of
from kindling.inference.samples import source_of, validation_of
from kindling.records import checkpoint
from kindling.records.folder import Run
from kindling.records.listing import read_entry
from kindling.records.loading import open_trained
from kindling.system.errors import InputError
from kindling.training.fit import fit
from tests.helpers.commands import SMALL, Command
from tests.inference.committees.test_making import brute_force
from tests.inference.committees.test_members import pretend

Numbers = NDArray[np.float64]
CLASSES = ("data.target=kind", "data.drop=[size]")
SIZES = ("data.target=size", "data.drop=[kind]", "task=regression")


def table(folder: Path, seed: int, rows: int = 90) -> Path:
    """Numbers with gaps, a date, and rare texts, which some folds do not train on."""
    draw = np.random.default_rng(seed)
    a, b = draw.normal(size=(2, rows)) * [[1], [40]]
    region = draw.choice(
        ["north", "south", "east", "west", "isle"], rows, p=[0.5, 0.3, 0.1, 0.06, 0.04]
    )
    day = draw.integers(1, 29, rows)
    score = a + b / 40 + (region == "north") + draw.normal(size=rows) / 3
    lines = ["a,b,region,day,kind,size"]
    for n in range(rows):
        gap = "" if draw.random() < 0.1 else f"{b[n]:.2f}"
        kind = "large" if score[n] > np.median(score) else "small"
        lines.append(f"{a[n]:.3f},{gap},{region[n]},2024-03-{day[n]:02},{kind},{score[n]:.3f}")
    path = folder / f"{seed}.csv"
    path.write_text("\n".join(lines))
    return path


def swept(folder: Path, overrides: Sequence[str], settings: Sequence[str], folds: int = 3) -> Path:
    """A sweep over settings and folds, as its trials leave it."""
    for number, (setting, fold) in enumerate(
        (setting, fold) for setting in settings for fold in range(folds)
    ):
        keys = (f"data.folds={folds}", f"data.fold={fold}", setting, "trainer.max_epochs=3")
        fit(compose("trainer=cpu", *overrides, *keys), folder / str(number))
    (folder / "multirun.yaml").write_text("{}\n")
    return folder


def probabilities_of(trials: Sequence[Path]) -> Numbers:
    """(trials, N, classes) of the test rows, by each trial alone."""
    found = []
    for trial in trials:
        trained = open_trained(trial)
        logits = compute_logits(trained, source_of(trained).test)
        found.append(torch.softmax(logits.double(), -1).numpy())
    return np.stack(found)


def held_out(trials: Sequence[Path]) -> tuple[Numbers, Numbers]:
    """What each trial says of the rows that it was not trained on, and what is true of them."""
    said, true = [], []
    for trial in trials:
        trained = open_trained(trial)
        split = validation_of(trained, source_of(trained))
        outputs = compute_logits(trained, split).double()
        said.append(trained.answers(outputs).numpy())
        numbers = split.labels if trained.targets is None else trained.restored(split.labels)
        true.append(numbers.numpy())
    return np.concatenate(said), np.concatenate(true)


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of three folds and two settings; tests must not change the trials."""
    folder = tmp_path_factory.mktemp("classes")
    keys = ("data=csv", f"data.path={table(folder, 0)}", *CLASSES)
    return swept(folder / "sweep", keys, ("optimizer.lr=0.01", "optimizer.lr=0.1"))


@pytest.fixture(scope="module")
def sizes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sizes")
    keys = ("data=csv", f"data.path={table(folder, 1)}", *SIZES)
    return swept(folder / "sweep", keys, ("optimizer.lr=0.01",), folds=4)


def made(sweep: Path, folder: Path, **arguments: Any) -> Run:
    return make_committee(read_request([sweep], folder=folder, **arguments))


# --- what a committee says -----------------------------------------------------------------------


def test_the_mean_of_the_folds(classes: Path, tmp_path: Path) -> None:
    committee = made(classes, tmp_path / "c", best=2)
    trials = [classes / str(number) for number in range(6)]
    mean = probabilities_of(trials).mean(0)
    trained = open_trained(committee.folder)
    source = source_of(trained)
    said = compute_logits(trained, source.test).exp().numpy()
    np.testing.assert_allclose(said, mean, rtol=1e-12)
    right = (mean.argmax(1) == source.test.labels.numpy()).mean()
    assert committee.result["test/acc"] == evaluate(trained, source).accuracy == right
    assert committee.result["committee"]["folds"] == 3
    # Columns that the folds read alike are there once.
    assert trained.columns is not None
    names = [column.name for column in trained.columns.columns]
    assert names.count("a") == 3
    assert trained.shape == (trained.columns.width,) == source.shape
    for fold, member in enumerate(trained.members[:3]):
        assert member.columns == open_trained(trials[fold]).columns


def test_each_row_is_judged_by_those_that_have_not_seen_it(classes: Path, tmp_path: Path) -> None:
    committee = made(classes, tmp_path / "c", best=1, by="val/loss")
    best = min((0, 3), key=lambda n: sum(loss(classes / str(n + k)) for k in range(3)))
    said, true = held_out([classes / str(best + k) for k in range(3)])
    found = committee.result["best"]
    assert found["val/acc"] == pytest.approx((said.argmax(1) == true).mean(), abs=1e-12)
    of_true = said[np.arange(len(true)), true.astype(int)]
    assert found["val/loss"] == pytest.approx(-np.log(of_true).mean(), rel=1e-6)
    assert committee.result["data"]["val"] == len(true) == 72
    trained = open_trained(committee.folder)
    source = source_of(trained)
    tested = evaluate(trained, source).logits
    calibration = calibrate(trained, source, tested, source.test.labels)
    assert calibration.fitted_on == 72
    temperature = fit_temperature(torch.from_numpy(said).log(), torch.from_numpy(true))
    assert calibration.temperature == pytest.approx(temperature, rel=1e-3)
    assert "each of the 3 folds was judged by the members that were not" in summary(committee)
    assert committee.command.endswith("/sweep --best 1 --by val/loss")


def loss(trial: Path) -> float:
    value = Run(trial).result["best"]["val/loss"]
    assert value is not None
    return value


def test_numbers_and_their_interval(sizes: Path, tmp_path: Path) -> None:
    """Each fold has a mean and a deviation of its own."""
    committee = made(sizes, tmp_path / "c")
    trials = [sizes / str(number) for number in range(4)]
    each = []
    for trial in trials:
        trained = open_trained(trial)
        outputs = compute_logits(trained, source_of(trained).test)
        each.append(trained.restored(outputs.double()).numpy())
    assert len({open_trained(trial).targets.means[0] for trial in trials}) == 4  # type: ignore[union-attr]
    trained = open_trained(committee.folder)
    source = source_of(trained)
    found = evaluate(trained, source)
    np.testing.assert_allclose(found.predicted.numpy(), np.mean(each, 0), rtol=1e-12)
    said, true = held_out(trials)
    errors = np.sort(np.abs(said - true)[:, 0])
    assert len(errors) == 72
    interval = interval_of(trained, source)
    assert interval.margins[0] == pytest.approx(errors[66 - 1], rel=1e-6)  # ceil(73 · 0.9)
    assert interval.samples == 72
    r2 = 1 - ((said - true) ** 2).sum() / ((true - true.mean()) ** 2).sum()
    # Standardised by the first fold, as the committee's numbers are.
    assert committee.result["best"]["val/r2"] == pytest.approx(r2, abs=1e-6)


def test_greedy_picks_settings_by_the_rows_that_were_not_seen(
    classes: Path, tmp_path: Path
) -> None:
    committee = made(classes, tmp_path / "c", greedy=7, start=2, by="val/loss")
    order = sorted((0, 3), key=lambda n: sum(loss(classes / str(n + k)) for k in range(3)))
    said, true = [], np.empty(0)
    for start in order:
        own, true = held_out([classes / str(start + k) for k in range(3)])
        said.append(torch.from_numpy(own))
    of_true = torch.stack(said)[:, range(72), torch.from_numpy(true).long()]
    means = {k: -of_true[[0, 1, *[0] * k]].mean(0).log().mean() for k in range(6)}
    most = min(means, key=means.__getitem__)
    assert most > 0
    assert votes_of(committee) == (1 + most,) * 3 + (1,) * 3
    alone = made(classes, tmp_path / "d", greedy=5, by="val/loss")
    picks = brute_force(torch.stack(said), torch.from_numpy(true).long(), 5, "val/loss")
    wanted = [picks.count(number) for number in (0, 1) if picks.count(number)]
    assert votes_of(alone) == tuple(count for count in wanted for _ in range(3))


def votes_of(committee: Run) -> tuple[int, ...]:
    model: Any = open_trained(committee.folder).model
    votes: tuple[int, ...] = model.votes
    return votes


@pytest.mark.slow
@pytest.mark.parametrize("encode", ["auto", "onehot"])
@pytest.mark.parametrize("seed", range(4))
def test_any_table(seed: int, encode: str, tmp_path: Path) -> None:
    """New rows with gaps and new texts too: as the mean of what each trial says of them."""
    fill = "" if encode == "auto" else "data.fill=median"
    dates = [] if encode == "auto" else ["data.drop=[size,day]"]
    keys = [
        "data=csv",
        f"data.path={table(tmp_path, seed)}",
        *CLASSES,
        *dates,
        f"data.encode={encode}",
    ]
    sweep = swept(tmp_path / "sweep", [*keys, *filter(None, [fill])], ("seed=1",), folds=2 + seed)
    committee = made(sweep, tmp_path / "c")
    rows = {"a": ["0.1", "-3", "99"], "b": ["", "7", "-1e4"], "region": ["north", "west", "south"],
            "day": ["2024-03-04", "2023-01-01", "2024-12-31"]}  # fmt: skip
    if encode == "auto":
        rows["region"][1] = "nowhere"
    trials = [sweep / str(number) for number in range(2 + seed)]
    known = [load(trial) for trial in trials]
    if encode == "onehot" and any("west" not in str(each.trained.columns) for each in known):
        rows["region"][1] = "north"  # a trial alone refuses texts that it has not seen
    wanted = np.mean([each.predict_proba(rows) for each in known], 0)
    np.testing.assert_allclose(load(committee.folder).predict_proba(rows), wanted, rtol=1e-6)


def test_numbers_that_are_not_of_a_table(tmp_path: Path) -> None:
    keys = ("data=diabetes", "task=regression", "model.hidden_sizes=[4]")
    sweep = swept(tmp_path / "sweep", keys, ("seed=1",))
    committee = made(sweep, tmp_path / "c")
    trained, each = open_trained(committee.folder), []
    for trial in range(3):
        own = open_trained(sweep / str(trial))
        each.append(own.restored(compute_logits(own, source_of(own).test).double()))
    found = evaluate(trained, source_of(trained))
    torch.testing.assert_close(found.predicted, torch.stack(each).mean(0), rtol=1e-12, atol=0)
    assert committee.result["test/r2"] == found.score


def test_pictures(tmp_path: Path) -> None:
    """Which all folds read alike."""
    sweep = swept(tmp_path / "sweep", SMALL, ("seed=1",))
    committee = made(sweep, tmp_path / "c")
    mean = probabilities_of([sweep / str(number) for number in range(3)]).mean(0)
    trained = open_trained(committee.folder)
    said = compute_logits(trained, source_of(trained).test).exp().numpy()
    np.testing.assert_allclose(said, mean, rtol=1e-12)
    said, true = held_out([sweep / str(number) for number in range(3)])
    assert committee.result["best"]["val/acc"] == pytest.approx((said.argmax(1) == true).mean())


# --- what takes a committee ----------------------------------------------------------------------


def test_its_columns_by_name(classes: Path, tmp_path: Path) -> None:
    """A column is asked for once and exchanged as a whole, though each fold reads it in its way."""
    committee = made(classes, tmp_path / "c", best=1)
    model = load(committee.folder)
    names = ["a", "b", "region", "day"]
    assert sorted(field["name"] for field in Form(model).about["fields"]) == sorted(names)
    found = importances(model.trained, source_of(model.trained))
    assert sorted(each.column for each in found) == sorted(names)
    # The cells of the rows themselves, exchanged in the same way.
    config, stream = model.trained.config, torch.Generator().manual_seed(0)
    rows = rows_of_test(config.data, config.task)  # type: ignore[arg-type]
    chosen = torch.randperm(18, generator=stream)
    cells = {
        name: np.array(rows.columns[name].to_list(), object)[chosen] for name in (*names, "kind")
    }
    places = [model.labels.index(kind) for kind in cells.pop("kind")]
    before = model.score(cells, places)
    assert model.trained.columns is not None
    for name in model.trained.columns.names:
        orders = [torch.randperm(18, generator=stream) for _ in range(5)]
        lost = [
            before - model.score(cells | {name: cells[name][order]}, places) for order in orders
        ]
        (own,) = [each for each in found if each.column == name]
        assert own.lost == pytest.approx(lost, abs=1e-6)
    with pytest.raises(InputError, match="there is no column day"):
        model.predict({"a": [1], "b": [2], "region": ["north"]})


@pytest.mark.slow
@pytest.mark.parametrize("sweep", ["classes", "sizes"])
def test_exports(sweep: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The export itself compares the file with the model on the test rows."""
    committee = made(request.getfixturevalue(sweep), tmp_path / "c", best=1)
    for name in FORMATS:
        path = tmp_path / f"m{FORMATS[name].suffix}"
        found = export(plan(committee.folder, name, path, force=False))
        assert found.samples == 18
    raw, _ = open_safetensors(tmp_path / "m.safetensors")
    trained = open_trained(committee.folder)
    test = source_of(trained).test
    answers = trained.answers(compute_logits(trained, test)).numpy()
    outputs: Any = raw(test.features)[0].detach().double()
    said = outputs if trained.targets else outputs.softmax(-1)
    np.testing.assert_allclose(said.numpy(), answers, rtol=1e-4, atol=1e-6)
    format_: FormatName = "onnx"
    with_columns = export(
        plan(committee.folder, format_, tmp_path / "c.onnx", force=False, columns=True)
    )
    assert with_columns.samples == 18


def test_it_may_lie_elsewhere_and_its_table_too(classes: Path, tmp_path: Path) -> None:
    committee = made(classes, tmp_path / "c", best=1)
    shutil.copytree(committee.folder, tmp_path / "moved")
    trained = open_trained(tmp_path / "moved")
    data = Run(classes / "0").config.data
    assert isinstance(data, schema.Csv)
    path = Path(data.path)
    shutil.copy(path, tmp_path / "copy.csv")
    assert read_entry(committee.folder).data == f"csv {path}"  # in lists
    own, copied = source_of(trained), source_of(trained, str(tmp_path / "copy.csv"))
    assert len(own.test) == 18
    assert torch.equal(own.test.features, copied.test.features)
    rows = path.read_text().splitlines()[:11]
    (tmp_path / "new.csv").write_text("\n".join(rows))
    assert len(source_of(trained, str(tmp_path / "new.csv")).test) == 10


def test_features_that_do_not_fit_into_memory(
    classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = open_trained(made(classes, tmp_path / "c", best=1).folder)
    source = source_of(trained)
    assert trained.columns is not None
    needed = 4 * (len(source.train) + len(source.test)) * trained.columns.width
    asked: list[tuple[str, int]] = []

    def remember(what: str, needed: int, remedy: str) -> None:
        asked.append((f"{what} … type {remedy}", needed))

    monkeypatch.setattr("kindling.inference.samples.require_memory", remember)
    source_of(trained)
    message = (
        f"{trained.checkpoint}: the features of its members need … type one of its members instead"
    )
    assert asked == [(message, needed)]


def test_a_stranger_s_members(classes: Path, tmp_path: Path) -> None:
    """Columns that the committee lacks."""
    committee = made(classes, tmp_path / "c", best=1)
    content = checkpoint.read(committee.best_checkpoint)
    content["kindling"]["members"][1]["columns"][0] = 999
    checkpoint.write(content, committee.best_checkpoint)
    with pytest.raises(InputError, match="a member has columns that the committee lacks"):
        open_trained(committee.folder)
    content["kindling"]["members"][1]["columns"].pop()
    content["kindling"]["members"][1]["columns"][0] = 0
    checkpoint.write(content, committee.best_checkpoint)
    with pytest.raises(InputError, match="is not a checkpoint of this project"):
        open_trained(committee.folder)


# --- which runs ----------------------------------------------------------------------------------


def test_a_setting_without_all_folds(classes: Path, tmp_path: Path) -> None:
    part = tmp_path / "part"
    shutil.copytree(classes, part)
    shutil.rmtree(part / "4")
    request = read_request([part], best=1)
    assert [[each.run.folder.name for each in setting] for setting in request.candidates] == [
        ["0", "1", "2"]
    ]
    with pytest.raises(InputError, match=r"--best 2: .* has 1 finished setting with all folds"):
        read_request([part], best=2)
    shutil.rmtree(part / "0")
    with pytest.raises(InputError) as refused:
        read_request([part], best=1)
    for folder, fold in (("1", 0), ("3", 1)):
        told = (
            f"part/{folder}: of its setting, fold {fold} of 3 is not there, which a committee of "
        )
        assert told in str(refused.value)
        assert f" data.fold={fold}" in str(refused.value)
    with pytest.raises(
        InputError, match=r"2: of its setting, folds 0, 1 of 3 are not there, which"
    ):
        read_request([classes / "2", classes / "3", classes / "4", classes / "5"])


def test_one_setting_needs_no_choice(classes: Path, sizes: Path) -> None:
    request = read_request([sizes])
    assert [len(setting) for setting in request.candidates] == [4]
    with pytest.raises(InputError, match="is a sweep; type --best N or --greedy too"):
        read_request([classes])
    named = read_request([classes / "4", classes / "3", classes / "5"])
    folders = [each.run.folder.name for each in named.candidates[0]]
    assert folders == ["3", "4", "5"]


def test_by_the_mean_of_the_folds(tmp_path: Path) -> None:
    """Not by one fold: the first and the last of the setting that is worse are better."""
    for number, accuracy in enumerate((0.8, 0.1, 0.9, 0.7, 0.7, 0.7)):
        keys = (f"seed={number // 3}", "data.folds=3", f"data.fold={number % 3}")
        pretend(tmp_path / "sweep" / str(number), *keys, accuracy=accuracy)
    (tmp_path / "sweep" / "multirun.yaml").write_text("{}\n")
    request = read_request([tmp_path / "sweep"], best=1)
    (setting,) = request.candidates
    assert [each.run.folder.name for each in setting] == ["3", "4", "5"]


def test_the_command(command: Command, sizes: Path, tmp_path: Path) -> None:
    ran = command("src.committee", str(sizes), "--folder", "c")
    assert ran.returncode == 0
    assert "\n\n4 members, " in ran.stdout
    assert "those of a cross-validation" in ran.stdout
    ran = command("src.evaluate", "c", "--json")
    assert '"fitted_on": 72' in ran.stdout
