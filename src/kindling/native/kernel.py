"""The CUDA kernel that trains a trial's block (kernel.cu).

NVRTC, which torch's packages bring, compiles it for one network and one kind of GPU, and the driver
starts it. It needs neither a compiler nor a toolkit.
"""

import contextlib
import ctypes
import functools
import hashlib
import importlib.util
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from kindling.native.compiler import BUILDS
from kindling.native.engine import ACTIVATIONS
from kindling.system.errors import first_line

SOURCE = Path(__file__).parent / "kernel.cu"
MOST_WARPS = 16
MOST_FILES = 64  # compiled kernels that are kept


class KernelError(RuntimeError):
    """The kernel cannot be compiled or started here."""


@dataclass(frozen=True)
class Shape:
    """What a kernel is compiled for: `units` are the inputs and the units of each layer, `rows` the
    samples of a batch, and `whole_bytes` says whether the features are bytes."""

    units: tuple[int, ...]
    rows: int
    whole_bytes: bool
    activation: str
    smoothing: float
    warps: int = MOST_WARPS  # of a thread block; the results do not depend on the number

    @property
    def layers(self) -> int:
        return len(self.units) - 1

    @property
    def shared_bytes(self) -> int:
        """The shared memory of a thread block: weights and biases, outputs and deltas of a batch,
        and its samples; FLOATS in kernel.cu."""
        samples, hidden = _up(self.rows, 16), self.units[1:-1]
        weights = [_up(b, 16) * (_up(a, 32) + 2) for a, b in pairwise(self.units)]
        deltas = [_up(width, 16) + 8 for width in self.units[1:]]
        if self.whole_bytes:
            halves = _up(self.units[0], 64) + 8 + (samples // 16 | 1) * 16
            weights[0] = _up(self.units[1], 16) * halves
            if hidden and self.activation != "gelu":
                deltas[0] = 0
        per_sample = sum(deltas) + sum(_up(width, 32) + 2 for width in hidden) + 6
        biases = sum(_up(width, 32) for width in self.units[1:])
        return 4 * (sum(weights) + biases + samples * per_sample + 2)

    def definitions(self) -> list[str]:
        """The macros that kernel.cu expects, as compilers take them."""
        units, activation = str(self.units[-1]), ACTIVATIONS.index(self.activation)
        for number, width in reversed([*enumerate(self.units[:-1])]):
            units = f"((n) == {number} ? {width} : {units})"
        return [
            f"-DLAYERS={self.layers}", f"-DUNITS(n)={units}", f"-DROWS={self.rows}",
            f"-DBYTES={int(self.whole_bytes)}", f"-DACTIVATION={activation}",
            f"-DSMOOTHING={float(self.smoothing)!r}f", f"-DWARPS={self.warps}",
        ]  # fmt: skip


def _up(number: int, step: int) -> int:
    return -(-number // step) * step


@functools.cache
def arguments_type(layers: int) -> type[ctypes.Structure]:
    """`struct Arguments` in kernel.cu."""
    names = ("features", "labels", "rows", "order_of", "column_of", "rates", "losses", "correct")

    class Arguments(ctypes.Structure):
        _fields_ = (
            *((name, ctypes.c_void_p) for name in names),
            ("weights", ctypes.c_void_p * layers),
            ("biases", ctypes.c_void_p * layers),
            *((name, ctypes.c_int) for name in ("batches", "orders", "size", "columns")),
        )

    return Arguments


def why_absent() -> str:
    """Why no kernel can be compiled here, or an empty text."""
    for package in ("cuda.bindings.nvrtc", "cuda.bindings.driver"):
        try:
            found = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            found = None
        except Exception as error:  # of the package above, which is imported
            return f"{package} cannot be imported: {first_line(error)}"
        if found is None:
            return "cuda.bindings is not installed, which torch's packages for Linux bring"
    return ""


def compile_kernel(shape: Shape, architecture: str) -> bytes:
    """The binary for an architecture such as sm_90. Raises KernelError with NVRTC's words."""
    from cuda.bindings import nvrtc

    source = SOURCE.read_bytes()
    options = [*shape.definitions(), f"--gpu-architecture={architecture}", "--diag-suppress=177"]
    program = _checked(nvrtc.nvrtcCreateProgram(source, b"kernel.cu", 0, [], []))
    try:
        _checked(nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options]))
        binary: bytes = b" " * _checked(nvrtc.nvrtcGetCUBINSize(program))
        _checked(nvrtc.nvrtcGetCUBIN(program, binary))
    except KernelError as error:
        log = b" " * _checked(nvrtc.nvrtcGetProgramLogSize(program))
        _checked(nvrtc.nvrtcGetProgramLog(program, log))
        text = log.rstrip(b" \0\n").decode()
        raise KernelError(f"{error}: {text}") from None
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return binary


def compiled(shape: Shape, architecture: str, folder: Path = BUILDS) -> bytes:
    """The binary, from a file if an earlier process has compiled it."""
    content = SOURCE.read_bytes() + " ".join([*shape.definitions(), architecture]).encode()
    file = folder / f"kernel-{hashlib.sha256(content).hexdigest()[:16]}-{architecture}.cubin"
    with contextlib.suppress(OSError):
        return file.read_bytes()
    binary = compile_kernel(shape, architecture)
    with contextlib.suppress(OSError):  # a folder that cannot be written to
        folder.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(f".{os.getpid()}")
        temporary.write_bytes(binary)
        temporary.replace(file)
        kept = sorted(folder.glob("kernel-*"), key=lambda path: path.stat().st_mtime)
        for path in kept[:-MOST_FILES]:
            path.unlink(missing_ok=True)
    return binary


@functools.cache
def load(
    shape: Shape, device: int, capability: tuple[int, int]
) -> Callable[[ctypes.Structure, int, int], None]:
    """A function (arguments, trials, stream) that queues the kernel for this many trials on the
    current device, which has this number. Both raise KernelError."""
    from cuda.bindings import driver

    del device  # a module belongs to a device
    binary = compiled(shape, f"sm_{capability[0]}{capability[1]}")
    module = _checked(driver.cuModuleLoadData(binary))
    function = _checked(driver.cuModuleGetFunction(module, b"train"))
    dynamic = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    _checked(driver.cuFuncSetAttribute(function, dynamic, shape.shared_bytes))

    def launch(arguments: ctypes.Structure, trials: int, stream: int) -> None:
        places = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
        _checked(
            driver.cuLaunchKernel(
                function, trials, 1, 1, 32 * shape.warps, 1, 1, shape.shared_bytes,
                driver.CUstream(stream), ctypes.addressof(places), 0,
            )
        )  # fmt: skip

    return launch


def _checked(result: Sequence[Any]) -> Any:
    """The value of a call of cuda.bindings, which returns a status before it."""
    status, *values = result
    if int(status):
        raise KernelError(f"{type(status).__name__}.{status.name}")
    return values[0] if values else None
