# PYTHON_ARGCOMPLETE_OK
"""The command `python -m src.evaluate`; see src/kindling/commands/evaluate.py."""

from kindling.commands.evaluate import main
from kindling.system.process import run

if __name__ == "__main__":
    run(main, plain=True)
