"""Optional packages: which features need them, and how to install them."""

from collections.abc import Iterable, Sequence
from importlib.util import find_spec

from kindling.system.installation import CHECKOUT

# A checkout, or a wheel.
PLACE = '-e ".' if CHECKOUT else '"kindling'
LOGGERS = {  # imported packages; the key is also the name of the extra in pyproject.toml
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
    "wandb": ("wandb",),
}


def missing(what: str, extra: str, packages: Sequence[str]) -> list[str]:
    """The fault for packages that are not installed, if any. Imports nothing."""
    absent = ", ".join(name for name in packages if not _installed(name))
    return [f'{what}: needs {absent}; type pip install {PLACE}[{extra}]"'] if absent else []


def missing_loggers(chosen: Iterable[str]) -> list[str]:
    """A fault for each chosen logger of ours whose packages are not installed."""
    ours = [name for name in chosen if name in LOGGERS]
    return [f for name in ours for f in missing(f"logger={name}", name, LOGGERS[name])]


def _installed(package: str) -> bool:
    """A folder of that name in the current folder, such as wandb's logs, does not count."""
    try:
        spec = find_spec(package)
    except ValueError:  # a module without a spec in sys.modules
        return False
    return spec is not None and spec.origin is not None
