"""Lines that are drawn again in place."""

import logging
import sys

import pytest
from tqdm import tqdm

from src.system.terminal import Area
from tests.helpers.screen import Terminal, terminal

log = logging.getLogger("src.some.module")


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


def test_quiet_loggers() -> None:
    with terminal() as shown:
        with Area(["src.some"]).open():
            log.info("not printed")
            log.warning("printed")
            logging.getLogger("src.something").info("printed too")
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
