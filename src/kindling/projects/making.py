"""Writes a project that trains at once: a copy of template/, with a name of its own."""

import re
import shlex
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path

from kindling.config.faults import options
from kindling.system.errors import InputError
from kindling.system.files import made_whole, write_into_folder
from kindling.system.installation import as_command

TEMPLATE = Path(__file__).parent / "template"
NAME = "mine"  # of the package in the template, and of all that it brings
FILES = {"gitignore": ".gitignore"}  # names that tools would heed in the template too


def make(folder: Path, name: str | None = None) -> str:
    """Writes the files of a project into a new folder, and returns the name of its package, which
    is `name` or that of the folder. Raises InputError for a folder that is there, and for a name
    that cannot be that of a package, or is taken."""
    name = name or folder.absolute().name.replace("-", "_")
    advice = f"{as_command('new')} {shlex.quote(str(folder))} --name NAME"
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,40}", name) or iskeyword(name):
        raise InputError(
            f"{name}: is not the name of a package: lower-case letters, digits and _, a letter "
            f"first; type {advice}"
        )
    if name in ("src", "tests") or find_spec(name) is not None:
        raise InputError(f"{name}: a package of this name is there already; type {advice}")
    for group in ("data", "model", "experiment"):
        if name in options(group):
            raise InputError(f"{name}: there is {group}={name} already; type {advice}")
    if folder.exists():
        raise InputError(f"{folder}: is there already; name a new folder")
    with made_whole(folder) as place:
        for source in sorted(TEMPLATE.rglob("*")):
            if source.is_file() and source.suffix != ".pyc":
                path = source.relative_to(TEMPLATE)
                parts = [part.replace(NAME, name) for part in path.parts[:-1]]
                last = FILES.get(path.name, path.name).replace(NAME, name)
                target = place.joinpath(*parts, last)
                text = re.sub(rf"\b{NAME}\b", name, source.read_text("utf-8"))
                write_into_folder({target: text})
    return name
