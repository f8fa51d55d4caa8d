# PYTHON_ARGCOMPLETE_OK
"""Kindling from Python, and the command `kindling`.

>>> import kindling
>>> run = kindling.fit(kindling.compose("data=digits", "trainer.max_epochs=2"), "runs/mine")
>>> model = kindling.load("runs/mine")
>>> model.predict_proba(pictures).shape
(5, 10)
>>> best, *others = kindling.sweep("data=digits", "optimizer.lr=0.1,0.3")

Names are imported when they are used: a wrong key is reported before PyTorch is imported.
"""

import ast
import os
import sys
from argparse import RawDescriptionHelpFormatter
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from src.config.compose import compose
    from src.inference.estimator import KindlingClassifier
    from src.inference.model import Model, load
    from src.runs.folder import Run
    from src.sweeps.from_python import sweep
    from src.training.fit import fit

__all__ = ["KindlingClassifier", "Model", "Run", "compose", "fit", "load", "sweep"]
HERE = Path(__file__).parent
PLACES = {
    "compose": "src.config.compose",
    "fit": "src.training.fit",
    "Run": "src.runs.folder",
    "Model": "src.inference.model",
    "load": "src.inference.model",
    "KindlingClassifier": "src.inference.estimator",
    "sweep": "src.sweeps.from_python",
}


def __getattr__(name: str) -> Any:
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _require_own_source()
    return getattr(import_module(PLACES[name]), name)


def __dir__() -> list[str]:
    """What Tab completes: the API alone."""
    return __all__


def _require_own_source() -> None:
    """Raises ImportError if Python would take another folder `src` for Kindling's."""
    spec = find_spec("src")
    found = Path(spec.origin).parent if spec is not None and spec.origin else None
    if found is None or found.resolve() != (HERE / "src").resolve():
        raise ImportError(
            f"{found or 'a folder src'} hides the package src of Kindling in {HERE}; start Python "
            "in another folder, or rename that one"
        )


def main() -> None:
    """The command `kindling NAME …`, which is `python -m src.NAME …` from any folder."""
    _require_own_source()
    from src.system.arguments import Parser
    from src.system.process import run

    folder = HERE / "src"
    names = [path.stem for path in folder.glob("*.py") if path.stem != "__init__"]
    names = sorted([*names, *(path.parent.name for path in folder.glob("*/__main__.py"))])
    if "_ARGCOMPLETE" in os.environ:  # a shell asks what Tab completes
        sys.argv = os.environ["COMP_LINE"].split(" ", 2)[:-1] or [""]
        os.environ["_ARGCOMPLETE"] = str(len(sys.argv))  # words before the arguments
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in names:
        parser = Parser(
            "kindling",
            description="kindling COMMAND --help describes a command.",
            epilog="\n".join(["commands:", *(_purpose(folder, each, names) for each in names)]),
            formatter_class=RawDescriptionHelpFormatter,
        )
        parser.add_argument("COMMAND", choices=names, metavar="COMMAND", help="one of those below")
        run(lambda: parser.parse_args(sys.argv[1:2]))
    del sys.argv[1]
    file = _file(folder, name)
    run(import_module(f"src.{name}.__main__" if file.parent != folder else f"src.{name}").main)


def _file(folder: Path, name: str) -> Path:
    """The module of a command."""
    inside = folder / name / "__main__.py"
    return inside if inside.exists() else folder / f"{name}.py"


def _purpose(folder: Path, name: str, names: Sequence[str]) -> str:
    """A line about a command: the first sentence of its module. Reads no module as a program."""
    text = ast.get_docstring(ast.parse(_file(folder, name).read_text("utf-8"))) or ""
    sentence = " ".join(text.partition("\n\n")[0].split()).partition(". ")[0].rstrip(".")
    return f"  {name:<{max(map(len, names))}}  {sentence}"


if __name__ == "__main__":
    main()
