"""A command that opens files, and tells which of them somebody else has closed."""

import gc
import os

from kindling.system.process import run


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def main() -> None:
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(40)]
    gc.unfreeze()
    gc.collect()
    print([each for each in opened if not is_open(each)])


if __name__ == "__main__":
    run(main, plain=True)
