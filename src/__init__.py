"""The commands of a checkout: `python -m src.NAME`. The packages are src/kindling and
src/kindling_digits."""

import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


class _OwnPackages:
    """Finds the packages of this checkout, even if nothing or another version is installed. With
    this folder on sys.path, src/evaluate.py would hide an installed package `evaluate`."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        own = path is None and name in ("kindling", "kindling_digits")
        return PathFinder.find_spec(name, [str(HERE)], target) if own else None


sys.meta_path.insert(0, _OwnPackages)
