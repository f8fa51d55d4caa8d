# PYTHON_ARGCOMPLETE_OK
"""The command `python -m src.board`; see src/kindling/commands/board.py."""

from kindling.commands.board import main
from kindling.system.process import run

if __name__ == "__main__":
    run(main, plain=True)
