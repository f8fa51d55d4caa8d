"""Keeps a process with the libraries loaded: commands then begin at once.

python -m src.warm                until 30 minutes after the last command
python -m src.warm --for 8h
python -m src.warm --status
python -m src.warm --stop         commands that run end undisturbed

Every command of the same user and the same environment uses the process, with the same results.
When code or packages change, the process ends, and commands start for themselves again. Linux only.
"""

import re
import time
from collections.abc import Iterator, Sequence

from kindling.config.written import counted
from kindling.system import warm
from kindling.system.arguments import command_parser
from kindling.system.errors import InputError
from kindling.system.installation import as_command
from kindling.system.units import duration

# What commands import, with all libraries below; without polars, which has threads from the start.
LIBRARIES = (
    "kindling.inference.baselines", "kindling.inference.committees.making",
    "kindling.inference.evaluation", "kindling.inference.importance", "kindling.inference.model",
    "kindling.records.listing", "kindling.reports.figures", "kindling.reports.model_pictures",
    "kindling.reports.page", "kindling.sweeps.packs.loop", "kindling.sweeps.run_command",
    "kindling.sweeps.trials", "kindling.training.fit", "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg", "scipy.optimize", "scipy.stats", "sklearn.ensemble",
    "sklearn.linear_model",
)  # fmt: skip
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(text: str) -> float:
    """Seconds of a duration such as 45s, 30m, 8h or 2d. Raises InputError for another text."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if found is None or not 0 < (value := float(found[1]) * UNITS[found[2]]) <= 30 * 86400:
        raise InputError(f"--for {text}: must be a duration of at most 30d, such as 45s, 30m or 8h")
    return value


def compositions(typed: Sequence[str]) -> Iterator[list[str]]:
    """Those that a command with such arguments begins with; of [], those of most commands."""
    from kindling.config.compose import shared_composer

    composer = shared_composer(None)
    return composer.learn(typed) if typed else composer.prepare()


def main() -> None:
    parser = command_parser("warm", __doc__)
    parser.value(
        "--for", "TIME", "how long the process waits for the next command; default: 30m",
        dest="idle", default="30m",
    )  # fmt: skip
    doing = parser.add_mutually_exclusive_group()
    doing.add_argument("--status", action="store_true", help="tell what the process does")
    doing.add_argument("--stop", action="store_true", help="end the process")
    arguments = parser.parse_args()
    idle = seconds(arguments.idle)
    if not warm.available():
        raise InputError("a warm process needs Linux; commands start for themselves")
    from kindling.system import warm_server

    if arguments.status or arguments.stop:
        state = warm.asked(b"q" if arguments.stop else b"s")
        if state is not None:
            print(_told(state, stopped=arguments.stop))
        elif warm_server.is_starting():
            print("the warm process is still loading the libraries")
            raise SystemExit(1)
        else:
            print(f"no warm process; {as_command('warm')} starts one")
            raise SystemExit(0 if arguments.stop else 1)
    elif state := warm.asked(f"i{idle:.0f}\n".encode()):
        print(_told(state))
    else:
        begin = warm_server.start(idle, LIBRARIES, compositions)
        if begin is None:
            print(
                "the libraries are being loaded; then commands begin at once, until "
                f"{as_command('warm')} --stop"
            )
        elif command := begin():  # in a process of its own, which becomes a command
            command()


def _told(state: dict[str, float | str], *, stopped: bool = False) -> str:
    count, running = counted(int(state["commands"]), "command"), int(state["running"])
    began = time.strftime("%H:%M", time.localtime(float(state["began"])))
    told = f"process {state['process']}, warm since {began}; {count} so far"
    told += f", {running} running"
    if stopped:
        return f"{told}; ends" + (" after these" if running else "")
    told += f"; ends {duration(float(state['idle']))} after the last command"
    if state["refused"]:
        told += f"\nthe last command that started for itself: {state['refused']}"
    return told
