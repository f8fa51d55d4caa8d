"""CPU cores, memory and installed packages. Nothing here imports torch."""

import functools
import math
import os
from collections.abc import Iterator
from pathlib import Path

from kindling.system.errors import InputError
from kindling.system.units import MIB

MEMINFO, OWN_GROUPS = Path("/proc/meminfo"), Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")  # the limits of containers, jobs and services
PACKAGES = (
    "kindling", "torch", "lightning", "torchvision", "torchmetrics", "hydra-core", "numpy",
)  # fmt: skip


def cpu_count() -> int:
    """CPU cores that this process may use: those of its affinity, or its container's share."""
    affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if affinity else os.cpu_count() or 1
    return min(cores, cpu_quota() or cores)


@functools.cache
def cpu_quota() -> int | None:
    """The cores whose time the container of this process gets, rounded up; None without a limit."""
    quotas = []
    for folder in _control_groups("cpu"):
        if (folder / "cpu.max").exists():
            quota, period = [*_text(folder / "cpu.max").split(), "", ""][:2]
        else:
            quota = _text(folder / "cpu.cfs_quota_us").strip()
            period = _text(folder / "cpu.cfs_period_us").strip()
        if quota.isdigit() and period.isdigit() and int(period):
            quotas.append(max(1, math.ceil(int(quota) / int(period))))
    return min(quotas, default=None)


def _control_groups(controller: str) -> Iterator[Path]:
    """The folders of the control groups that limit this process by a controller, from its own group
    to the outermost one that is mounted: of version 2, and of version 1.

    A container sees its own group as the outermost one, often under a path that only the host has.
    """
    for line in _text(OWN_GROUPS).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        for name in (controllers, controller) if controllers else ("unified", ""):
            root = GROUPS / name
            inner = root / path.lstrip("/")
            if root.is_dir() and ".." not in inner.parts:
                inside = [each for each in (inner, *inner.parents) if each.is_relative_to(root)]
                yield from filter(Path.is_dir, inside)
                break


def _text(file: Path) -> str:
    """Empty for a file that is absent or cannot be read."""
    try:
        return file.read_text()
    except OSError:
        return ""


def cpu_flags() -> set[str]:
    """The instruction sets of the CPU by their names in Linux; empty on other systems."""
    return set(cpuinfo("flags", "Features").split())


def cpuinfo(*names: str) -> str:
    """The first value in /proc/cpuinfo under one of the names; empty where there is none."""
    for line in _text(Path("/proc/cpuinfo")).splitlines():
        name, _, value = line.partition(":")
        if name.strip() in names:
            return value.strip()
    return ""


def free_memory() -> int:
    """Bytes of memory that are available now, of the machine and of the container that this process
    is in; 4 GiB where the system has no simple way to ask."""
    lines = dict(line.split(":", 1) for line in _text(MEMINFO).splitlines())
    if not lines:
        return 4 * 2**30  # macOS
    return min([int(lines["MemAvailable"].split()[0]) * 1024, *_free_in_groups()])


def _free_in_groups() -> Iterator[int]:
    """What each limit of a control group leaves. Files that were read and could be read again take
    memory of the group, but are dropped when it is needed."""
    for folder in _control_groups("memory"):
        for limit, usage, dropped in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            most, used = _text(folder / limit).strip(), _text(folder / usage).strip()
            if most.isdigit() and used.isdigit():
                statistics = dict(map(str.split, _text(folder / "memory.stat").splitlines()))
                yield max(0, int(most) - int(used) + int(statistics.get(dropped, 0)))


def is_limited() -> bool:
    """Whether a control group limits the cores or the memory of this process."""
    return cpu_quota() is not None or any(True for _ in _free_in_groups())


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
    import platform

    found = {package: text for package in (*PACKAGES, *more) if (text := _version(package))}
    return {**found, "python": platform.python_version()}


@functools.cache
def _version(package: str) -> str | None:
    """None without the package, and for kindling itself, run from a copy of its sources."""
    from importlib import metadata  # not for the question whether a group limits this process

    try:
        return metadata.version(package)  # parses a file of the package
    except metadata.PackageNotFoundError:
        return None
