"""Kindling: small models at full hardware speed, from one configuration.

>>> import kindling
>>> run = kindling.fit(kindling.compose("data=digits", "trainer.max_epochs=2"), "runs/mine")
>>> model = kindling.load("runs/mine")
>>> model.predict_proba(pictures).shape
(5, 10)
>>> best, *others = kindling.sweep("data=digits", "optimizer.lr=0.1,0.3")

Names are imported when they are used: a wrong key is reported before PyTorch is imported.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kindling.system import lean_imports

if TYPE_CHECKING:
    from kindling.config.compose import compose
    from kindling.inference.estimator import KindlingClassifier, KindlingRegressor
    from kindling.inference.model import Model, load
    from kindling.records.folder import Run
    from kindling.sweeps.run_command import sweep
    from kindling.system.errors import InputError
    from kindling.training.printing_fit import fit

__all__ = [
    "InputError",
    "KindlingClassifier",
    "KindlingRegressor",
    "Model",
    "Run",
    "compose",
    "fit",
    "load",
    "sweep",
]
PLACES = {
    "compose": "kindling.config.compose",
    "fit": "kindling.training.printing_fit",
    "Run": "kindling.records.folder",
    "Model": "kindling.inference.model",
    "load": "kindling.inference.model",
    "KindlingClassifier": "kindling.inference.estimator",
    "KindlingRegressor": "kindling.inference.estimator",
    "sweep": "kindling.sweeps.run_command",
    "InputError": "kindling.system.errors",
}

lean_imports.install()


def __getattr__(name: str) -> Any:
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(PLACES[name]), name)


def __dir__() -> list[str]:
    """The names that Tab completes: the API alone."""
    return __all__
