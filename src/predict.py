# PYTHON_ARGCOMPLETE_OK
"""The command `python -m src.predict`; see src/kindling/commands/predict.py."""

from kindling.commands.predict import main
from kindling.system.process import run

if __name__ == "__main__":
    run(main, plain=True)
