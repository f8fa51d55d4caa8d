"""The two newest checkpoints of a run."""

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kindling.records import checkpoint
from kindling.records.checkpoint import CheckpointPair
from kindling.records.loading import open_trained
from tests.helpers.commands import Train


def test_at_every_instant_one_of_the_two_checkpoints_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoints are read before and after every call that changes the folder."""
    pair = CheckpointPair(tmp_path / "checkpoints")
    seen: list[set[int]] = []

    def watched(name: str) -> None:
        call = getattr(os, name)

        def wrapped(*given: Any, **named: Any) -> Any:
            for act in (lambda: None, lambda: call(*given, **named)):
                act()
                found = pair.read()
                seen.append({found[0]["n"]} if found else set())

        monkeypatch.setattr(os, name, wrapped)

    for name in ("fsync", "link", "replace"):
        watched(name)
    for number in range(3):
        pair.write({"n": number, "big": torch.from_numpy(np.zeros(1000))})
    flat = [next(iter(found), -1) for found in seen]
    assert flat == sorted(flat)
    assert set(flat) == {-1, 0, 1, 2}
    monkeypatch.undo()
    assert pair.previous.exists()
    assert checkpoint.read(pair.previous)["n"] == 1


def test_a_process_that_was_killed_between_the_two_leaves_no_third_name(tmp_path: Path) -> None:
    pair = CheckpointPair(tmp_path / "checkpoints")
    pair.write({"n": 0})
    os.link(pair.last, pair.previous)
    pair.write({"n": 1})
    assert {path.name for path in pair.folder.iterdir()} == {"last.ckpt", "previous.ckpt"}
    assert [checkpoint.read(path)["n"] for path in (pair.last, pair.previous)] == [1, 0]


def test_weights_of_a_checkpoint_open_as_a_plain_model(train: Train) -> None:
    run = train()
    content = torch.load(run.last_checkpoint, weights_only=True)  # any reader of torch's files
    model = open_trained(run.last_checkpoint).model
    for name, value in model.state_dict().items():
        assert torch.equal(content["state_dict"][f"model.{name}"], value)
    assert json.dumps(content["kindling"])
    assert time.time() > run.last_checkpoint.stat().st_mtime
