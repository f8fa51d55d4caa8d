# PYTHON_ARGCOMPLETE_OK
"""The command `python -m src.report`; see src/kindling/commands/report.py."""

from kindling.commands.report import main
from kindling.system.process import run

if __name__ == "__main__":
    run(main, plain=True)
