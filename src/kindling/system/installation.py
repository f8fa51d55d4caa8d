"""Where the package lies, and how its commands are typed."""

import sys
from pathlib import Path

PACKAGE = Path(__file__).absolute().parents[1]
_ROOT = PACKAGE.parents[1]
# The folder of the checkout that holds the package; None for a package that a wheel installed.
CHECKOUT = _ROOT if (_ROOT / "src" / "kindling").exists() and (_ROOT / "conf").exists() else None
CONF = (CHECKOUT or PACKAGE) / "conf"
# The folders in which another process finds the package and hydra_plugins.
PATHS = [str(PACKAGE.parent), *([str(CHECKOUT)] if CHECKOUT else [])]


def as_command(name: str) -> str:
    """A command as the user types it: `python -m src.NAME` if this process was started so, else
    `kindling NAME`."""
    own = str(PACKAGE.parent / "__init__.py")
    by_module = getattr(sys.modules.get("src"), "__file__", None) == own
    return f"python -m src.{name}" if by_module else f"kindling {name}"


def as_typed(text: str) -> str:
    """A text of help with its commands as `as_command` names them."""
    return text.replace("python -m src.", as_command(""))
