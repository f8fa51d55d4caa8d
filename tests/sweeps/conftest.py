"""A search whose trials do not train."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from kindling.config.schema import Config
from kindling.records.folder import Run
from kindling.sweeps.search import loop
from tests.helpers.searches import Trained, value_of


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Trained:
    """Trials end at once; the numbers of those that were trained together are noted."""
    noted: Trained = []

    def train(configs: Sequence[Config], folders: Sequence[Path], *_rest: object) -> None:
        noted.append([int(folder.name) for folder in folders])
        for config, folder in zip(configs, folders, strict=True):
            best = {"val/acc": value_of(config)}
            result = {"status": "finished", "monitor": "val/acc", "best": best}
            Run(folder).write_result(result)

    monkeypatch.setattr(loop, "train_trials", train)
    monkeypatch.setattr(loop, "finish_sweep", lambda *_: None)
    return noted
