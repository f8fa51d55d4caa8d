"""The learning-rate range test."""

from pathlib import Path

import numpy as np
import pytest

from kindling.config.compose import compose
from kindling.records.listing import read_entry
from kindling.records.lookup import CONFIRMED, find
from kindling.sweeps.lr_find import Found, Point, advice, draw, lr_find
from kindling.system.errors import InputError
from kindling.training.fit import fit
from tests.helpers.commands import Command

SMALL = ("data=digits", "trainer=cpu")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def found(*losses: float | None, rates: tuple[float, ...] = ()) -> Found:
    named = rates or tuple(10.0**n for n in range(-3, len(losses) - 3))
    points = [Point(rate, loss) for rate, loss in zip(named, losses, strict=True)]
    return Found(points, 2.3, 1, Path("sweeps/x"))


def test_each_rate_is_a_run_of_its_own() -> None:
    result = lr_find([*SMALL, "seed=3"], 0.01, 1.0, 3)
    assert [point.rate for point in result.points] == [0.01, 0.1, 1.0]
    for point in result.points:
        config = compose(
            *SMALL, "seed=3", "scheduler=none", "trainer.max_epochs=1", f"optimizer.lr={point.rate}"
        )
        run = fit(config, Path(f"alone{point.rate}"))
        assert point.loss == run.result["last"]["val/loss"]
    assert result.untrained == run.history[0]["val/loss"]
    entry = read_entry(result.folder)
    assert (entry.kind, entry.status, entry.trials) == ("lr_find", "finished", 3)
    assert entry.typed["optimizer.lr"] == "interval(0.01,1)"
    with pytest.raises(InputError, match="latest: there is no sweep or search with a finished"):
        find("latest", CONFIRMED)
    assert (result.folder / "lr_find.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("losses", "best", "near"),
    [
        ((2.0, 1.0, 0.5, 0.9), 2, (0.1, 0.1)),
        ((2.0, 0.52, 0.5, 0.525), 2, (0.01, 1.0)),
        ((0.5, 2.0, 0.5, 0.5), 0, (0.001, 0.001)),  # the second valley is another one
        ((2.0, None, 0.5, None), 2, (0.1, 0.1)),
    ],
)
def test_the_best_rate_and_its_neighbours(
    losses: tuple[float | None, ...], best: int, near: tuple[float, float]
) -> None:
    result = found(*losses)
    assert result.best is result.points[best]
    assert result.near == pytest.approx(near)


def test_advice() -> None:
    text = advice(found(2.0, 0.5, 0.51, 2.4, None))
    assert "lowest validation loss: 0.5000 at optimizer.lr=0.01; before training 2.3000" in text
    assert "within 5% of it: optimizer.lr from 0.01 to 0.1" in text
    assert "no neighbouring rate is within 5% of it; for a finer search" in advice(found(2, 1, 2))
    assert "worse than no training: from optimizer.lr=1 on" in text
    assert "type optimizer.lr=0.01" in text
    assert "another" not in text
    assert "type another --to" in advice(found(2.0, 1.0, 0.5))
    assert "type another --from" in advice(found(0.5, 1.0, 2.0))


def test_the_picture_shows_each_rate() -> None:
    result = found(2.0, 0.5, 100.0, None)
    (axis,) = draw(result).axes
    drawn = {line.get_label(): np.asarray(line.get_xydata()) for line in axis.lines}
    (curve,) = [points for points in drawn.values() if len(points) == 3]
    assert np.allclose(curve[:, 1], [2.0, 0.5, 1.15 * 2.3])
    assert np.allclose(drawn["lowest, optimizer.lr=0.01"], [[0.01, 0.5]])
    assert np.allclose(drawn["diverged"], [[1.0, 1.15 * 2.3]])


def test_rates_that_diverge() -> None:
    result = lr_find([*SMALL, "optimizer.momentum=0.9"], 0.1, 1e12, 4)
    assert result.points[-1].loss is None or result.points[-1].loss > result.untrained
    assert result.best.rate == 0.1


def test_no_rate_gives_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kindling.sweeps.lr_find._loss", lambda _: None)
    with pytest.raises(InputError, match="every rate diverged; type a lower --from"):
        lr_find(SMALL, 0.1, 1.0, 2)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("optimizer.lr=0.1",), "optimizer.lr=0.1: lr_find sets this key itself"),
        (("scheduler=cosine",), "scheduler=cosine: lr_find sets"),
        (("trainer.max_epochs=3",), "trainer.max_epochs=3: lr_find sets"),
        (("--from", "1", "--to", "0.1"), "must ascend"),
        (
            (
                "--from",
                "0",
            ),
            "must ascend",
        ),
        (("--rates", "1"), "must be from 2 to 1,000"),
        (("--epochs", "0"), "error: --epochs 0: must be from 1 to 1,000,000\n"),
        (("optimizr=adam",), "did you mean optimizer"),
        (("seed=1,2",), "seed"),
    ],
)
def test_wrong_input(arguments: tuple[str, ...], told: str, command: Command) -> None:
    done = command("src.lr_find", *SMALL, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert not Path("sweeps").exists()


def test_the_command(command: Command) -> None:
    done = command("src.lr_find", *SMALL, "--rates", "3", "--from", "0.01", "--to", "1")
    assert done.returncode == 0, done.stderr
    (picture,) = Path().glob("sweeps/*/*/lr_find.png")
    assert done.stdout.rstrip().endswith(f"picture: {picture}")
    assert "3 trials: 1 stack of 3" in done.stdout
