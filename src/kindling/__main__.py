# PYTHON_ARGCOMPLETE_OK
"""The command `kindling NAME …`, and `python -m kindling NAME …`."""

import ast
import os
import sys
from argparse import RawDescriptionHelpFormatter
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from kindling.system.arguments import Parser
from kindling.system.errors import InputError, exit_on_error
from kindling.system.process import run

OWN = Path(__file__).parent / "commands"


def main() -> None:
    modules = {path.stem: f"kindling.commands.{path.stem}" for path in OWN.glob("[!_]*.py")}
    if "_ARGCOMPLETE" in os.environ:  # a shell asks what Tab completes
        sys.argv = os.environ["COMP_LINE"].split(" ", 2)[:-1] or [""]
        os.environ["_ARGCOMPLETE"] = str(len(sys.argv))  # words before the arguments
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in modules:  # an extension's, or a mistake
        from kindling.config import registry

        with exit_on_error():
            registry.load_extensions()
            brought = {each: registry.PLACES["command", each] for each in registry.names("command")}
            if both := brought.keys() & modules.keys():
                raise InputError(f"an extension brings the command {min(both)}, which Kindling has")
        modules = dict(sorted((brought | modules).items()))
    if name not in modules:
        width = max(map(len, modules))
        lines = [f"  {each:<{width}}  {_purpose(module)}" for each, module in modules.items()]
        parser = Parser(
            "kindling",
            description="kindling COMMAND --help describes a command.",
            epilog="\n".join(["commands:", *lines]),
            formatter_class=RawDescriptionHelpFormatter,
        )
        parser.add_argument(
            "COMMAND", choices=[*modules], metavar="COMMAND", help="one of those below"
        )
        run(lambda: parser.parse_args(sys.argv[1:2]))
    del sys.argv[1]
    run(import_module(modules[name]).main, plain=name != "warm")


def _purpose(module: str) -> str:
    """A line about a command: the first sentence of its module. Imports no command."""
    file = getattr(find_spec(module), "origin", "")
    text = ast.get_docstring(ast.parse(Path(file).read_text("utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split()).partition(". ")[0].rstrip(".")


if __name__ == "__main__":
    main()
