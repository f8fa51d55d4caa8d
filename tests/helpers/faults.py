"""The messages about wrong input."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from kindling.sweeps.command_line import check_command_line
from kindling.system.errors import InputError


def faults(*argv: str) -> str:
    with pytest.raises(InputError) as caught:
        check_command_line(argv)
    return str(caught.value)


def own_error(action: Callable[[], Any]) -> None:
    """Runs the action; only the project's own error may be raised."""
    with suppress(InputError):
        action()
