# PYTHON_ARGCOMPLETE_OK
"""The command `python -m src.tables`; see src/kindling/commands/tables.py."""

from kindling.commands.tables import main
from kindling.system.process import run

if __name__ == "__main__":
    run(main, plain=True)
