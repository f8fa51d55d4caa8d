# PYTHON_ARGCOMPLETE_OK
"""The command `python -m src.devices`; see src/kindling/commands/devices.py."""

from kindling.commands.devices import main
from kindling.system.process import run

if __name__ == "__main__":
    run(main, plain=True)
