"""A survey of the devices of this machine, as a table and as plain values."""

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

from src.system import machine
from src.system.resources import cpu_count, cpu_flags, versions

# Vector instructions for matrix products, by their names in /proc/cpuinfo on x86 and Arm.
VECTOR = ("avx", "avx2", "fma", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_int8")
VECTOR_ARM = ("asimd", "asimdhp", "sve", "sve2", "bf16", "i8mm")


def survey(engine: Mapping[str, str | None]) -> dict[str, Any]:
    """CPU, CUDA and MPS devices, bytes of memory, and the choice of `auto` with its reason.
    `engine` is the state of the engine for CPUs, see src/native/engine.py."""
    return {
        "cpu": cpu(), "engine": dict(engine), "cuda": _cuda(), "mps": _mps(), "auto": _auto(),
        "versions": versions(),
    }  # fmt: skip


def cpu() -> dict[str, Any]:
    """The CPU, its vector instructions, and what torch uses of it."""
    flags = cpu_flags()
    return {
        "model": machine.hardware(torch.device("cpu"))["cpu"],
        "architecture": platform.machine(),
        "cores": cpu_count(),
        "threads": torch.get_num_threads(),
        "vector_instructions": [name for name in (*VECTOR, *VECTOR_ARM) if name in flags],
        "torch_uses": torch.backends.cpu.get_cpu_capability(),
    }


def _cuda() -> dict[str, Any]:
    devices = []
    for number in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(number)
        free, total = torch.cuda.mem_get_info(number)
        devices.append(
            {
                "name": properties.name,
                "memory_total": total,
                "memory_free": free,
                "compute_capability": f"{properties.major}.{properties.minor}",
                "multiprocessors": properties.multi_processor_count,
                "bf16": torch.cuda.is_bf16_supported(),
            }
        )
    return {
        "available": torch.cuda.is_available(),
        "built_for": torch.version.cuda,
        "driver": _driver(),
        "devices": devices,
    }


def _driver() -> str | None:
    path = Path("/proc/driver/nvidia/version")
    if not path.exists():
        return None
    words = path.read_text().split()
    return next((word for word in words if word[:1].isdigit() and "." in word), None)


def _mps() -> dict[str, Any]:
    available = torch.backends.mps.is_available()
    return {
        "available": available,
        "built": torch.backends.mps.is_built(),
        "memory_recommended": torch.mps.recommended_max_memory() if available else None,
    }


def _auto() -> dict[str, str]:
    chosen = machine.preferred(machine.accelerators())
    reasons = {
        "cuda": f"torch sees {torch.cuda.device_count()} CUDA device(s), which come first",
        "mps": "torch sees Apple's GPU and no CUDA device",
        "cpu": f"torch sees no CUDA device ({_why_no_cuda()}) and no Apple GPU",
    }
    return {"accelerator": chosen, "reason": reasons[chosen]}


def _why_no_cuda() -> str:
    if torch.version.cuda is None:
        return "it is built without CUDA"
    return "no driver is loaded" if _driver() is None else "the driver offers none"


def describe(found: dict[str, Any]) -> str:
    """The survey as a table."""
    names = ("cpu", "engine", "cuda", "mps", "auto")
    processor, engine, cuda, mps, auto = (found[name] for name in names)
    rows = [
        *cpu_rows(processor, engine),
        ("CUDA", f"{_yes(cuda['available'])}, torch is built for {cuda['built_for'] or 'none'}, "
         f"driver {cuda['driver'] or 'none'}"),
    ]  # fmt: skip
    for number, device in enumerate(cuda["devices"]):
        memory = f"{_gib(device['memory_free'])} of {_gib(device['memory_total'])} free"
        rows += [
            (f"cuda:{number}", f"{device['name']}, {memory}"),
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


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
