"""What the project says of wrong input."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from src.sweeps.command_line import check_command_line
from src.system.errors import InputError


def faults(*argv: str) -> str:
    with pytest.raises(InputError) as caught:
        check_command_line(argv)
    return str(caught.value)


def own_error(action: Callable[[], Any]) -> None:
    """Runs it; any exception but the project's own is a failure."""
    with suppress(InputError):
        action()
