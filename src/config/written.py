"""Values as people type them on the command line."""

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

LONGEST = 80  # characters of a value in a message


def written(value: Any) -> str:
    """A value in the grammar of Hydra's command line."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, list):
        return "[" + ",".join(_item(item) for item in value) + "]"
    return str(value)


def _item(value: Any) -> str:
    """An element of a list, in quotes where Hydra would read the bare text as something else."""
    plain = not isinstance(value, str) or re.fullmatch(r"(?a)[^\W\d][\w.-]*", value)
    if plain and str(value).lower() not in ("true", "false", "null", "nan", "inf"):
        return written(value)
    # To Hydra a backslash is an ordinary character, except before a quote.
    escaped = re.sub(r'(\\*)"', r'\1\1\\"', str(value))
    escaped += "\\" * (len(escaped) - len(escaped.rstrip("\\")))
    return f'"{escaped}"'


def printable(text: str) -> str:
    """Replaces unprintable characters; the name of a file may contain line ends."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def shortened(value: Any) -> str:
    """The beginning of the written value, for messages."""
    text = written(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def typed(key: str, value: Any) -> str:
    """KEY=VALUE, quoted for a shell where it must be."""
    text = f"{key}={written(value)}"
    return text if re.fullmatch(r"[\w.,=\[\]+-]+", text) else shlex.quote(text)


def flat(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The dotted key and the written value of every leaf of nested values."""
    return ((key, written(value)) for key, value in flat_values(values))


def flat_values(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The dotted key and the value of every leaf of nested values."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat_values(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
