# PYTHON_ARGCOMPLETE_OK
"""The command `python -m src.train`; see src/kindling/commands/train.py."""

from kindling.commands.train import main
from kindling.system.process import run

if __name__ == "__main__":
    run(main, plain=True)
