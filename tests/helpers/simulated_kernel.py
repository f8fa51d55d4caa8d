"""The CUDA kernel as a C program: the warps of a phase run one after the other."""

import ctypes
import functools
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kindling.native import kernel
from kindling.native.compiler import compilers
from kindling.native.kernel import Shape, arguments_type

needs_compiler = pytest.mark.skipif(next(compilers(), None) is None, reason="no C compiler")
GUARD = 10_000  # floats beyond the shared memory; whatever reads one of them gets a NaN


@functools.cache
def built(shape: Shape, *flags: str) -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "kernel.so"
        subprocess.run(
            [*next(compilers()), "-x", "c", "-std=gnu11", "-O1", "-shared", "-fPIC", "-Wall",
             "-Wno-unused-function", "-Werror", "-DSIMULATED", *flags, *shape.definitions(),
             str(kernel.SOURCE), "-o", str(library), "-lm"],
            check=True,
        )  # fmt: skip
        return ctypes.CDLL(str(library))


def simulate(shape: Shape, arguments: ctypes.Structure, trials: int, *flags: str) -> None:
    """Trains as a launch of the kernel does. Asserts that it stays in its memory."""
    train = built(shape, *flags).train
    train.argtypes = [arguments_type(shape.layers), ctypes.c_int, ctypes.c_void_p]
    for trial in range(trials):
        memory = np.full(shape.shared_bytes // 4 + GUARD, np.nan, np.float32)
        train(arguments, trial, memory.ctypes.data)
        assert np.isnan(memory[-GUARD:]).all()


def launch(shape: Shape, arguments: Any, trials: int, device: torch.device) -> None:
    """Stands for kindling.steps.kernel.launch on a CPU."""
    assert device.type == "cpu"
    simulate(shape, arguments, trials)
