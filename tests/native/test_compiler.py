"""Building the engine, and that the compiler does not matter."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kindling.commands import build
from kindling.native import compiler, engine
from kindling.system.errors import InputError
from tests.helpers.commands import ROOT

FLAGS = {"avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"}
WIDE = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
# One command for each program; the first is the one that builds.
COMPILERS = list(
    {os.path.realpath(shutil.which(c[0]) or ""): c for c in compiler.compilers()}.values()
)
LEVEL = (compiler.levels() or [""])[0]
needs_compiler = pytest.mark.skipif(
    not (COMPILERS and LEVEL), reason="needs a C compiler, and a CPU with AVX2 and FMA or NEON"
)


def test_the_best_instruction_set_of_the_cpu_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, flags, expected in (
        ("x86_64", FLAGS | WIDE, ["x86-64-v4", "x86-64-v3"]),
        ("AMD64", FLAGS, ["x86-64-v3"]),
        ("x86_64", FLAGS - {"fma"}, []),
        ("arm64", set(), ["armv8-a"]),
        ("riscv64", FLAGS, []),
    ):
        monkeypatch.setattr("platform.machine", lambda name=name: name)
        monkeypatch.setattr(compiler, "cpu_flags", lambda flags=flags: flags)
        assert compiler.levels() == expected, name


def test_a_cpu_without_vectors_and_an_engine_that_is_not_built_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "BUILDS", tmp_path)
    monkeypatch.setattr(compiler, "levels", list)
    assert compiler.find() == (
        None,
        "the engine needs AVX2 and FMA, AVX-512, or NEON, which this CPU "
        f"({compiler.machine()}) lacks",
    )
    monkeypatch.setattr(compiler, "levels", lambda: ["x86-64-v4", "x86-64-v3"])
    missing = (None, "the engine is not built; type python -m src.build")
    assert compiler.find() == missing
    compiler.library("x86-64-v3", tmp_path).touch()
    assert compiler.find() == (compiler.library("x86-64-v3", tmp_path), "")
    monkeypatch.setattr(compiler, "digest", lambda: "f" * 16)  # the sources have changed
    assert compiler.find() == missing


def test_an_architecture_without_an_engine_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """That is no error: another compiler would not help."""
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    monkeypatch.setattr(compiler, "cpu_flags", lambda: FLAGS)
    monkeypatch.setattr(sys, "argv", ["build"])
    build.main()
    assert "which this CPU (riscv64) lacks" in capsys.readouterr().out


def _compiler(path: Path, script: str) -> str:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_the_first_compiler_that_can_builds_and_old_builds_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last argument but two is -o, then come the output and the source."""
    write = 'while [ "$1" != -o ]; do shift; done; echo "$0" > "$2"'
    broken = _compiler(tmp_path / "broken", "echo 'error: no such header' >&2; exit 1")
    good = _compiler(tmp_path / "good", write)
    folder = tmp_path / "builds"
    folder.mkdir()
    old = folder / "engine-0123-linux-x86_64-x86-64-v3.so"
    old.touch()
    other = compiler.library("of-another-machine", folder)
    other.touch()
    monkeypatch.setattr(compiler, "compilers", lambda: iter([[broken], [good]]))
    built = compiler.build(folder)
    assert sorted(folder.iterdir()) == sorted([*built, other])
    assert {file.read_text() for file in built} == {f"{good}\n"}

    monkeypatch.setattr(compiler, "compilers", lambda: iter([[broken]]))
    with pytest.raises(InputError, match=r"broken: error: no such header.*pip install ziglang"):
        compiler.build(folder)
    monkeypatch.setattr(compiler, "compilers", lambda: iter([]))
    with pytest.raises(InputError, match=r"cannot be built \(there is no C compiler\)"):
        compiler.build(folder)
    assert sorted(folder.iterdir()) == sorted([*built, other])


def test_the_environment_chooses_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", f"{sys.executable} -m cc")
    assert next(compiler.compilers()) == [sys.executable, "-m", "cc"]
    monkeypatch.setenv("CC", "/absent/cc")
    assert ["/absent/cc"] not in list(compiler.compilers())


