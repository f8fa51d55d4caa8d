"""The name, the tags and the note of a run or a whole sweep.

The configuration has those that were typed at the start. `write_labels` changes them later, by a
file in the folder. A sweep has the labels of its first trial. Nothing here imports torch.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from kindling.config.schema import Label, Tags
from kindling.config.section import Section
from kindling.config.written import printable
from kindling.records.folder import Run, configured, is_sweep, read_json
from kindling.records.outcome import UNKNOWN
from kindling.system.errors import InputError, parsing
from kindling.system.files import YAML_LIMIT, read_bounded, read_yaml, replacing

FILE = "labels.json"
LIMIT = 16_384  # bytes
# A configuration without labels has no such line, and need not be parsed.
LABELLED = re.compile(rb"^(name: (?!null\r?$)|tags:(?! \[\]\r?$))", re.MULTILINE)


class Labels(Section):
    name: Label | None = None
    tags: Tags = Field(default=[])
    note: Annotated[str, Field(max_length=2000)] | None = None  # any text

    def __str__(self) -> str:
        note = f", note {printable(self.note)}" if self.note else ""
        return f"name {self.name or UNKNOWN}, tags {', '.join(self.tags) or UNKNOWN}{note}"


NONE = Labels()


def read_labels(folder: Path) -> Labels:
    """Raises InputError for a damaged file."""
    parse = Labels.model_validate_json
    labels = read_json(folder / FILE, LIMIT, parse, "the labels of a run", "; remove it")
    if labels is not None:
        return labels
    run = configured(folder)
    if run is None or not LABELLED.search(read_bounded(run.config_file, YAML_LIMIT)):
        return NONE
    values = read_yaml(run.config_file)
    with parsing(f"{run.config_file}: is not a configuration"):
        return Labels(**{key: values[key] for key in Labels.model_fields if key in values})


def write_labels(
    folder: Path,
    name: str | None = None,
    add: Sequence[str] = (),
    remove: Sequence[str] = (),
    note: str | None = None,
) -> Labels:
    """The labels with a new name and note, and with tags added and removed. The text "" removes a
    name or a note, and None keeps it. A removed tag that the folder does not have changes nothing.
    Raises InputError for a name, a tag or a note that is not allowed, and for a folder that is
    neither a run nor a sweep."""
    if not (is_sweep(folder) or Run(folder).config_file.exists() or Run(folder).started):
        raise InputError(f"{folder}: is neither a run nor a sweep")
    with replacing(folder / FILE) as temporary:  # two commands at once: no tag is lost
        labels = read_labels(folder)
        kept = [tag for tag in labels.tags if tag not in remove]
        try:
            new = Labels(
                name=labels.name if name is None else name or None,
                tags=list(dict.fromkeys([*kept, *add])),
                note=labels.note if note is None else note or None,
            )
        except ValidationError as error:
            wrong = error.errors()[0]
            what, told = str(wrong["loc"][0]).removesuffix("s"), wrong["msg"]
            raise InputError(
                f"{folder}: the {what} {str(wrong['input'])[:80]!r} "
                f"{told.removeprefix('Value error, ')}"
            ) from None
        temporary.write_text(f"{new.model_dump_json(exclude_none=True)}\n", encoding="utf-8")
    return new
