"""Weights and histories of runs, to be compared bit for bit."""

from typing import Any

import torch
from torch import Tensor

Weights = dict[str, Tensor]


def weights(run: Any, which: str = "last") -> Weights:
    path = run.last_checkpoint if which == "last" else run.best_checkpoint
    state: Weights = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
    return state


def same(run: Any, other: Any) -> bool:
    """Bit for bit: the last weights and the history, its clock left out."""
    a, b = weights(run), weights(other)
    rows = [
        [{k: v for k, v in row.items() if k != "seconds"} for row in r.history]
        for r in (run, other)
    ]
    return all(torch.equal(a[name], b[name]) for name in a) and rows[0] == rows[1]
