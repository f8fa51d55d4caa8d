"""The values that each key may have, from the schema: for --help, and for completion by Tab."""

import functools
import itertools
import re
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kindling.config.faults import options
from kindling.config.registry import CONFIG_FOLDERS
from kindling.config.schema import GROUPS, Config, FusedLauncher, Search
from kindling.config.section import MOST, Section
from kindling.config.written import Values, flat, written
from kindling.system.installation import CONF, as_typed


@dataclass(frozen=True)
class Allowed:
    """The values of a key in words, and those that can be listed."""

    text: str
    listed: tuple[str, ...]


@functools.cache
def allowed_values(model: type[Section], prefix: str = "") -> dict[str, Allowed]:
    """By dotted key. A key that several choices of a group have allows the values of all of them;
    the `name` of a group is left out."""
    schema = model.model_json_schema()
    found: dict[str, list[dict[str, Any]]] = {}
    for key, own in schema["properties"].items():
        references = [own, *own.get("oneOf", ())]
        sections = [one["$ref"].rpartition("/")[2] for one in references if "$ref" in one]
        for section in sections:
            for name, inner in schema["$defs"][section]["properties"].items():
                if (key, name) not in {(group, "name") for group in GROUPS}:
                    found.setdefault(f"{prefix}{key}.{name}", []).extend(
                        inner.get("anyOf", [inner])
                    )
        if not sections:
            found[f"{prefix}{key}"] = [own]
    return {key: _allowed({"anyOf": schemas}) for key, schemas in found.items()}


def _allowed(schema: Mapping[str, Any]) -> Allowed:
    if "anyOf" in schema:
        parts = [_allowed(each) for each in schema["anyOf"]]
        text = ", ".join(dict.fromkeys(part.text for part in parts))
        return Allowed(text, tuple(dict.fromkeys(one for part in parts for one in part.listed)))
    kind, listed = schema.get("type"), list[Any]()
    if "enum" in schema or "const" in schema:
        listed = schema.get("enum", [schema.get("const")])
    elif kind == "boolean":
        listed = [True, False]
    elif kind == "null":
        listed = [None]
    if listed:
        texts = tuple(map(written, listed))
        return Allowed(", ".join(texts), texts)
    if kind == "array":
        return Allowed(f"a list: {_allowed(schema['items']).text}", ())
    if kind == "string":
        example = next(iter(schema.get("examples", ())), None)
        return Allowed(f"a text such as {example}" if example else "a text", ())
    return Allowed(_range(schema), ())


def _range(schema: Mapping[str, Any]) -> str:
    """A range such as `1 or more`, `0 to 180`, `above 0` or `0 to below 1`."""
    whole = schema["type"] == "integer"
    low, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    high, below = schema.get("maximum", schema.get("le")), schema.get("exclusiveMaximum")
    if whole:
        low, above = (above + 1, None) if low is None and above is not None else (low, above)
        high, below = (below - 1, None) if high is None and below is not None else (high, below)
    if high == MOST:  # no limit of this key
        high = None
    if low is None and above is None:
        return "any number" if high is None else f"at most {high:,}"
    start = f"above {above:,}" if low is None else f"{low:,}"
    if below is not None:
        return f"{start} to below {below:,}"
    if high is not None:
        return f"{start} to {high:,}"
    return start if low is None else f"{start} or more"


def describe_keys(values: Mapping[str, Any]) -> str:
    """The groups with their choices, and the keys of a configuration with the allowed values and
    their meaning, in tables as wide as the terminal."""
    known, meanings = allowed_values(Config), _meanings(values)
    groups = [(f"  {group}=", ", ".join(options(group))) for group in GROUPS]
    keys = [
        (f"  {key}={text}", known[key].text, meanings.get(key, ""))
        for key, text in flat(values)
        if key in known
    ]
    launcher = allowed_values(FusedLauncher, "hydra.launcher.").items()
    fused = [(f"  {key}=", each.text) for key, each in launcher]
    return (
        f"groups:\n{_columns(groups)}\n\n"
        "keys, with the values of this command line, the allowed values, and what they mean:\n"
        f"{_columns(keys)}\n\n"
        f"keys of hydra/launcher=fused, see docs/sweeps.md:\n{_columns(fused)}"
    )


def search_keys() -> str:
    """The keys of a search with their defaults, the allowed values and their meaning."""
    known = allowed_values(Search, "search.")
    comments = _comments(CONF / "search.yaml").items()
    return _columns(
        [(f"  {key}={value}", known[key].text, text) for key, (value, text) in comments if value]
    )


def _meanings(values: Mapping[str, Any]) -> dict[str, str]:
    """By dotted key, of a composed configuration: the comments of the files that have the keys."""
    found = {key: text for key, (_, text) in _comments(CONF / "train.yaml").items()}
    for group in GROUPS:
        names = ("_common", "default", "none", Values(values)[f"{group}.name"])
        for folder, name in itertools.product((CONF, *CONFIG_FOLDERS), names):
            if (file := folder / group / f"{name}.yaml").exists():
                found |= {
                    f"{group}.{key.removeprefix(f'{group}.')}": text
                    for key, (_, text) in _comments(file).items()
                    if text
                }
    return found


def _comments(file: Path) -> dict[str, tuple[str, str]]:
    """The value and the comment of each key of a YAML file, of at most two levels."""
    found, section = {}, ""
    for line in as_typed(file.read_text("utf-8")).splitlines():
        if match := re.fullmatch(r"(  )?(\w+):(?: ([^#]*?))??(?: # (.*))?", line):
            within, key, value, comment = match.groups()
            section = section if within else key
            found[f"{section}.{key}" if within else key] = (value or "", comment or "")
    return found


def _columns(rows: Sequence[Sequence[str]]) -> str:
    """A table as wide as the terminal, if that has room; the first column is never cut."""
    first = max(len(row[0]) for row in rows)
    rest = max(shutil.get_terminal_size((110, 24)).columns - first - 2, 30)
    widths = [rest] if len(rows[0]) == 2 else [rest * 2 // 5 - 2, rest - rest * 2 // 5]
    lines = []
    for start, *texts in rows:
        cells = [textwrap.wrap(text, width) for text, width in zip(texts, widths, strict=True)]
        for parts in itertools.zip_longest([start], *cells, fillvalue=""):
            padded = zip(parts, [first, *widths], strict=True)
            lines.append("  ".join(text.ljust(width) for text, width in padded).rstrip())
    return "\n".join(lines)
