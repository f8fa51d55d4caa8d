"""What a measurement depends on: the CPU, the engine, and the versions of the libraries."""

import re
from typing import Any

import numpy as np
import scipy
import torch
from tabulate import tabulate

from kindling.native import engine
from kindling.system import machine
from kindling.system.machine import cpu, cpu_rows
from kindling.system.resources import versions

CONTENDERS = ("scipy", "scikit-learn", "keras", "jax")


def environment() -> dict[str, Any]:
    """The parts of a report that describe the machine and the installed libraries."""
    return {
        "hardware": cpu(),
        "engine": engine.state(),
        "versions": versions(*CONTENDERS),
        "blas": blas(),
        "commit": machine.commit(),
    }


def describe_environment(found: dict[str, Any]) -> str:
    """The environment as a table."""
    rows = cpu_rows(found["hardware"], found["engine"])
    for title, part in (("versions", found["versions"]), ("BLAS", found["blas"])):
        rows.append((title, ", ".join(f"{name} {text}" for name, text in part.items())))
    rows.append(("commit", found["commit"] or "-"))
    return tabulate(rows, tablefmt="plain")


def blas() -> dict[str, str]:
    """The library that multiplies matrices for torch, NumPy and SciPy, with its version if it is
    known."""
    built = torch.__config__.show()
    name = re.search(r"BLAS_INFO=(\w+)", built)
    version = re.search(r"Math Kernel Library Version (\S+?)-", built)
    found = {"torch": " ".join(match[1] for match in (name, version) if match) or "unknown"}
    for module in (np, scipy):
        described = module.show_config(mode="dicts")["Build Dependencies"]["blas"]
        found[module.__name__] = f"{described['name']} {described.get('version', '')}".strip()
    return found
