"""Draws the pictures of a page: in this process, or in others while this one does other work.

A report takes as long to import torch and to try the models as to import Matplotlib and to draw.
The processes that draw are forked before torch is imported, and import Matplotlib meanwhile.
"""

import io
import multiprocessing
import os
import queue
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from itertools import cycle
from multiprocessing.connection import Connection
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple, NoReturn

from markupsafe import Markup, escape

from kindling.plots.style import INK, LINE, styled
from kindling.reports.pictures import FIGURES, PagePicture
from kindling.system import warm
from kindling.system.files import write_durably
from kindling.system.resources import cpu_count

MOST = 2  # processes that draw: the pictures of a model come one after the other
GONE = (EOFError, OSError)  # what a pipe raises whose other end was killed


class Drawn(NamedTuple):
    png: bytes
    svg: str


def draw(picture: PagePicture) -> Drawn:
    png, svg = io.BytesIO(), io.StringIO()
    with styled():
        figure = resolve_name(picture.drawing)(*picture.content)
        figure.savefig(png, format="png", dpi=160)
        figure.set_layout_engine("none")  # the layout of the PNG is kept
        figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None})
    return Drawn(png.getvalue(), svg.getvalue())


def themed(svg: str) -> str:
    """In the colours of colours.css."""
    return svg.replace(INK, "var(--ink)").replace(LINE, "var(--line)")


def save(picture: PagePicture, folder: Path, drawn: Drawn) -> dict[str, Any]:
    """Writes NAME.png and, with the caption, NAME.svg. Returns what a page shows: the SVG, with
    unique identifiers and the colours of the page's theme, its name, its caption and its chart."""
    name, told = picture.name, f'role="img" aria-label="{escape(picture.caption)}"'
    svg = drawn.svg.replace("<svg", f"<svg {told}", 1)
    write_durably(folder / f"{name}.png", drawn.png)
    write_durably(folder / f"{name}.svg", svg)
    svg = themed(svg)
    svg = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{name}-", svg[svg.index("<svg") :])
    size = r'<svg([^>]*?) width="([\d.]+)pt" height="[^"]*"'  # the style sheet needs the width
    svg = re.sub(size, r'<svg\1 style="--points: \2"', svg, count=1)
    shown = {"name": name, "caption": picture.caption, "chart": picture.chart}
    return {**shown, "svg": Markup(svg)}


Begin = Callable[[PagePicture], Callable[[], Drawn]]  # returns what waits for the picture


def begin_here(picture: PagePicture) -> Callable[[], Drawn]:
    drawn = draw(picture)
    return lambda: drawn


@contextmanager
def drawing_apart() -> Iterator[Begin]:
    """Yields a function that has pictures drawn by other processes, one after the other by each.
    Wait for the pictures in the order in which they were begun.

    Where processes cannot be forked safely, on one core, and if torch is there already, except in a
    command of the warm process, this process draws. It also draws what a killed process has not
    drawn."""
    count, loaded = min(MOST, cpu_count()), "torch" in sys.modules and not warm.taken
    if sys.platform != "linux" or count == 1 or loaded:
        yield begin_here
        return
    with ExitStack() as stack:
        try:
            pipes = stack.enter_context(_processes(count))
        except OSError:  # this user may have no more processes
            yield begin_here
            return
        turns = cycle(pipes)

        def begin(picture: PagePicture) -> Callable[[], Drawn]:
            pipe = next(turns)
            with suppress(*GONE):
                pipe.send(picture)

            def wait() -> Drawn:
                try:
                    found = pipe.recv()
                except GONE:
                    return draw(picture)
                if isinstance(found, Exception):
                    raise found
                drawn: Drawn = found
                return drawn

            return wait

        yield begin


@contextmanager
def _processes(count: int) -> Iterator[list[Connection]]:
    """The pipes to new processes, which end when the pipes are closed, also because this process
    was killed."""
    context = multiprocessing.get_context("fork")
    ours, theirs = map(list, zip(*(context.Pipe() for _ in range(count)), strict=True))
    process = context.Process(target=_serve, args=(theirs, ours), daemon=True)
    with warnings.catch_warnings():  # of threads, which NumPy's library has
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    for pipe in theirs:
        pipe.close()
    try:
        yield ours
    finally:
        for pipe in ours:
            pipe.close()
        process.join()


def _serve(pipes: list[Connection], inherited: list[Connection]) -> None:
    """Imports what draws, and forks a process for each pipe but the first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other process hears it, too
    for pipe in inherited:
        pipe.close()
    import_module(FIGURES.rstrip(":"))
    own, *others = pipes
    for number, pipe in enumerate(others, 1):
        with suppress(OSError):  # without it, the other process draws
            if os.fork() == 0:
                for each in (own, *others[number:]):
                    each.close()
                _draw_for(pipe)
        pipe.close()
    _draw_for(own)


def _draw_for(pipe: Connection) -> NoReturn:
    """Draws what comes through the pipe, until its other end is closed. Another thread reads the
    pipe: the other process sends pictures while this one sends what it has drawn."""
    pictures: queue.SimpleQueue[PagePicture] = queue.SimpleQueue()

    def read() -> None:
        with suppress(*GONE):
            while True:
                pictures.put(pipe.recv())
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            found: Drawn | Exception = draw(pictures.get())
        except Exception as error:  # of a picture; the other process raises it
            found = error
        with suppress(*GONE):
            pipe.send(found)
