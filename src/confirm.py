# PYTHON_ARGCOMPLETE_OK
"""The command `python -m src.confirm`; see src/kindling/commands/confirm.py."""

from kindling.commands.confirm import main
from kindling.system.process import run

if __name__ == "__main__":
    run(main, plain=True)
