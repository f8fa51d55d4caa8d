# PYTHON_ARGCOMPLETE_OK
"""The command `python -m src.export`; see src/kindling/commands/export.py."""

from kindling.commands.export import main
from kindling.system.process import run

if __name__ == "__main__":
    run(main, plain=True)
