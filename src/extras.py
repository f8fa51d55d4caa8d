"""Optional parts of the project: the packages that each needs, and what to type without them."""

from collections.abc import Iterable
from importlib.util import find_spec

PACKAGES = {  # as they are imported; pyproject.toml has an extra of each name
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
    "wandb": ("wandb",),
}


def faults(group: str, extras: Iterable[str]) -> list[str]:
    """A text for each extra, chosen by `group=NAME`, whose packages are not installed.

    Nothing is imported.
    """
    found = []
    for extra in extras:
        absent = [name for name in PACKAGES[extra] if not _installed(name)]
        if absent:
            found.append(
                f"{group}={extra}: {', '.join(absent)} not installed; "
                f'type pip install -e ".[{extra}]"'
            )
    return found


def _installed(package: str) -> bool:
    """A folder of that name in the current one, such as those that wandb leaves, is no package."""
    spec = find_spec(package)
    return spec is not None and spec.origin is not None
