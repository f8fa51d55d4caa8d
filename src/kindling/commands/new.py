"""Begins a project of your own: a package with a model, a data set, a recipe and tests.

python -m src.new FOLDER [--name NAME]
"""

import shlex
from pathlib import Path

from kindling.system.arguments import command_parser


def main() -> None:
    parser = command_parser("new", __doc__)
    parser.value("folder", "FOLDER", "a new folder", type=Path)
    parser.value("--name", "NAME", "of the package; default: the name of the folder")
    arguments = parser.parse_args()
    from kindling.projects.making import make

    name = make(arguments.folder, arguments.name)
    lines = [
        f"{arguments.folder}: the package {name}; to train its model on its data, type",
        f"cd {shlex.quote(str(arguments.folder))}",
        "pip install -e .",
        f"kindling train experiment={name}",
    ]
    print("\n  ".join(lines))
