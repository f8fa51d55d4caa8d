"""A process that dies after writing a checkpoint."""

from collections.abc import Callable
from typing import Any

import pytest

from src.runs.checkpoint import Slot


class Killed(BaseException):
    pass


def die_after_writing(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From now on a process dies after its first checkpoint; the call returned undoes it."""
    write = Slot.write

    def once(self: Slot, content: dict[str, Any]) -> None:
        write(self, content)
        raise Killed

    monkeypatch.setattr(Slot, "write", once)
    return lambda: monkeypatch.setattr(Slot, "write", write)
