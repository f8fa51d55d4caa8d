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
from typing import Any

import torch

from kindling.system.errors import InputError
from kindling.system.installation import CHECKOUT
from kindling.system.launch import launch_info
from kindling.system.resources import cpu_count, cpu_flags, cpu_quota, cpuinfo, versions

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
KEPT = 128 * 2**20  # bytes
# Vector instructions for matrix products, by their names in /proc/cpuinfo on x86 and Arm.
VECTOR = ("avx", "avx2", "fma", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_int8")
VECTOR_ARM = ("asimd", "asimdhp", "sve", "sve2", "bf16", "i8mm")


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


def resolve(trainer: Any) -> Devices:
    """The devices of a run by its section `trainer`. Raises InputError for an absent accelerator,
    for more devices than there are, and for a precision that the device does not support."""
    available = accelerators()
    accelerator: str = trainer.accelerator
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


def use_own_share() -> None:
    """Within a container with a share of the CPU, torch uses no more threads than the share has
    cores. It counts the cores of the whole machine, and the system would stop all its threads in
    turn."""
    quota = cpu_quota()
    if quota is not None and torch.get_num_threads() > quota:
        torch.set_num_threads(quota)


def slow_precision(precision: str, accelerator: str) -> str | None:
    """The warning for a precision that the device emulates, or None."""
    flags = cpu_flags()
    emulated = flags and not flags & {"avx512_bf16", "amx_bf16", "bf16"}
    if accelerator == "cpu" and precision == "bf16-mixed" and emulated:
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
    if CHECKOUT is None or not (CHECKOUT / ".git").exists():
        return None
    try:
        command = ("git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
        found = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True)
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


# --- a survey ---------------------------------------------------------------------------------


def survey(engine: Mapping[str, str | None]) -> dict[str, Any]:
    """CPU, CUDA and MPS devices, bytes of memory, and the choice of `auto` with its reason.
    `engine` is the state of the engine for CPUs, see native/engine.py."""
    driver, mps = _driver(), torch.backends.mps
    chosen = preferred(accelerators())
    no_cuda = "no driver is loaded" if driver is None else "the driver offers none"
    if torch.version.cuda is None:
        no_cuda = "it is built without CUDA"
    reasons = {
        "cuda": f"torch sees {torch.cuda.device_count()} CUDA device(s), which come first",
        "mps": "torch sees Apple's GPU and no CUDA device",
        "cpu": f"torch sees no CUDA device ({no_cuda}) and no Apple GPU",
    }
    return {
        "cpu": cpu(),
        "engine": dict(engine),
        "cuda": {
            "available": torch.cuda.is_available(),
            "built_for": torch.version.cuda,
            "driver": driver,
            "devices": [*map(_cuda_device, range(torch.cuda.device_count()))],
        },
        "mps": {
            "available": mps.is_available(),
            "built": mps.is_built(),
            "memory_recommended": (
                torch.mps.recommended_max_memory() if mps.is_available() else None
            ),
        },
        "auto": {"accelerator": chosen, "reason": reasons[chosen]},
        "versions": versions(),
    }


def _driver() -> str | None:
    path = Path("/proc/driver/nvidia/version")
    words = path.read_text().split() if path.exists() else []
    return next((word for word in words if word[:1].isdigit() and "." in word), None)


def _cuda_device(number: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(number)
    free, total = torch.cuda.mem_get_info(number)
    return {
        "name": properties.name,
        "memory_total": total,
        "memory_free": free,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "bf16": torch.cuda.is_bf16_supported(),
    }


def cpu() -> dict[str, Any]:
    """The CPU, its vector instructions, and what torch uses of it."""
    flags = cpu_flags()
    return {
        "model": hardware(torch.device("cpu"))["cpu"],
        "architecture": platform.machine(),
        "cores": cpu_count(),
        "threads": torch.get_num_threads(),
        "vector_instructions": [name for name in (*VECTOR, *VECTOR_ARM) if name in flags],
        "torch_uses": torch.backends.cpu.get_cpu_capability(),
    }


def describe_survey(found: dict[str, Any]) -> str:
    """The survey as a table."""
    from tabulate import tabulate

    names = ("cpu", "engine", "cuda", "mps", "auto")
    processor, engine, cuda, mps, auto = (found[name] for name in names)
    rows = [
        *cpu_rows(processor, engine),
        ("CUDA", f"{_yes(cuda['available'])}, torch is built for {cuda['built_for'] or 'none'}, "
         f"driver {cuda['driver'] or 'none'}"),
    ]  # fmt: skip
    for number, device in enumerate(cuda["devices"]):
        free, total = (device[name] / 2**30 for name in ("memory_free", "memory_total"))
        rows += [
            (f"cuda:{number}", f"{device['name']}, {free:.1f} GiB of {total:.1f} GiB free"),
            ("", f"compute capability {device['compute_capability']}, "
             f"{device['multiprocessors']} multiprocessors, bf16 {_yes(device['bf16'])}"),
        ]  # fmt: skip
    rows += [
        ("MPS", _yes(mps["available"]) + ("" if mps["built"] else ", torch is built without it")),
        ("versions", ", ".join(f"{name} {text}" for name, text in found["versions"].items())),
        ("auto", f"trainer.accelerator=auto takes {auto['accelerator']}: {auto['reason']}"),
    ]
    return tabulate(rows, tablefmt="plain")


def cpu_rows(found: Mapping[str, Any], engine: Mapping[str, str | None]) -> list[tuple[str, str]]:
    """The rows of a table that describe what `cpu` found, and the state of the engine."""
    return [
        ("CPU", f"{found['model']}, {found['architecture']}"),
        ("", f"{found['cores']} cores for this process, torch uses {found['threads']} threads"),
        ("", f"{' '.join(found['vector_instructions']) or '-'}; torch uses {found['torch_uses']}"),
        ("", f"engine: {engine['reason'] or engine['instruction_set']}"),
    ]


def _yes(value: bool) -> str:
    return "yes" if value else "no"
