"""What a part of a check may do; little is imported here, because its process imports it again."""

import os
import subprocess
import time


def works() -> dict[str, int]:
    print("to the log")
    return {"child": subprocess.Popen(["sleep", "1000"]).pid}


def fails() -> None:
    raise ValueError("no such kernel")


def dies() -> None:
    os.abort()


def hangs() -> None:
    time.sleep(1000)
