# PYTHON_ARGCOMPLETE_OK
"""The command `python -m src.runs`; see src/kindling/commands/runs.py."""

from kindling.commands.runs import main
from kindling.system.process import run

if __name__ == "__main__":
    run(main, plain=True)
