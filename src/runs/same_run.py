"""Whether a saved run is the run of a configuration: a folder or a checkpoint of another run is
refused."""

from collections.abc import Mapping
from typing import Any

from src.config.written import written
from src.system.errors import InputError


def require_same(saved: Any, now: Any, refusal: str) -> None:
    """Raises InputError, with a line for each key that differs between two nested values. A resumed
    run may have more epochs (`trainer.max_epochs`). `resume` is not part of a run."""
    found = _differences(saved, now, "")
    if found:
        raise InputError("\n  ".join([refusal, *found]))


def _differences(saved: Any, now: Any, key: str) -> list[str]:
    if isinstance(saved, Mapping) and isinstance(now, Mapping):
        found = []
        for name in dict.fromkeys([*saved, *now]):
            if name != "resume":
                inner = f"{key}.{name}" if key else str(name)
                found += _differences(saved.get(name), now.get(name), inner)
        return found
    if key.endswith("trainer.max_epochs") and isinstance(saved, int) and now >= saved:
        return []
    if key.endswith("data.batch_size") and now == "auto":
        return []  # the saved number is used again
    return [] if saved == now else [f"{key}: it was {written(saved)}, now {written(now)}"]
