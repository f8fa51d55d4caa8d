"""Lines that are drawn again in place."""

import io
import logging
import re
import sys
from typing import Any

import pytest
from tqdm import tqdm

from kindling.system.terminal import Area, progress
from tests.helpers.screen import Terminal, terminal

log = logging.getLogger("kindling.some.module")


def test_lines_are_replaced() -> None:
    area = Area()
    with terminal(columns=40) as shown:
        print("before")
        with area.open():
            area.draw(["first", "second line", "third"])
            assert shown.screen == ["before", "first", "second line", "third"]
            area.draw(["new", "second"])
            assert shown.screen == ["before", "new", "second"]
            area.draw([f"{'long ' * 20}", "a", "b"])
            assert shown.screen == ["before", ("long " * 20)[:39].rstrip(), "a", "b"]
        assert shown.screen == ["before"]
        print("after")
        assert shown.screen == ["before", "after"]


def test_log_lines_go_above() -> None:
    area = Area()
    with terminal() as shown:
        with area.open():
            area.draw(["table", "totals"])
            log.info("one")
            log.info("two\nthree")
            assert shown.screen == ["one", "two", "three", "table", "totals"]
        log.info("four")
        assert shown.screen == ["one", "two", "three", "four"]


def test_a_progress_bar_stays_below() -> None:
    area, looks = Area(), "bar {n}"
    with terminal() as shown, area.open():
        area.draw(["table"])
        with tqdm(total=4, file=sys.stderr, leave=False, bar_format=looks, mininterval=0) as bar:
            for number in range(1, 4):
                bar.update()
                log.info("line %d", number)
                area.draw([f"table {number}"])
            assert shown.screen == ["line 1", "line 2", "line 3", "table 3", "bar 3"]
        assert shown.screen == ["line 1", "line 2", "line 3", "table 3"]


class Late(tqdm):  # type: ignore[type-arg]
    """A bar as after a second."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **{**named, "delay": 0, "mininterval": 0})


def test_progress_tells_the_time_left_and_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kindling.system.terminal.tqdm", Late)
    with terminal() as shown:
        assert list(progress([1, 2, 3], "files read")) == [1, 2, 3]
        assert re.search(r"files read:  33%\|.*\| 1/3 \[\d\d:\d\d<\d\d:\d\d, ", shown.getvalue())
        assert shown.screen == [""]


@pytest.mark.parametrize("hidden", ["rank", "pipe", "dumb", "one", "soon"])
def test_progress_that_nobody_needs(hidden: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On another rank, in a pipe, on a terminal without control codes, for a single item, and
    before a second has passed."""
    if hidden != "soon":
        monkeypatch.setattr("kindling.system.terminal.tqdm", Late)
    if hidden == "rank":
        ranks = {"SLURM_JOB_NAME": "train", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"}
        for name, value in {**ranks, "SLURM_PROCID": "1"}.items():
            monkeypatch.setenv(name, value)
    items = [1] if hidden == "one" else [1, 2]
    with terminal() as shown:
        if hidden == "pipe":
            monkeypatch.setattr("sys.stderr", io.StringIO())
        if hidden == "dumb":
            monkeypatch.setenv("TERM", "dumb")
        assert list(progress(items, "files read")) == items
        assert shown.getvalue().strip("\r ") == ""


def test_quiet_loggers() -> None:
    with terminal() as shown:
        with Area(["kindling.some"]).open():
            log.info("not printed")
            log.warning("printed")
            logging.getLogger("kindling.something").info("printed too")
        log.info("again")
        assert shown.screen == ["printed", "printed too", "again"]


def test_the_lines_are_removed_after_an_exception() -> None:
    def interrupted(shown: Terminal) -> None:
        area = Area()
        with area.open():
            area.draw(["table"])
            shown.write("^C")
            raise KeyboardInterrupt

    with terminal() as shown:
        with pytest.raises(KeyboardInterrupt):
            interrupted(shown)
        assert shown.screen == [""]
