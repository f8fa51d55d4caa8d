# PYTHON_ARGCOMPLETE_OK
"""The command `python -m src.committee`; see src/kindling/commands/committee.py."""

from kindling.commands.committee import main
from kindling.system.process import run

if __name__ == "__main__":
    run(main, plain=True)
