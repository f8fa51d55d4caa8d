# PYTHON_ARGCOMPLETE_OK
"""The command `python -m src.lr_find`; see src/kindling/commands/lr_find.py."""

from kindling.commands.lr_find import main
from kindling.system.process import run

if __name__ == "__main__":
    run(main, plain=True)
