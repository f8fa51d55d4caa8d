"""Optional parts of the project: the packages that they need, and what to type without them."""

from collections.abc import Iterable, Sequence
from importlib.util import find_spec

LOGGERS = {  # packages as they are imported; pyproject.toml has an extra of each name
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
    "wandb": ("wandb",),
}


def missing(what: str, extra: str, packages: Sequence[str]) -> str | None:
    """The fault of packages that are not installed, or None. Nothing is imported."""
    absent = [name for name in packages if not _installed(name)]
    if not absent:
        return None
    return f'{what}: needs {", ".join(absent)}; type pip install -e ".[{extra}]"'


def missing_loggers(chosen: Iterable[str]) -> list[str]:
    """A fault for each chosen logger whose packages are not installed."""
    found = (missing(f"logger={name}", name, LOGGERS[name]) for name in chosen)
    return [fault for fault in found if fault is not None]


def _installed(package: str) -> bool:
    """A folder of that name in the current one, such as those that wandb leaves, is no package."""
    try:
        spec = find_spec(package)
    except ValueError:  # a module that was put out of the way
        return False
    return spec is not None and spec.origin is not None
