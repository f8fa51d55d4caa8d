"""A run from Python: `kindling.fit`."""

import shlex
import signal
from functools import wraps
from typing import Any

from kindling.config.schema import Config
from kindling.records.folder import Run
from kindling.system.errors import InputError, Interrupted, InterruptedByKeys, without_own_frames
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
            own = "".join(f"{name}=…, " for name in options if name in ("model", "data"))
            told += f"; to go on, call fit(config, {where!r}, {own}resume=True)"
        raise kind(interrupted.number, told) from None
    except Exception as error:
        if options.get("model") is not None:
            without_own_frames(error)
            if isinstance(error, InputError):  # says all itself
                error.__traceback__ = None
        raise


fit.__doc__ = f"""{silent.fit.__doc__}
    Prints what `python -m src.train` prints: a line per epoch, warnings and a summary, and on a
    terminal or in a notebook a progress bar. `trainer.progress_bar=false` prints nothing. A program
    that has handlers for the log gets the lines there instead.

    For `resume` and `callbacks` see `fit` in training/fit.py, which prints nothing itself. Ctrl-C
    raises an Interrupted that is a KeyboardInterrupt too.
    """
