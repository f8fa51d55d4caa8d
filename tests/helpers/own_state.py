"""A command that prints what its process was given, as JSON."""

import json
import os
import resource
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from kindling.system.installation import as_command
from kindling.system.process import run


def state() -> dict[str, Any]:
    descriptors = {}
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # that of the listing
            descriptors[entry.name] = str(entry.readlink())
    umask = os.umask(0)
    os.umask(umask)
    module = sys.modules["__main__"]
    return {
        "argv": sys.argv,
        "path": sys.path,
        "environment": dict(os.environ),
        "folder": str(Path.cwd()),
        "descriptors": descriptors,
        "umask": umask,
        "limits": {
            name: resource.getrlimit(getattr(resource, name))
            for name in dir(resource)
            if name.startswith("RLIMIT_")
        },
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "cores": sorted(os.sched_getaffinity(0)),
        "handlers": {
            str(number): str(signal.getsignal(number)) for number in signal.valid_signals()
        },
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "streams": [
            [each and [each.encoding, each.isatty()]]
            for each in (sys.stdin, sys.stdout, sys.stderr)
        ],
        "main": [getattr(module.__spec__, "name", None), getattr(module, "__file__", None)],
        "typed": as_command("train"),
        "threads": threading.active_count(),
        "flags": list(sys.flags),
    }


def main() -> None:
    text = json.dumps(state())
    Path(os.environ["TOLD"]).write_text(text)
    sys.exit(int(os.environ.get("STATUS", "0")))


if __name__ == "__main__":
    run(main, plain=True)
