"""Pictures that other processes draw."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kindling.reports.drawing import draw
from kindling.reports.pictures import PagePicture

# A process that has not imported torch, as that of the command.
BEGIN = """
import os, signal, sys
import numpy as np
from kindling.reports import drawing
from kindling.reports.drawing import draw, drawing_apart
from kindling.reports.pictures import PagePicture

drawing.cpu_count = lambda: 2
rng = np.random.default_rng(0)
kinds = {
    "greys": lambda: (rng.random((40, 60, 60)), 9),  # does not fit into a pipe
    "confusion": lambda: (rng.integers(0, 9, (6, 6)), "abcdef"),
    "bars": lambda: (["a", "$b"], [0.5, None], "F1"),
}
pictures = [
    PagePicture(f"{name}{n}", "", f"kindling.plots.pictures:{name}", kinds[name]())
    for n in range(2) for name in kinds
]
"""


def run(script: str) -> str:
    command = [sys.executable, "-c", BEGIN + script]
    return subprocess.run(command, capture_output=True, check=True, text=True, timeout=120).stdout


linux = pytest.mark.skipif(sys.platform != "linux", reason="pictures are drawn apart on Linux")


@linux
def test_they_have_the_same_bytes() -> None:
    """Many large ones, too, that are all begun before the first is waited for."""
    told = run(
        "with drawing_apart() as begin:\n"
        "    found = [wait() for wait in [begin(picture) for picture in pictures]]\n"
        "    print('matplotlib' in sys.modules, found == [draw(picture) for picture in pictures])\n"
    )
    assert told.split() == ["False", "True"]


@linux
def test_a_fault_is_raised_where_one_waits() -> None:
    told = run(
        "broken = PagePicture('a', '', 'kindling.plots.pictures:bars', (['a'], ['b'], 'F1'))\n"
        "with drawing_apart() as begin:\n"
        "    good, bad, after = map(begin, (pictures[1], broken, pictures[2]))\n"
        "    print(good() == draw(pictures[1]))\n"
        "    try:\n"
        "        bad()\n"
        "    except Exception as error:\n"
        "        print(type(error).__name__)\n"
        "    print(after() == draw(pictures[2]))\n"
    )
    assert told.split() == ["True", "ValueError", "True"]


@linux
def test_what_a_killed_process_has_not_drawn_is_drawn_here() -> None:
    told = run(
        "import multiprocessing\n"
        "with drawing_apart() as begin:\n"
        "    first = begin(pictures[0])()\n"
        "    (process,) = multiprocessing.active_children()\n"
        "    process.kill()\n"
        "    found = [wait() for wait in [begin(picture) for picture in pictures]]\n"
        "print(first == found[0], found == [draw(picture) for picture in pictures])\n"
    )
    assert told.split() == ["True", "True"]


@linux
@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGINT])
def test_they_end_with_the_process_that_began_them(way: signal.Signals, tmp_path: Path) -> None:
    """Quietly, also when a terminal's Ctrl-C reaches all of them."""
    script = (
        "import multiprocessing, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # which nohup ignores
        "with drawing_apart() as begin:\n"
        "    begin(pictures[0])()\n"
        "    waiting = [begin(picture) for picture in pictures]\n"
        "    print('begun', flush=True)\n"
        "    time.sleep(60)\n"
    )
    errors = tmp_path / "errors"
    with errors.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", BEGIN + script], stdout=subprocess.PIPE, stderr=file,
            start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        if way == signal.SIGINT:
            os.killpg(process.pid, way)
        else:
            process.kill()
        process.wait(30)
    until = time.monotonic() + 30
    while _group_has_members(process.pid):
        assert time.monotonic() < until
        time.sleep(0.05)
    process.stdout.close()
    assert errors.read_text().count("Traceback") == (way == signal.SIGINT)  # this process's own


def _group_has_members(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    "change",
    [
        "drawing.cpu_count = lambda: 1",
        "sys.modules['torch'] = sys",
        "def fork(): raise BlockingIOError\nos.fork = fork",  # this user may have no more processes
    ],
)
def test_elsewhere_this_process_draws(change: str) -> None:
    told = run(
        f"import multiprocessing\n{change}\n"
        "with drawing_apart() as begin:\n"
        "    print(begin(pictures[2])() == draw(pictures[2]), multiprocessing.active_children())\n"
    )
    assert told.split() == ["True", "[]"]


def test_letters_without_a_font_are_no_warning() -> None:
    """The SVG has them as text, for which a browser finds a font."""
    picture = PagePicture(
        "bars", "", "kindling.plots.pictures:bars", (["\u6027\u522b", "\U0001f600"], [0.5, 1], "F1")
    )
    assert "\u6027\u522b" in draw(picture).svg
