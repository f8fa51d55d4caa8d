"""A run from Python: `kindling.fit`."""

import shlex
import signal
from functools import wraps
from typing import Any

from kindling.config.schema import Config
from kindling.records.folder import Run
from kindling.system.errors import Interrupted, InterruptedByKeys
from kindling.system.process import printing_log
from kindling.training import fit as silent


@wraps(silent.fit)
def fit(config: Config, *others: Any, **options: Any) -> Run:
    wanted = not isinstance(config, Config) or config.trainer.progress_bar is not False
    try:
        with printing_log(wanted=wanted):
            return silent.fit(config, *others, **options)
    except Interrupted as interrupted:
        kind = InterruptedByKeys if interrupted.number == signal.SIGINT else Interrupted
        told, typed, command = str(interrupted).partition("; to go on, type\n")
        if typed:
            where = shlex.split(command)[-1].removeprefix("resume=")
            told += f"; to go on, call fit(config, {where!r}, resume=True)"
        raise kind(interrupted.number, told) from None


fit.__doc__ = f"""{silent.fit.__doc__}
    Prints what `python -m src.train` prints: a line per epoch, warnings and a summary, and on a
    terminal or in a notebook a progress bar. `trainer.progress_bar=false` prints nothing. A program
    that has handlers for the log gets the lines there instead.

    For `resume` and `callbacks` see `fit` in training/fit.py, which prints nothing itself. Ctrl-C
    raises an Interrupted that is a KeyboardInterrupt too.
    """
