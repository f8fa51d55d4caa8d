"""A memory of what was read last."""

from contextlib import suppress
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(dict[Key, Value]):
    """Keeps the `most` entries that were added last. Other threads may add entries, too."""

    def __init__(self, most: int) -> None:
        self.most = most

    def __setitem__(self, key: Key, value: Value) -> None:
        super().__setitem__(key, value)
        while len(self) > self.most:
            with suppress(KeyError, RuntimeError):  # another thread has changed the entries
                del self[next(iter(self))]
