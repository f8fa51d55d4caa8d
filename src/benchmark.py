# PYTHON_ARGCOMPLETE_OK
"""The command `python -m src.benchmark`; see benchmarks/benchmark.py."""

from benchmarks.benchmark import main
from kindling.system.process import run

if __name__ == "__main__":
    run(main)