def _digest(library: Path, cases: tuple[int, int], threads: int = 1, **environment: str) -> str:
    """What tests/helpers/engine_cases.py prints for a library."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.helpers.engine_cases", str(library),
         *map(str, (*cases, threads))],
        cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ | environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert not done.stderr, done.stderr[-3000:]
    return done.stdout.strip()


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("flags", [("-O1",), ("-O2", "-DNARROW")], ids=["slow", "narrow"])
def test_neither_optimisation_nor_the_width_of_vectors_changes_a_bit(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    other = tmp_path / "other.so"
    compiler.compile_to(other, COMPILERS[0], LEVEL, *flags)
    assert _digest(compiler.library(LEVEL), (0, 100)) == _digest(other, (0, 100))


@needs_compiler
@pytest.mark.parametrize("command", COMPILERS[1:], ids=" ".join)
def test_no_compiler_changes_a_bit(command: list[str], tmp_path: Path) -> None:
    other = tmp_path / "other.so"
    compiler.compile_to(other, command, LEVEL)
    assert _digest(compiler.library(LEVEL), (0, 100)) == _digest(other, (0, 100))


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("kind", "library", "threads"),
    [("address,undefined", "libasan.so", 1), ("thread", "libtsan.so", 3)],
)
def test_no_foreign_memory_no_undefined_behaviour_no_races(
    kind: str, library: str, threads: int, tmp_path: Path
) -> None:
    """Sanitizers over random shapes. Every array ends where the engine must stop."""
    command = next((c for c in COMPILERS if "ziglang" not in c), None)
    if command is None:
        pytest.skip("ziglang brings no sanitizers")
    found = subprocess.run(
        [*command, f"-print-file-name={library}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(found).is_absolute():
        pytest.skip(f"{command[0]} brings no {library}")
    checked = tmp_path / "checked.so"
    flags = ("-O1", "-g", f"-fsanitize={kind}", "-fno-sanitize-recover=all")
    compiler.compile_to(checked, command, LEVEL, *flags)
    cases = (1000, 1080)
    options = {"ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc", "LD_PRELOAD": found}
    assert _digest(checked, cases, threads, **options) == _digest(compiler.library(LEVEL), cases)


@pytest.mark.slow
@needs_compiler
def test_every_instruction_set_compiles_without_a_warning(tmp_path: Path) -> None:
    strict = ("-O0", "-Wall", "-Wextra", "-Werror")
    for level in compiler.LEVELS[compiler.machine()]:
        compiler.compile_to(tmp_path / f"{level}.so", COMPILERS[0], level, *strict)


@pytest.mark.parametrize(
    ("command", "names"),
    [
        (["cc"], ["-march=x86-64-v4", "-march=x86-64-v3", "-march=armv8-a"]),
        (
            [sys.executable, "-m", "ziglang", "cc"],
            ["-mcpu=x86_64_v4", "-mcpu=x86_64_v3", "-mcpu=generic"],
        ),
    ],
    ids=["cc", "ziglang"],
)
def test_instruction_sets_have_the_names_that_compilers_know(
    command: list[str], names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On all architectures; ziglang refuses armv8_a."""
    given: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: given.append(command))
    for levels in compiler.LEVELS.values():
        for level in levels:
            compiler.compile_to(tmp_path / "engine.so", command, level)
    chosen = [flag for made in given for flag in made if flag.startswith(("-march=", "-mcpu="))]
    assert chosen == names


def test_a_library_that_cannot_be_loaded_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "engine.so"
    file.write_text("half a file")
    monkeypatch.setattr(compiler, "find", lambda: (file, ""))
    engine._opened.cache_clear()
    try:
        assert engine.why_absent().startswith(f"{file}: cannot be loaded (")
        with pytest.raises(InputError, match=r"type python -m src\.build"):
            engine.engine()
    finally:
        engine._opened.cache_clear()
