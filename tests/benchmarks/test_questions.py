"""How a question times a run."""

from pathlib import Path

import pytest

from benchmarks import measure, questions
from kindling.config.schema import Config


def test_a_question_times_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the history of a run as it was asked for, its first epoch left out."""

    class Fitted:
        def __init__(self, config: Config, folder: Path) -> None:
            assert config.trainer.max_epochs == 4
            assert config.data.name == "synthetic"
            assert config.data.samples == 500
            self.history = [{"seconds": seconds} for seconds in (0.0, 5.0, 6.0, 7.5, 8.0)]

    monkeypatch.setattr(measure, "fit", Fitted)
    assert questions.epoch("trainer.accelerator=cpu", *questions.SMALL, samples=500) == 1.0
    monkeypatch.undo()
    assert questions.epoch("trainer.accelerator=cpu", *questions.SMALL, samples=500) > 0
