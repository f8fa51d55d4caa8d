"""Builds the engine with a C compiler, and finds the build that fits this CPU.

A build is named after the digest of its sources, the system and the instruction set. So machines
that share a folder use each their own build, and no build is used after its sources have changed.
"""

import functools
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from kindling.system.errors import InputError
from kindling.system.installation import as_command
from kindling.system.resources import cpu_flags
from kindling.system.terminal import progress

FOLDER = Path(__file__).parent
SOURCES = sorted(FOLDER.glob("*.[ch]"))
BUILDS = FOLDER / "builds"
# The results must not depend on the compiler: it may not fuse products and sums on its own.
FLAGS = (
    "-std=gnu11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fPIC",
    "-shared", "-pthread", "-Wno-psabi",
)  # fmt: skip
# Instruction sets by machine, the best first: the compiler's name, and the flags of /proc/cpuinfo
# that a CPU must have. Every 64-bit Arm has NEON.
LEVELS: dict[str, dict[str, frozenset[str]]] = {
    "x86_64": {
        "x86-64-v4": frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "fma"}),
        "x86-64-v3": frozenset({"avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"}),
    },
    "aarch64": {"armv8-a": frozenset()},
}
ZIG_NAMES = {"armv8-a": "generic"}
BUILD = as_command("build")


def machine() -> str:
    """The name of this machine's architecture in LEVELS; an unknown name is returned as it is."""
    name = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


def levels() -> list[str]:
    """The instruction sets of this CPU for which the engine can be built, the best first."""
    known = LEVELS.get(machine(), {})
    return [level for level, needed in known.items() if needed <= cpu_flags()]


@functools.cache
def digest() -> str:
    """16 hex digits over the sources and the compiler's flags."""
    content = b"".join(path.read_bytes() for path in SOURCES) + " ".join(FLAGS).encode()
    return hashlib.sha256(content).hexdigest()[:16]


def library(level: str, folder: Path | None = None) -> Path:
    """The file of a build, by default in BUILDS."""
    return (folder or BUILDS) / f"engine-{digest()}-{sys.platform}-{machine()}-{level}.so"


def find() -> tuple[Path | None, str]:
    """The best build that this CPU can run, and "". Or None, and why there is none."""
    if not levels():
        return None, (
            f"the engine needs AVX2 and FMA, AVX-512, or NEON, which this CPU ({machine()}) lacks"
        )
    level = found_level()
    return (library(level), "") if level else (None, f"the engine is not built; type {BUILD}")


def found_level() -> str | None:
    """The best instruction set of this CPU for which there is a build, or None."""
    return next((level for level in levels() if library(level).is_file()), None)


def compilers() -> Iterator[list[str]]:
    """The C compilers of this machine: $CC, the system's, and that of PyPI's package ziglang."""
    chosen = shlex.split(os.environ.get("CC", ""))
    for command in ([chosen] if chosen else []) + [["cc"], ["gcc"], ["clang"]]:
        if shutil.which(command[0]):
            yield command
    if importlib.util.find_spec("ziglang") is not None:
        yield [sys.executable, "-m", "ziglang", "cc"]


def build(folder: Path | None = None) -> list[Path]:
    """Builds the engine for every instruction set of this architecture, with the first compiler
    that can, and removes builds of other sources. Returns the files. Raises InputError if there is
    no compiler, or if none can build the engine."""
    known, folder = LEVELS.get(machine(), {}), folder or BUILDS
    failures = []
    for command in compilers():
        try:
            built = [
                _compile(command, level, folder) for level in progress(known, "engines compiled")
            ]
        except (OSError, subprocess.SubprocessError) as error:
            failures.append(f"{shlex.join(command)}: {_last_line(error)}")
            continue
        for file in folder.glob("engine-*.so"):
            if digest() not in file.name:
                file.unlink(missing_ok=True)
        return built
    found = "; ".join(failures) or "there is no C compiler"
    raise InputError(
        f"the engine cannot be built ({found}). Training works without the engine, more slowly. "
        f"To build it, install gcc or clang, or type pip install ziglang; then type {BUILD}"
    )


def _compile(command: Sequence[str], level: str, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    target = library(level, folder)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        made = Path(temporary) / "engine.so"
        compile_to(made, command, level)
        made.replace(target)  # another process never sees half a file
    return target


def compile_to(file: Path, command: Sequence[str], level: str, *flags: str) -> None:
    """Compiles the engine; `flags` come after FLAGS. Raises subprocess.CalledProcessError."""
    files = [str(path) for path in SOURCES if path.suffix == ".c"]
    chosen = f"-march={level}"
    if "ziglang" in command:  # it names a CPU where gcc and clang name an instruction set
        chosen = f"-mcpu={ZIG_NAMES.get(level, level.replace('-', '_'))}"
    subprocess.run(
        [*command, *FLAGS, chosen, *flags, "-o", str(file), *files],
        check=True, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def _last_line(error: Exception) -> str:
    output = getattr(error, "stderr", None) or str(error)
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["no output"])[0][:200]
