# PYTHON_ARGCOMPLETE_OK
"""The command `python -m src.new`; see src/kindling/commands/new.py."""

from kindling.commands.new import main
from kindling.system.process import run

if __name__ == "__main__":
    run(main, plain=True)
