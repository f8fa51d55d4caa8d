"""Made-up progress of a stack."""

import time
from typing import Any

from kindling.records.groups import GroupProgress


def progress(*, age: float = 0.0, **values: Any) -> GroupProgress:
    """The progress of sixteen trials after 3 of 10 epochs, written `age` seconds ago."""
    content: dict[str, Any] = {
        "host": "node1",
        "process": 17,
        "device": "cpu",
        "trials": list(range(16)),
        "training": 16,
        "epoch": 3,
        "epochs": 10,
        "monitor": "val/acc",
        "best": 0.9731,
        "seconds": 60.0,
        "epoch_seconds": 20.0,
        "written": time.time() - age,
    }
    return GroupProgress(**content | values)
