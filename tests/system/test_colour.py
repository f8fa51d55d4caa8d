"""Colour only where there are eyes."""

import io
import json
import logging
from pathlib import Path

import pytest
from tabulate import tabulate

from kindling.records.listing import listed
from kindling.system.colour import (
    BOLD,
    RED,
    RESET,
    YELLOW,
    cleaned,
    coloured,
    is_terminal,
    note_name,
    tell_error,
    with_best,
)
from kindling.system.errors import InputError, exit_on_error, reading
from kindling.system.process import LogLines
from tests.helpers.runs import ended
from tests.helpers.screen import Terminal, terminal


def test_what_is_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal() as shown:
        assert is_terminal(shown)
        assert not is_terminal(io.StringIO())
        monkeypatch.setenv("TERM", "dumb")
        assert not is_terminal(shown)
        monkeypatch.delenv("TERM")
        assert not is_terminal(shown)


@pytest.mark.parametrize(
    ("no_color", "force_color", "term", "on_terminal", "in_pipe"),
    [
        (None, None, "xterm", True, False),
        ("", "", "xterm", True, False),  # empty counts as not set
        ("1", None, "xterm", False, False),
        ("0", None, "xterm", False, False),  # any value counts, as no-color.org says
        (None, "1", "xterm", True, True),
        (None, "1", "dumb", True, True),
        ("1", "1", "xterm", False, False),
        (None, None, "dumb", False, False),
        (None, None, None, False, False),
    ],
)
def test_what_has_colours(
    no_color: str | None,
    force_color: str | None,
    term: str | None,
    on_terminal: bool,
    in_pipe: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = {"NO_COLOR": no_color, "FORCE_COLOR": force_color, "TERM": term}
    for name, value in values.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert (coloured(Terminal()), coloured(io.StringIO())) == (on_terminal, in_pipe)


def test_errors_are_red_on_a_terminal_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with terminal() as shown, pytest.raises(SystemExit), exit_on_error():
        raise InputError("seed=ä: wrong\n  error: again")
    assert shown.getvalue() == f"{RED}error:{RESET} seed=ä: wrong\n  error: again\n"
    tell_error("wrong")
    assert capsys.readouterr().err == "error: wrong\n"


@pytest.mark.parametrize(
    ("level", "text", "painted"),
    [
        (logging.ERROR, "error: trial 3: no", f"{RED}error:{RESET} trial 3: no"),
        (logging.ERROR, "rank 1: error: error:", f"rank 1: {RED}error:{RESET} error:"),
        (logging.WARNING, "a\n\nb", f"{YELLOW}a{RESET}\n\n{YELLOW}b{RESET}"),
        (logging.INFO, "data  1\n!     few\nx ! y", f"data  1\n{YELLOW}!     few{RESET}\nx ! y"),
        (logging.INFO, "error: no error", "error: no error"),
    ],
)
def test_log_lines(level: int, text: str, painted: str) -> None:
    record = logging.LogRecord("kindling", level, "", 0, "%s", (text,), None)
    with terminal() as shown:
        LogLines(shown).handle(record)
        piped = io.StringIO()
        LogLines(piped).handle(record)
    assert shown.getvalue() == f"{painted}\n"
    assert piped.getvalue() == f"{text}\n"


def test_the_best_rows_are_bold() -> None:
    table = tabulate([["a", 1], ["b", 2], ["c", 3]], ["name", "value"])
    assert with_best(table, 0) == table
    with terminal():
        lines = with_best(table, 0, 2).splitlines()
        assert with_best(table) == table
    plain = table.splitlines()
    assert lines[:2] == plain[:2]
    assert lines[2:] == [f"{BOLD}{plain[2]}{RESET}", plain[3], f"{BOLD}{plain[4]}{RESET}"]


def test_json_has_no_colours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number, value in enumerate((0.9, 0.7)):
        ended(Path("runs/2026-01-01") / str(number), value)
    monkeypatch.setenv("FORCE_COLOR", "1")
    shown = listed([], [], "began", 30, as_json=False)
    assert sum(BOLD in line for line in shown.splitlines()) == 1
    assert "90.00%" in next(line for line in shown.splitlines() if BOLD in line)
    found = listed([], [], "began", 30, as_json=True)
    assert "\x1b" not in found
    assert sorted(entry["best"] for entry in json.loads(found)) == [0.7, 0.9]


CODES = [*range(1, 32), *range(127, 160), *range(0x2028, 0x202F), *range(0x2066, 0x206A)]


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("name", ["a{}b", "{}a", "a{}", "{}", "a{}  error: b"])
def test_a_name_stays_in_its_line(code: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every message, also with other lines and where the stream has colours."""
    monkeypatch.setattr("kindling.system.colour._names", {})
    monkeypatch.setenv("FORCE_COLOR", "1")
    folder, expected = f"runs/{name.format(chr(code))}", f"runs/{name.format(chr(0xFFFD))}"
    texts = ("{}: is no run\n  data\n  q\tr", "wrong: {}/0\n\n", "  ({}, {}/1)", "'{}'", "q\nr\n")
    before = [text.format(*["runs/a"] * 2) for text in texts]
    assert [cleaned(text) for text in before] == before
    with reading(Path(folder, "x")):
        pass
    for text in texts:
        written = io.StringIO()
        assert cleaned(text.format(folder, folder), written) == text.format(expected, expected)
    assert cleaned(f"{folder}\x1b[31m", written) == f"{expected}\x1b[31m"
    LogLines(written).handle(
        logging.makeLogRecord({"msg": f"{folder}: read\n  more", "levelno": 20})
    )
    assert written.getvalue() == f"{expected}: read\n  more\n"


def test_a_name_that_words_end_with_changes_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kindling.system.colour._names", {})
    for name in ("a\n", "\n", "\t", "b\n  c"):
        note_name(Path("runs", name))
    text = "data\n\nruns:\tb\n"
    assert cleaned(text) == text
    assert cleaned("runs/a\n: no\nruns/b\n  c") == "runs/a\ufffd: no\nruns/b\ufffd  c"
