"""Packs, from a file to a committee: the networks, the choice, stops and the time."""

import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kindling.data.splits import Splits
from kindling.inference.committees.making import select
from kindling.inference.committees.twins import train_twin
from kindling.inference.evaluation import evaluate
from kindling.inference.samples import source_of
from kindling.records.folder import Run
from kindling.records.loading import Trained, open_trained
from kindling.reports.page import write_report
from kindling.sweeps.packs import loop
from kindling.sweeps.packs.command import CheckedPack, check_command_line
from kindling.sweeps.packs.loop import make_pack, tell
from kindling.system.errors import InputError, Interrupted
from kindling.system.files import lock_or_fail
from kindling.training.fit import fit
from tests.helpers.commands import Command
from tests.helpers.kills import Killed, dead_leave_files_open, die_at_sync

QUICK = ["trainer.max_epochs=3", "trainer=cpu"]


def _write(folder: Path, rows: int = 120) -> Path:
    draw = np.random.default_rng(3)
    x, y = draw.normal(size=(2, rows)).round(3)
    label = np.where(x + 0.2 * draw.normal(size=rows) > 0, "yes", "no")
    lines = ["x,y,label", *(f"{a},{b},{c}" for a, b, c in zip(x, y, label, strict=True))]
    path = folder / "table.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def _pack(folder: Path, **others: Any) -> CheckedPack:
    overrides = others.pop("overrides", QUICK)
    return check_command_line(
        _write(folder), "label", overrides, folder=folder / "pack", **{"networks": 6} | others
    )


@pytest.fixture
def made(tmp_path: Path) -> tuple[CheckedPack, Run]:
    pack = _pack(tmp_path)
    return pack, make_pack(pack)


@pytest.mark.slow
def test_the_run_is_a_committee_that_was_tested(made: tuple[CheckedPack, Run]) -> None:
    _, run = made
    trained = open_trained(run.folder)
    found = evaluate(trained, source_of(trained))
    assert run.result["test/acc"] == found.accuracy
    own, boosting, linear, simplest = run.result["compared"]
    assert own["score"] == pytest.approx(found.accuracy)
    assert [boosting["name"], linear["name"]] == ["gradient boosting", "linear model"]
    assert simplest["score"] < 0.7 < own["score"]
    votes = [member["votes"] for member in run.result["committee"]["members"]]
    assert len(votes) >= 5  # the five best, and what improves their mean
    assert sum(votes) <= 50
    told = tell(run)
    assert "gradient boosting" in told
    assert f"python -m src.predict {run.folder} ROWS.csv" in told
    page = (run.folder / "report.html").read_text()
    assert "Beside baselines" in page
    assert "most frequent class" in page


@pytest.mark.slow
def test_a_network_of_a_pack_has_the_bits_of_a_single_run(
    made: tuple[CheckedPack, Run], tmp_path: Path
) -> None:
    """Networks of several depths and activations train as one stack."""
    pack, _ = made
    for number in (0, 1, 3):
        alone = fit(pack.sweep.points[number], tmp_path / f"alone{number}")
        weights = [
            open_trained(r.folder).model.state_dict()
            for r in (alone, Run(pack.folder / str(number)))
        ]
        assert weights[0].keys() == weights[1].keys()
        assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert {Run(pack.folder / str(number)).result["stacked"] for number in range(6)} == {6}


