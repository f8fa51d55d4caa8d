"""Values as people type them on the command line."""

import re
import shlex
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kindling.system.colour import cleaned

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


# What a spreadsheet takes for a formula, also after it has made wide characters narrow.
FORMULA = tuple("=+-@\t\r\uff1d\uff0b\uff0d\uff20")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|nan)", re.ASCII)


def cell(value: Any) -> Any:
    """A value to write into a CSV file: of a text, which may come from a stranger's file, neither a
    spreadsheet makes a formula nor a terminal a code. A formula gets a ' before it, as spreadsheets
    themselves mark a text; a number stays as it is."""
    if not isinstance(value, str):
        return value
    marked = value.startswith(FORMULA) and not NUMBER.fullmatch(value)
    return f"'{cleaned(value)}" if marked else cleaned(value)


def printable(text: str) -> str:
    """Replaces unprintable characters; the name of a file may contain line ends."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def column_name(name: str) -> str:
    """A name as tables have it: without white space around, in Unicode's composed form."""
    return unicodedata.normalize("NFC", name.strip())


def place_of_class(names: Sequence[str], name: str) -> int | None:
    """The place of a class in the names of a model's classes, or None. Models of earlier versions
    have printable names."""
    return next((names.index(each) for each in (name, printable(name)) if each in names), None)


def same_classes(stored: Sequence[str], names: Sequence[str]) -> bool:
    """Whether these are the classes of a stored model; see `place_of_class`."""
    return list(stored) in ([*names], [*map(printable, names)])


def unquoted(text: str) -> str:
    """A text as it was before it got quotes for Hydra's command line; see `_item`."""
    quote = text[:1]
    if len(text) < 2 or quote not in ("'", '"') or text[-1] != quote:
        return text
    return re.sub(rf"(\\*)\\{quote}", lambda m: m[1][::2] + quote, text[1:-1])


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


class Values:
    """Reads dotted keys from values that may have wrong types. A missing key is None."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __getitem__(self, key: str) -> Any:
        value: Any = self._values
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def number(self, key: str) -> float:
        value = self[key]
        return value if isinstance(value, int | float) else 0
