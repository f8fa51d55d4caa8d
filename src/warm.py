# PYTHON_ARGCOMPLETE_OK
"""The command `python -m src.warm`; see src/kindling/commands/warm.py."""

from kindling.commands.warm import main
from kindling.system.process import run

if __name__ == "__main__":
    run(main)
