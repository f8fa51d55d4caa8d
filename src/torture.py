# PYTHON_ARGCOMPLETE_OK
"""The command `python -m src.torture`; see benchmarks/torture.py."""

from benchmarks.torture import main
from kindling.system.process import run

if __name__ == "__main__":
    run(main)
