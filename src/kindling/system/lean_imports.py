"""Imports Lightning without the libraries that it would import and that few runs use.

`import lightning.pytorch` takes three times as long as `import torch`, on which it builds. Most of
that is spent on libraries of which Lightning needs a name or two:

- `torch._dynamo`, the front end of torch.compile, with sympy, triton and `torch._inductor`: for
  isinstance(model, OptimizedModule) and for the decorator `torch.compiler.disable`.
- `torchmetrics`, which imports scipy.signal, torchvision and matplotlib.pyplot if they are
  installed: for Metric and MetricCollection.
- `torch.utils.flop_counter`, which imports triton: for a summary that asks for it.

While Lightning is imported, stand-ins take the places of these modules. A stand-in becomes the
real thing when somebody asks for more, so a module of the user's own gets all of torchmetrics and
of torch.compile. `install` is called when Kindling is imported; where Lightning was imported
before, nothing changes.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from logging import getLogger
from threading import RLock
from types import ModuleType
from typing import Any

log = getLogger(__name__)


class Deferred(type):
    """A class that stands for the class of the same name in the module `place`. Instances are those
    of the real class, which is imported when one is made."""

    place: str

    def real(cls) -> Any:
        return getattr(import_module(cls.place), cls.__name__)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls.real()(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return cls.place in sys.modules and isinstance(instance, cls.real())


def disable(function: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
    """As `torch.compiler.disable`, which keeps a function out of compiled graphs. Where nothing has
    imported the compiler, there are none."""
    from torch._compile import _disable_dynamo  # imports the compiler when it is called

    def inside(*args: Any, **kwargs: Any) -> Any:  # torch notes on it how it is kept out
        return function(*args, **kwargs)

    kept_out = _disable_dynamo(inside)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (kept_out if "torch._dynamo" in sys.modules else function)(*args, **kwargs)

    return call


class Unfinished(ModuleType):
    """A module that has some names already. When another name is asked for, its code is run."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__all__":  # asked by those who go through all modules
            raise AttributeError(name)
        finish(self)
        return getattr(self, name)

    def __dir__(self) -> list[str]:
        finish(self)
        return dir(self)


_FINISHING = RLock()


def finish(module: ModuleType) -> None:
    with _FINISHING:
        spec = module.__spec__
        if module.__class__ is Unfinished and spec is not None and spec.loader is not None:
            module.__class__ = ModuleType  # type: ignore[assignment]  # its own code asks for names too
            spec.loader.exec_module(module)


def unfinished(name: str, path: Any = None, **names: Any) -> Unfinished:
    """Puts the module into sys.modules. `path` is the path of the package that holds it."""
    spec = PathFinder.find_spec(name, path)
    if spec is None:
        raise ModuleNotFoundError(name)
    module = module_from_spec(spec)
    module.__class__ = Unfinished
    assert isinstance(module, Unfinished)
    vars(module).update(names)
    sys.modules[name] = module
    return module


def import_metrics() -> None:
    """Imports of torchmetrics the two classes that Lightning needs."""
    name = "torchmetrics"
    if name in sys.modules:
        return

    def plot_value(*args: Any, **kwargs: Any) -> Any:
        finish(plot)
        return plot.plot_single_or_multi_val(*args, **kwargs)

    package = unfinished(name, _logger=getLogger(name))
    utilities = PathFinder.find_spec(f"{name}.utilities", package.__path__)
    plot = unfinished(
        f"{name}.utilities.plot",
        utilities and utilities.submodule_search_locations,
        _AX_TYPE=object,
        _PLOT_OUT_TYPE=object,
        plot_single_or_multi_val=plot_value,
    )
    import_module(f"{name}.utilities")  # imports the modules below, which import each other
    about = import_module(f"{name}.__about__")
    vars(package).update(
        {each: getattr(about, each) for each in about.__all__},
        Metric=import_module(f"{name}.metric").Metric,
        MetricCollection=import_module(f"{name}.collections").MetricCollection,
    )


def spare_compiler() -> None:
    """Torch's optimizers keep some methods out of compiled graphs, and break graphs at a step. They
    import the compiler for it when the first such method is called."""
    from torch.optim import Optimizer

    for name in ("add_param_group", "load_state_dict", "state_dict", "zero_grad"):
        if function := getattr(getattr(Optimizer, name), "__wrapped__", None):
            vars(function).setdefault("__dynamo_disable", disable(function))
    for kind in Optimizer.__subclasses__():
        for each in (kind, *kind.__subclasses__()):  # AdamW is an Adam
            own: Any = vars(each).get("step")
            code = getattr(own, "__code__", None)
            if code is None or code.co_name != "_use_grad" or not hasattr(own, "__wrapped__"):
                continue  # torch's `_use_grad_for_differentiable` has not made this step
            if each.__module__.startswith("torch."):
                each.step = spared(own)  # type: ignore[method-assign]


def spared(step: Callable[..., Any]) -> Callable[..., Any]:
    """As `_use_grad_for_differentiable`. Where nothing has imported the compiler, there is no graph
    to break."""
    import torch

    @wraps(step)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if "torch._dynamo" in sys.modules:
            return step(self, *args, **kwargs)
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            return step.__wrapped__(self, *args, **kwargs)  # type: ignore[attr-defined]

    return call


@contextmanager
def stand_ins() -> Iterator[None]:
    """Stands in for what Lightning imports, until the end of the body."""
    import torch

    spare_compiler()
    import_metrics()
    compiler, counter = ModuleType("torch._dynamo"), ModuleType("torch.utils.flop_counter")
    for module, name, place in (
        (compiler, "OptimizedModule", "torch._dynamo.eval_frame"),
        (counter, "FlopCounterMode", counter.__name__),
    ):
        setattr(module, name, Deferred(name, (), {"place": place}))
    vars(compiler)["disable"] = disable
    placed = [each for each in (compiler, counter) if each.__name__ not in sys.modules]
    sys.modules.update({each.__name__: each for each in placed})
    if compiler in placed:
        torch._dynamo = compiler
    try:
        yield
    finally:
        for each in placed:
            del sys.modules[each.__name__]
        if compiler in placed:
            del torch._dynamo


class Lean(Loader):
    """Runs the code of Lightning beside stand-ins; without them if that fails."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def exec_module(self, module: ModuleType) -> None:
        sys.meta_path.remove(LeanFinder)
        assert module.__spec__ is not None
        module.__loader__ = module.__spec__.loader = self.loader
        try:
            with stand_ins():
                self.loader.exec_module(module)
        except Exception as error:
            log.debug("Lightning is imported whole: %r", error)
            for name in [*sys.modules]:
                if name.startswith(("lightning.", "torchmetrics")):
                    del sys.modules[name]
            self.loader.exec_module(module)


class LeanFinder(MetaPathFinder):
    @classmethod
    def find_spec(cls, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != "lightning":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = Lean(spec.loader)
        return spec


def install() -> None:
    if "lightning" not in sys.modules and LeanFinder not in sys.meta_path:
        sys.meta_path.insert(0, LeanFinder)
