# PYTHON_ARGCOMPLETE_OK
"""The command `python -m src.cancel`; see src/kindling/commands/cancel.py."""

from kindling.commands.cancel import main
from kindling.system.process import run

if __name__ == "__main__":
    run(main, plain=True)
