"""The tutorials' figures on the real MNIST; skipped with a reason where it is absent."""

from pathlib import Path

import pytest

from kindling.config.compose import compose
from kindling.inference.evaluation import evaluate_path
from kindling.records.folder import Run
from kindling.training.fit import fit


def test_the_default_run(default_run: Run) -> None:
    run = default_run
    result, rows = run.result, run.history
    sizes = [result["data"][part] for part in ("train", "val", "test")]
    assert sizes == [48_000, 12_000, 10_000]
    assert (result["parameters"], result["steps"]) == (25_450, 4_800)
    assert float(rows[0]["val/acc"] or 0) == pytest.approx(0.10, abs=0.05)
    assert float(rows[5]["val/acc"] or 0) > 0.95
    assert run.monitored >= 0.963
    assert (result["test/acc"] or 0) >= 0.965
    assert evaluate_path(run.folder, None).accuracy == result["test/acc"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("experiment", "least", "most"),
    [("zero_to_gans_logistic", 0.855, 0.87), ("logistic_tuned", 0.922, 0.93)],
)
def test_logistic_regression(
    experiment: str, least: float, most: float, mnist_root: Path, tmp_path: Path
) -> None:
    config = compose(f"experiment={experiment}", f"data.root={mnist_root}", "trainer=cpu")
    run = fit(config, tmp_path / "run")
    assert least <= (run.result["test/acc"] or 0) <= most
