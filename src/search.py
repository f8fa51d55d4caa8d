# PYTHON_ARGCOMPLETE_OK
"""The command `python -m src.search`; see src/kindling/commands/search.py."""

from kindling.commands.search import main
from kindling.system.process import run

if __name__ == "__main__":
    run(main, plain=True)
