"""Devices and hardware, as torch sees them: which device a run gets, or why it gets none."""

import ctypes
import platform
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from src.system.errors import InputError
from src.system.launch import launch_info
from src.system.resources import cpu_count, cpu_flags, cpuinfo

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
KEPT = 128 * 2**20  # bytes


@dataclass(frozen=True)
class Devices:
    """The accelerator (cpu, cuda or mps) and the number of its devices on each node."""

    accelerator: str
    count: int
    nodes: int = 1

    @property
    def world_size(self) -> int:
        return self.count * self.nodes

    @property
    def torch_device(self) -> torch.device:
        return torch.device(self.accelerator)


class Request(Protocol):
    """The keys of `trainer` that choose devices."""

    @property
    def accelerator(self) -> str: ...

    @property
    def devices(self) -> int | str: ...  # "auto": one CPU, all GPUs

    @property
    def num_nodes(self) -> int: ...

    @property
    def precision(self) -> str: ...


def accelerators() -> dict[str, int]:
    """The number of devices of each accelerator that this process may use."""
    return {
        "cpu": cpu_count(),
        "cuda": torch.cuda.device_count(),
        "mps": int(torch.backends.mps.is_available()),
    }


def preferred(available: Mapping[str, int]) -> str:
    """The accelerator that `trainer.accelerator=auto` chooses."""
    return next(name for name in ("cuda", "mps", "cpu") if available[name])


def resolve(trainer: Request) -> Devices:
    """The devices of a run. Raises InputError for an absent accelerator, for more devices than
    there are, and for a precision that the device does not support."""
    available = accelerators()
    accelerator = trainer.accelerator
    if accelerator == "auto":
        # Only a CPU and CUDA have 64-bit floats.
        lacking = {"mps": 0} if trainer.precision == "64" else {}
        accelerator = preferred({**available, **lacking})
    if not available[accelerator]:
        there = ", ".join(name for name, count in available.items() if count)
        raise InputError(
            f"trainer.accelerator={accelerator}: torch sees no such device, only {there}; "
            f"type trainer.accelerator=auto"
        )
    if isinstance(trainer.devices, int):
        count = trainer.devices
    else:
        count = 1 if accelerator == "cpu" else available[accelerator]
    if count > available[accelerator] and not (accelerator == "cpu" and launch_info().launched_by):
        raise InputError(
            f"trainer.devices={count}: there are {available[accelerator]} {accelerator} devices; "
            f"type trainer.devices={available[accelerator]} or less"
        )
    if trainer.precision == "16-mixed" and accelerator == "cpu":
        raise InputError(
            "trainer.precision=16-mixed needs a GPU and none was found; "
            "type trainer.precision=bf16-mixed"
        )
    return Devices(accelerator, count, trainer.num_nodes)


def keep_freed_memory() -> None:
    """Lets glibc keep freed memory for the next step. Does nothing with another C library.

    By default glibc returns blocks and gradients to the system, which has to zero their pages again
    for the next step; this took a sixth of an epoch of 784-32-10. KEPT is larger than the block of
    a stack of 256 trials with different seeds, 80 MB. With 16 MiB an epoch of that stack took 1.6
    times as long; 1 GiB was no faster and took 50 MB more.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(M_TRIM_THRESHOLD, KEPT)
    if not libc.mallopt(M_MMAP_THRESHOLD, KEPT):  # the limit of older versions is 32 MiB
        libc.mallopt(M_MMAP_THRESHOLD, 32 * 2**20)


def slow_precision(precision: str, accelerator: str) -> str | None:
    """The warning for a precision that the device emulates, or None."""
    flags = cpu_flags()
    native = flags & {"avx512_bf16", "amx_bf16", "bf16"}
    if accelerator == "cpu" and precision == "bf16-mixed" and flags and not native:
        return (
            "trainer.precision=bf16-mixed: this CPU has no bf16 instructions, "
            "trainer.precision=32 is many times as fast"
        )
    return None


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Within this context, the operations of torch are divided among `count` threads."""
    usual = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy of a tensor of the CPU on the device. A copy to a GPU from pinned memory does not wait
    until the GPU has done its work."""
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=device.type == "cuda")


def reset_peak_memory(device: torch.device) -> None:
    """Lets the peaks of a GPU begin anew, as for the next run of a sweep."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> dict[str, int]:
    """Peak bytes of the process, and on a GPU of tensors and of torch's reserved memory."""
    scale = 1 if sys.platform == "darwin" else 1024
    found = {"peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale}
    if device.type == "cuda":
        found["peak_gpu_allocated_bytes"] = torch.cuda.max_memory_allocated(device)
        found["peak_gpu_reserved_bytes"] = torch.cuda.max_memory_reserved(device)
    return found


def commit() -> str | None:
    """The commit of the project, with `-dirty` for uncommitted changes; None outside a checkout."""
    root = Path(__file__).parent.parent.parent
    if not (root / ".git").exists():
        return None
    try:
        command = ("git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
        found = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()


def hardware(device: torch.device) -> dict[str, Any]:
    """The device of a run, and the CPU of its machine."""
    described: dict[str, Any] = {
        "device": device.type,
        "cpu": cpuinfo("model name") or platform.processor() or platform.machine(),
        "cores": cpu_count(),
        "threads": torch.get_num_threads(),
    }
    if device.type == "cuda":
        described["gpu"] = torch.cuda.get_device_name(device)
    return described
