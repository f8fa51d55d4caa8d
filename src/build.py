# PYTHON_ARGCOMPLETE_OK
"""The command `python -m src.build`; see src/kindling/commands/build.py."""

from kindling.commands.build import main
from kindling.system.process import run

if __name__ == "__main__":
    run(main, plain=True)
