"""The arguments of a command: help in one style, faults in one line, completion by Tab."""

import argparse
import difflib
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from kindling.system.colour import note_name
from kindling.system.errors import InputError
from kindling.system.installation import as_command, as_typed

NUMBERS = {"int": "a whole number", "float": "a number"}


class Parser(argparse.ArgumentParser):
    """Raises InputError, in one line, where argparse would print its usage and end the process."""

    advice = ""  # for an unknown argument that is like no other

    def add_argument(
        self, *names: str, completer: Callable[..., Sequence[str]] | None = None, **others: Any
    ) -> argparse.Action:
        """As argparse; Tab completes the argument by `completer(prefix=, parsed_args=, …)`."""
        action = super().add_argument(*names, **others)
        action.completer = completer  # type: ignore[attr-defined]  # argcomplete looks for it
        return action

    def value(self, name: str, metavar: str, purpose: str, **others: Any) -> None:
        self.add_argument(name, metavar=metavar, help=purpose, **others)

    def flag(self, name: str, purpose: str) -> None:
        self.add_argument(name, action="store_true", help=purpose)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._answer_shell()
        return _noted(super().parse_args(args, namespace))

    def parse_intermixed_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._answer_shell()
        return _noted(super().parse_intermixed_args(args, namespace))

    def _answer_shell(self) -> None:
        """If a shell asks what Tab completes, answers and ends the process."""
        if "_ARGCOMPLETE" in os.environ:
            import argcomplete

            argcomplete.autocomplete(self)

    def error(self, message: str) -> NoReturn:
        options = [*self._option_string_actions]
        raise InputError(_in_house_style(message, options, self.prog, self.advice))


def _noted(arguments: argparse.Namespace) -> argparse.Namespace:
    """The same arguments. Messages may name their paths."""
    for value in vars(arguments).values():
        for path in value if isinstance(value, list) else [value]:
            if isinstance(path, Path):
                note_name(path)
    return arguments


def _in_house_style(message: str, options: Sequence[str], program: str, advice: str) -> str:
    """A message of argparse as this project writes it; a message that is not known stays."""
    message = message.removeprefix("argument ")
    ask = f"; type {program} --help for help"
    if found := re.fullmatch(r"(?s)unrecognized arguments: (\S+).*", message):
        long = [option for option in options if option.startswith("--")]
        close = difflib.get_close_matches(found[1].partition("=")[0], long, 1, 0.7)
        told = f"; did you mean {close[0]}?" if close else advice or ask
        return f"{found[1]}: unknown argument{told}"
    if found := re.fullmatch(r"(?s)(\S+): invalid (int|float) value: '(.*)'", message):
        message = f"{found[1]} {found[3]}: must be {NUMBERS[found[2]]}"
    elif found := re.fullmatch(
        r"(?s)(\S+): invalid choice: '(.*)'.* \(choose from (.*)\)", message
    ):
        allowed = found[3].replace("'", "").split(", ")
        close = difflib.get_close_matches(found[2], allowed, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        return f"{found[1]} {found[2]}: must be one of {', '.join(allowed)}{hint}"
    elif found := re.fullmatch(r"the following arguments are required: (.*)", message):
        message = f"{found[1]}: is missing"
    return message + ask


def command_parser(name: str, docstring: str | None, **others: Any) -> Parser:
    """The parser of the command NAME. The docstring is its help: a sentence, examples, and
    perhaps further paragraphs. `others` are for argparse."""
    purpose, _, rest = as_typed(docstring or "").partition("\n\n")
    examples, _, text = rest.strip().partition("\n\n")
    shown = "\n  ".join(["examples:", *examples.splitlines()])
    return Parser(
        as_command(name),
        description=purpose.strip(),
        epilog=f"{shown}\n\n{text}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **others,
    )


def as_path(value: object, given: str) -> Path:
    """The path that a program has given as an argument, as in `fit(config, folder)`. Raises
    InputError for what is neither a text nor a Path."""
    if isinstance(value, str | os.PathLike) and isinstance(path := os.fspath(value), str) and path:
        note_name(path)
        return Path(path)
    raise InputError(f'{given}: got {value!r:.80}, must be a path, such as "runs/mine"')
