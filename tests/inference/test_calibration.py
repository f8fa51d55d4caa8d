"""Calibration: scores by hand, and the temperature against a grid."""

import json
import math

import numpy as np
import pytest
import torch
from sklearn.metrics import brier_score_loss
from torch.nn import functional as F

from src.inference.calibration import bins, calibrate, fit_temperature, score
from src.inference.evaluation import compute_logits, source_of, validation_of
from src.runs.folder import Run
from src.runs.loading import open_trained
from src.system.errors import InputError
from src.training.tallies import BINS
from tests.helpers.commands import Command, Train

# Ten samples of two classes, all predicted as class 0, with two confidences.
CONFIDENCE = torch.tensor([0.9] * 5 + [0.6] * 5, dtype=torch.float64)
LOGITS = torch.stack([CONFIDENCE.log(), (1 - CONFIDENCE).log()], 1)
LABELS = torch.tensor([0, 0, 0, 0, 1, 0, 0, 1, 1, 1])


def test_scores_by_hand() -> None:
    found = score(LOGITS, LABELS)
    assert found.ece == pytest.approx((abs(0.9 - 4 / 5) + abs(0.6 - 2 / 5)) / 2)
    squares = 2 * (4 * 0.1**2 + 0.9**2 + 2 * 0.4**2 + 3 * 0.6**2)
    assert found.brier == pytest.approx(squares / 10)
    assert found.brier == pytest.approx(2 * brier_score_loss(LABELS == 0, CONFIDENCE))
    likelihood = 4 * math.log(0.9) + math.log(0.1) + 2 * math.log(0.6) + 3 * math.log(0.4)
    assert found.loss == pytest.approx(-likelihood / 10)


def test_bins_by_hand() -> None:
    found = bins(LOGITS, LABELS)
    assert [(b, n) for b, n in enumerate(found.counts) if n] == [(8, 5), (13, 5)]
    assert (found.confidence[13], found.accuracy[13]) == pytest.approx((0.9, 0.8))
    assert (found.confidence[8], found.accuracy[8]) == pytest.approx((0.6, 0.4))
    assert (found.confidence[0], found.accuracy[0]) == (0, 0)


def test_the_bins_give_the_error() -> None:
    stream = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(2000, 7, generator=stream, dtype=torch.float64)
    labels = torch.randint(7, (2000,), generator=stream)
    found = bins(logits, labels)
    assert sum(found.counts) == 2000
    assert len(found.counts) == BINS
    distances = np.abs(np.subtract(found.confidence, found.accuracy))
    assert score(logits, labels).ece == pytest.approx(distances @ found.counts / 2000, abs=1e-6)


def test_certain_predictions() -> None:
    """Probabilities of exactly 1 stay probabilities."""
    found = score(torch.tensor([[1e4, 0.0, 0.0]] * 4), torch.tensor([0, 0, 0, 1]))
    assert (found.ece, found.brier) == pytest.approx((0.25, 0.5))


@pytest.mark.parametrize("true", [0.2, 1.0, 5.0])
def test_the_temperature_against_a_grid(true: float) -> None:
    """Labels are drawn from the probabilities at the temperature `true`."""
    stream = torch.Generator().manual_seed(1)
    logits = 4 * torch.randn(5000, 5, generator=stream, dtype=torch.float64)
    labels = torch.multinomial((logits / true).softmax(-1), 1, generator=stream).squeeze(1)
    found = fit_temperature(logits, labels)
    grid = np.exp(np.linspace(math.log(0.01), math.log(100), 2001))
    losses = [F.cross_entropy(logits / value, labels).item() for value in grid]
    assert found == pytest.approx(grid[int(np.argmin(losses))], rel=0.01)
    assert found == pytest.approx(true, rel=0.1)
    assert F.cross_entropy(logits / found, labels).item() <= min(losses) + 1e-9


def test_a_temperature_at_its_bound() -> None:
    perfect = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert fit_temperature(perfect, torch.tensor([0, 1])) <= 0.1
    assert fit_temperature(perfect, torch.tensor([1, 0])) == pytest.approx(100, rel=1e-3)


def test_the_temperature_is_fitted_on_validation_alone(committee: Run) -> None:
    trained = open_trained(committee.folder)
    source = source_of(trained)
    found = calibrate(trained, source, source.test)
    validation = validation_of(trained, source)
    assert found.fitted_on == len(validation) == committee.result["data"]["val"]
    logits = compute_logits(trained, validation)
    assert found.temperature == fit_temperature(logits, validation.labels)
    tested = compute_logits(trained, source.test)
    assert found.before == score(tested, source.test.labels)
    assert found.after == score(tested / found.temperature, source.test.labels)
    assert found.before.loss == pytest.approx(committee.result["test/loss"])


def test_the_command(committee: Run, train: Train, command: Command) -> None:
    done = command("src.evaluate", str(committee.folder), "--calibrate")
    assert done.returncode == 0, done.stderr
    told = command("src.evaluate", str(committee.folder), "--calibrate", "--json")
    found = json.loads(told.stdout)["calibration"]
    lines = done.stdout.splitlines()
    assert lines[-5].split() == ["calibration", "ECE", "Brier", "loss"]
    for line, name in ((lines[-3], "before"), (lines[-2], "after")):
        scores = found[name]
        assert line.split()[-3:] == [
            f"{scores['ece']:.2%}", f"{scores['brier']:.4f}", f"{scores['loss']:.4f}",
        ]  # fmt: skip
    assert f"temperature {found['temperature']:.4f}" in lines[-2]
    assert lines[-1].endswith(f"fitted on {found['fitted_on']} validation samples")
    plain = command("src.evaluate", str(committee.folder), "--json")
    assert "calibration" not in json.loads(plain.stdout)


def test_a_run_without_a_validation_set(train: Train) -> None:
    trained = open_trained(train("data.val_fraction=null").folder)
    source = source_of(trained)
    with pytest.raises(InputError, match=r"data\.val_fraction=null, without a validation set"):
        calibrate(trained, source, source.test)
