"""CPU cores, memory and installed packages. Nothing here imports torch."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from src.system.errors import InputError
from src.system.files import MIB

PACKAGES = (
    "kindling", "torch", "lightning", "torchvision", "torchmetrics", "hydra-core", "numpy",
)  # fmt: skip


def cpu_count() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_flags() -> set[str]:
    """The instruction sets of the CPU by their names in Linux; empty on other systems."""
    return set(cpuinfo("flags", "Features").split())


def cpuinfo(*names: str) -> str:
    """The first value in /proc/cpuinfo under one of the names; empty where there is none."""
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else ():
        name, _, value = line.partition(":")
        if name.strip() in names:
            return value.strip()
    return ""


def free_memory() -> int:
    """Bytes of memory that are available now; 4 GiB where the system has no simple way to ask."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024
    return 4 * 2**30  # macOS


def require_memory(what: str, needed: int, remedy: str) -> None:
    """Raises InputError when fewer bytes are free. `what` begins the message, with its verb."""
    free = free_memory()
    if needed > free:
        raise InputError(
            f"{what} {needed / MIB:,.0f} MiB of memory, but only {free / MIB:,.0f} MiB are "
            f"free; type {remedy}"
        )


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that the memory of the GPU or of the machine ran out."""
    texts = (
        "DefaultCPUAllocator: can't allocate memory", "MPS backend out of memory",
        "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED",
    )  # fmt: skip
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"  # torch's
        or any(text in str(error) for text in texts)
    )


def versions(*more: str) -> dict[str, str]:
    """The versions of Python and of the installed packages, by name; also of `more` packages."""
    found = {}
    for package in (*PACKAGES, *more):
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # or kindling itself, run from a copy of its sources
            continue
    return {**found, "python": platform.python_version()}
