# PYTHON_ARGCOMPLETE_OK
"""The command `python -m src.demo`; see src/kindling_digits/demo.py."""

from kindling.system.process import run
from kindling_digits.demo import main

if __name__ == "__main__":
    run(main, plain=True)
