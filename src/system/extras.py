"""Optional packages: which features need them, and how to install them."""

from collections.abc import Iterable, Sequence
from importlib.util import find_spec

LOGGERS = {  # imported packages; the key is also the name of the extra in pyproject.toml
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
    "wandb": ("wandb",),
}


def missing(what: str, extra: str, packages: Sequence[str]) -> str | None:
    """The fault for packages that are not installed, or None. Imports nothing."""
    absent = [name for name in packages if not _installed(name)]
    if not absent:
        return None
    return f'{what}: needs {", ".join(absent)}; type pip install -e ".[{extra}]"'


def missing_loggers(chosen: Iterable[str]) -> list[str]:
    """A fault for each chosen logger whose packages are not installed."""
    found = (missing(f"logger={name}", name, LOGGERS[name]) for name in chosen)
    return [fault for fault in found if fault is not None]


def _installed(package: str) -> bool:
    """A folder of that name in the current folder, such as wandb's logs, does not count."""
    try:
        spec = find_spec(package)
    except ValueError:  # a module without a spec in sys.modules
        return False
    return spec is not None and spec.origin is not None