def test_the_same_command_answers_at_once(
    made: tuple[CheckedPack, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, run = made
    before = run.result_file.read_bytes()
    again = make_pack(_pack(tmp_path))
    assert again.folder == run.folder
    assert run.result_file.read_bytes() == before
    assert "was made before" in capsys.readouterr().out


@pytest.mark.slow
def test_a_stopped_pack_goes_on(
    tmp_path: Path, made: tuple[CheckedPack, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after the first batch; the committee is that of a pack that was never stopped."""
    _, undisturbed = made
    (tmp_path / "other").mkdir()
    monkeypatch.setattr("kindling.sweeps.packs.command.BATCHES", {0: 2})
    pack = _pack(tmp_path / "other")
    progress = loop._Progress.__call__

    def stop(self: Any, done: int) -> bool:
        if done == 2:
            raise Interrupted(signal.SIGTERM)
        return progress(self, done)

    monkeypatch.setattr(loop._Progress, "__call__", stop)
    with pytest.raises(Interrupted) as stopped:
        make_pack(pack)
    assert f"--folder={tmp_path}/other/pack" in str(stopped.value)
    assert "python -m src.tables" in str(stopped.value)
    monkeypatch.setattr(loop._Progress, "__call__", progress)
    run = make_pack(_pack(tmp_path / "other"))
    left, right = (dict(each.result["best"]) for each in (run, undisturbed))
    assert left == right
    assert run.result["test/loss"] == undisturbed.result["test/loss"]


@pytest.mark.slow
def test_a_pack_that_is_stopped_among_its_twins_goes_on(
    tmp_path: Path, made: tuple[CheckedPack, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, undisturbed = made
    assert undisturbed.result["committee"]["twins"] >= 5
    (tmp_path / "other").mkdir()
    trained = list[Run]()

    def stop(run: Run) -> Trained | None:
        trained.append(run)
        if len(trained) == 3:
            raise Interrupted(signal.SIGINT)
        return train_twin(run)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "train_twin", stop)
        with pytest.raises(Interrupted, match=r"python -m src\.tables"):
            make_pack(_pack(tmp_path / "other"))
    assert not (tmp_path / "other" / "pack" / "committee").exists()
    run = make_pack(_pack(tmp_path / "other"))
    for key in ("best", "test/loss", "test/acc", "compared"):
        assert run.result[key] == undisturbed.result[key], key


@pytest.mark.slow
@pytest.mark.parametrize("change", ["another class", "another number"])
def test_a_table_that_changes_before_the_committee(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack, choose = _pack(tmp_path), loop._committee
    path = tmp_path / "table.csv"
    content = path.read_text()
    monkeypatch.setattr(loop, "_committee", lambda *_: None)
    make_pack(pack)
    monkeypatch.setattr(loop, "_committee", choose)
    row, *_ = content.splitlines()[1:]
    others = {"another class": row.replace("yes", "yas").replace("no", "na")}
    path.write_text(content.replace(row, others.get(change, f"9{row}")))
    with pytest.raises(InputError, match=r"the content of data\.path=.* has changed"):
        make_pack(pack)
    path.write_text(content)
    assert make_pack(pack).result["committee"]["members"]


@pytest.mark.slow
@dead_leave_files_open
@pytest.mark.parametrize("number", [0, 1, 3, 7, 20, 45, 70, 88, 93])
def test_a_killed_pack_goes_on(
    tmp_path: Path, number: int, made: tuple[CheckedPack, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at any sync of a file, the pack ends as a pack that was never killed."""
    _, undisturbed = made
    (tmp_path / "other").mkdir()
    pack = _pack(tmp_path / "other")
    with monkeypatch.context() as patch:
        die_at_sync(patch, number)
        with pytest.raises(Killed):
            make_pack(pack)
    run = make_pack(_pack(tmp_path / "other"))
    for key in ("best", "test/loss", "test/acc", "compared"):
        assert run.result[key] == undisturbed.result[key], key
    assert not (pack.folder / ".stacks").exists()


@pytest.mark.slow
def test_the_time_ends_the_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack = _pack(tmp_path, networks=40, minutes=0.0001)
    run = make_pack(pack)
    told = capsys.readouterr().out
    assert "40 networks to train, 32 at a time\n" in told
    assert "32 of 40 networks trained" in told
    assert not (pack.folder / "32").exists()
    assert run.result["committee"]["members"]


def test_progress_tells_the_time_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pack, clock = _pack(tmp_path, networks=60), iter([100.0, 101.0, 110.0, 120.0])
    pack.folder.mkdir()
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    progress = loop._Progress(pack)
    assert progress(0)
    assert progress(20)
    assert progress(40)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "20 of 60 networks trained; about 20.00 s left",
        "40 of 60 networks trained; about 10.00 s left",
    ]


def test_two_commands_at_once_are_told(tmp_path: Path) -> None:
    pack = _pack(tmp_path)
    pack.folder.mkdir()
    with lock_or_fail(pack.folder / ".pack.lock"), pytest.raises(InputError, match="is writing"):
        make_pack(pack)


def test_a_pack_that_cannot_train_says_why(tmp_path: Path) -> None:
    pack = _pack(tmp_path, networks=2, overrides=[*QUICK, "optimizer.lr=1e12"])
    with pytest.raises(InputError, match="fewer than two networks could be trained"):
        make_pack(pack)


@pytest.mark.parametrize("start", [0, 1, 3])
def test_the_best_begin(start: int) -> None:
    """Against all ways to choose, by hand: the first picks are the best alone, and no other next
    pick is better than the one that was taken."""
    draw = torch.Generator().manual_seed(start)
    said, true = torch.rand(6, 20, generator=draw), torch.rand(20, generator=draw)

    def badness(mean: torch.Tensor) -> float:
        return float((mean - true).square().mean())

    picks = select(said, 8, badness, start)
    alone = sorted(range(6), key=lambda n: badness(said[n]))
    assert picks[:start] == alone[:start]
    assert len(picks) <= 8
    for count in range(max(start, 1), len(picks)):
        found = [badness(said[[*picks[:count], n]].mean(0)) for n in range(6)]
        assert min(found) == pytest.approx(found[picks[count]])
    values = [
        badness(said[picks[:count]].mean(0)) for count in range(max(start, 1), len(picks) + 1)
    ]
    assert min(values) == pytest.approx(values[-1])


@pytest.mark.slow
def test_the_command(tmp_path: Path, command: Command) -> None:
    path = _write(tmp_path)
    done = command("src.tables", path.name, "--target", "label", "--networks", "4", *QUICK)
    assert done.returncode == 0, done.stderr
    assert "its columns:" in done.stdout
    assert "gradient boosting" in done.stdout
    (folder,) = (tmp_path / "sweeps").glob("table-label-*")
    rows = command("src.predict", f"{folder}/committee", path.name)
    assert rows.returncode == 0, rows.stderr
    assert "accuracy" in rows.stdout


@pytest.mark.slow
def test_a_regression(tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    x = draw.normal(size=80).round(3)
    path = tmp_path / "numbers.csv"
    path.write_text("x,y\n" + "".join(f"{a},{2 * a + 1:.3f}\n" for a in x))
    pack = check_command_line(path, "y", QUICK, networks=3, folder=tmp_path / "pack")
    run = make_pack(pack)
    own, *_, mean = run.result["compared"]
    assert mean["name"] == "the mean"
    assert own["score"] == pytest.approx(run.result["test/r2"], abs=1e-5)
    assert write_report([run.folder]).exists()


def test_a_pack_that_is_removed_before_it_is_told_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="pack: another command has removed it meanwhile"):
        tell(Run(tmp_path / "pack"))


@pytest.mark.parametrize("rare", [0, 1, 2])
def test_a_pack_tells_of_its_data_what_a_run_tells(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, rare: int
) -> None:
    """Classes that a part lacks, and copies among the parts; before networks are trained."""
    path = tmp_path / "table.csv"
    labels = [f"c{n % 2}" for n in range(60)] + ["once"] * rare
    path.write_text("x,label\n" + "\n".join(f"{n % 29},{y}" for n, y in enumerate(labels)))

    def stop(*_: object) -> None:
        raise InputError("stopped here")

    monkeypatch.setattr(loop, "train_points", stop)
    pack = check_command_line(path, "label", QUICK, folder=tmp_path / "pack", networks=2)
    with pytest.raises(InputError, match="stopped here"):
        make_pack(pack)
    config = pack.sweep.points[0]
    data = Splits(config.data, task=config.task)
    data.setup()
    warned = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert warned[-len(data.warnings()) :] == data.warnings()
    lacking = sum("set has no sample of once; add samples" in text for text in warned)
    assert lacking == (2 if rare else 0)
    assert sum("test samples have the features of a training sample" in t for t in warned) == 1
