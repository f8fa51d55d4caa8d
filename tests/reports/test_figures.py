"""Figures of runs."""

from pathlib import Path

import pytest

from src.reports import figures
from src.reports.collect import Entry
from src.runs.folder import Row, Run


@pytest.mark.parametrize("runs", [1, 8])
def test_curves_fit_the_values_from_epoch_1_on(runs: int) -> None:
    """The untrained model and infinite losses do not change the scale."""
    found = ((0.1, 2.3), (0.98, 0.06), (0.995, 0.02), (0.99, float("inf")))
    history: list[Row] = [
        {"epoch": epoch, "val/acc": acc, "val/loss": loss, "train/acc": None, "train/loss": None}
        for epoch, (acc, loss) in enumerate(found)
    ]
    entries = [
        Entry(Run(Path("none")), {}, {}, {}, history, str(number), "") for number in range(runs)
    ]
    accuracy, loss = figures.curves(entries).axes
    assert accuracy.get_ylim() == pytest.approx((0.98 - 0.05 * 0.015, 0.995 + 0.05 * 0.015))
    assert loss.get_ylim() == pytest.approx((0.02 - 0.05 * 0.04, 0.06 + 0.05 * 0.04))
    assert accuracy.lines[0].get_xydata().tolist() == [[n, acc] for n, (acc, _) in enumerate(found)]  # type: ignore[union-attr]
