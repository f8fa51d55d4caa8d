"""The model and the data train, alone and in a sweep."""

from pathlib import Path

import kindling
import pytest


def test_the_recipe_trains(tmp_path: Path) -> None:
    run = kindling.fit(kindling.compose("experiment=mine", "trainer=cpu"), tmp_path / "run")
    assert run.result["test/acc"] > 0.98
    assert run.history[-1]["norm"] > 0


def test_a_trial_of_a_sweep_ends_as_a_run_of_its_own(tmp_path: Path) -> None:
    common = ("experiment=mine", "trainer=cpu", "trainer.max_epochs=2", "callbacks=[]")
    trials = kindling.sweep(*common, "optimizer.lr=0.01,0.03", folder=tmp_path / "sweep")
    alone = kindling.fit(kindling.compose(*common, "optimizer.lr=0.03"), tmp_path / "run")
    trial = next(each for each in trials if each["optimizer.lr"] == 0.03)
    assert trial["val/loss"] == pytest.approx(alone.result["best"]["val/loss"], rel=1e-3)
