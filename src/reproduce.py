# PYTHON_ARGCOMPLETE_OK
"""The command `python -m src.reproduce`; see src/kindling/commands/reproduce.py."""

from kindling.commands.reproduce import main
from kindling.system.process import run

if __name__ == "__main__":
    run(main, plain=True)
