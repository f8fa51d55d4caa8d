"""The name and the tags of a run or a whole sweep.

The configuration has those that were typed at the start. `write_labels` changes them later, by a
file in the folder. A sweep has the labels of its first trial. Nothing here imports torch.
"""

import re
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from src.config.schema import Label, Section, Tags
from src.runs.folder import Run, is_sweep
from src.runs.outcome import UNKNOWN
from src.system.errors import InputError, parsing
from src.system.files import YAML_LIMIT, read_bounded, read_yaml, write_durably

FILE = "labels.json"
LIMIT = 16_384  # bytes
# A configuration without labels has no such line, and need not be parsed.
LABELLED = re.compile(rb"^(name: (?!null\r?$)|tags:(?! \[\]\r?$))", re.MULTILINE)


class Labels(Section):
    name: Label | None = None
    tags: Tags = Field(default=[])

    def __str__(self) -> str:
        return f"name {self.name or UNKNOWN}, tags {', '.join(self.tags) or UNKNOWN}"


NONE = Labels()


class Change(NamedTuple):
    """`name`: the new one; "" removes it, None keeps it."""

    name: str | None = None
    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()


def read_labels(folder: Path) -> Labels:
    """Raises InputError for a damaged file."""
    file = folder / FILE
    if file.exists():
        content = read_bounded(file, LIMIT)
        with parsing(f"{file}: is not the labels of a run", "; remove it"):
            return Labels.model_validate_json(content)
    for run in (Run(folder), Run(folder / "0")):
        if run.config_file.exists():
            return _typed(run.config_file)
    return NONE


def _typed(file: Path) -> Labels:
    content = read_bounded(file, YAML_LIMIT)
    if not LABELLED.search(content):
        return NONE
    values = read_yaml(file)
    with parsing(f"{file}: is not a configuration"):
        return Labels(**{key: values[key] for key in Labels.model_fields if key in values})


def write_labels(folder: Path, change: Change) -> Labels:
    """The labels after the change. A removed tag that the folder does not have changes nothing.
    Raises InputError for a name or a tag that is not allowed, and for a folder that is neither a
    run nor a sweep."""
    if not (is_sweep(folder) or Run(folder).config_file.exists() or Run(folder).started):
        raise InputError(f"{folder}: is neither a run nor a sweep")
    labels = read_labels(folder)
    name = labels.name if change.name is None else change.name or None
    tags = [tag for tag in labels.tags if tag not in change.remove]
    with parsing(f"{folder}: cannot be labelled"):
        new = Labels(name=name, tags=list(dict.fromkeys([*tags, *change.add])))
    write_durably(folder / FILE, f"{new.model_dump_json()}\n")
    return new
