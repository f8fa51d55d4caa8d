"""After a power cut at any call, the same command ends as if nothing had happened.

Each operation is recorded once. Its states after a cut (tests/helpers/power/cuts.py) are built on
the disk, one after the other, and the operation is repeated on each. The default suite tries some
states, `make torture` more: POWER_CUTS=N tries N of each operation, POWER_CUTS=all every one.
"""

import ast
import errno
import itertools
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from kindling.system.files import DISCARDED
from kindling.system.warm import asked, connected, socket_file
from kindling.system.warm_server import is_starting
from tests.helpers.operations import (
    ON_CLUSTERS,
    OPERATIONS,
    OTHER_OUTCOME,
    RUN,
    Command,
    Done,
    Operation,
    found_or_skipped,
)
from tests.helpers.power.cuts import (
    Call,
    Cut,
    Tree,
    after,
    build,
    calls_of,
    compile_recorder,
    cuts,
    ends,
    log_of,
)
from tests.helpers.power.laws import broken_laws
from tests.helpers.sweeps import until
from tests.helpers.warm import ROOT, Warm

CHANGES = "ctwsrudmly"  # the kinds of calls that change something
T = TypeVar("T")


@dataclass(kw_only=True)
class Recorded(Done):
    """An operation that was recorded."""

    calls: Sequence[Call]


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    """Runs commands in processes that record, if their environment says so."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler for the recorder")
    library = compile_recorder(tmp_path_factory.mktemp("recorder"))
    runner = Warm("kindling.training.fit", "kindling.reports.page", preload=library)
    yield runner
    runner.stop()


def run_recorded(
    warm: Warm, root: Path, command: Command, failure: "Failure | None" = None, number: int = 0
) -> "subprocess.CompletedProcess[str]":
    """Runs a command with the recorder. Call number `number`, from 1, of those that the failure
    hits gets its error."""
    log_of(root).unlink(missing_ok=True)
    module, *arguments = command
    failure = failure or Failure(0)
    return warm(
        root, module, *arguments, LD_PRELOAD=str(warm.preload["LD_PRELOAD"]),
        RECORDER_LOG=str(log_of(root)), RECORDER_ROOT=str(root), RECORDER_FAIL=str(number),
        RECORDER_ERRNO=str(failure.error), RECORDER_FULL=str(int(failure.full)),
        RECORDER_KINDS=failure.kinds,
    )  # fmt: skip


def record(operation: Operation, warm: Warm, folder: Path) -> Recorded:
    """The simulated disk holds what the real one does."""
    root, start = folder / "root", folder / "start"
    root.mkdir()
    for earlier in operation.before:
        assert warm(root, *earlier).returncode == 0
    shutil.copytree(root, start)
    done = run_recorded(warm, root, operation.command)
    assert done.returncode == 0, done.stderr
    calls = calls_of(root)
    assert after(calls, start) == {
        str(path.relative_to(root)): None if path.is_dir() else path.read_bytes()
        for path in root.rglob("*")
    }
    return Recorded(operation, root, start, operation.outcome(root), calls=calls)


def chosen(found: Sequence[T], number: int, seed: int = 0) -> list[T]:
    """As many states as wanted, drawn at random."""
    wanted = os.environ.get("POWER_CUTS", str(number))
    count = len(found) if wanted == "all" else min(int(wanted), len(found))
    return random.Random(seed).sample(found, count)


def faults(done: Recorded, tried: Sequence[Cut], warm: Warm) -> Iterator[str]:
    for cut in tried:
        build(cut.tree, done.root)
        if fault := done.fault(warm):
            yield f"{cut.rule} after call {cut.calls}, {done.calls[cut.calls - 1]}: {fault}"


@pytest.mark.parametrize("name", [pytest.param("a run", marks=pytest.mark.slow), "a label"])
def test_some_states_after_a_power_cut(name: str, warm: Warm, tmp_path: Path) -> None:
    done = record(OPERATIONS[name], warm, tmp_path)
    assert [*faults(done, chosen(cuts(done.calls, done.start), 3), warm)] == []


RESULT: Command = (
    "-c", "from pathlib import Path; from kindling.records.folder import Run;"
    "run = Run(Path('a')); run.folder.mkdir(); run.append_history([{'epoch': 1}]);"
    "run.write_result({'status': 'finished'})",
)  # fmt: skip


def test_no_result_is_without_its_history(warm: Warm, tmp_path: Path) -> None:
    """Not even on a file system that keeps names in any order."""
    assert run_recorded(warm, tmp_path, RESULT).returncode == 0
    trees = [cut.tree for cut in cuts(calls_of(tmp_path), any_order=30)]
    histories = [tree.get("a/history.csv") for tree in trees if "a/result.json" in tree]
    assert {*histories} == {b"epoch\n1\n"}


# Starts a warm process that imports nothing.
KEPT_WARM: Command = (
    "-c", "import sys; from kindling.commands import warm; from kindling.system.process import run;"
    "warm.LIBRARIES, warm.compositions = (), lambda typed: iter(()); sys.argv = ['src.warm'];"
    "run(warm.main, plain=True)",
)  # fmt: skip
of_linux = pytest.mark.skipif(sys.platform != "linux", reason="a warm process needs Linux")


@pytest.fixture
def warm_root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a warm process has its files."""
    with tempfile.TemporaryDirectory(prefix="w") as place:  # a socket's path has 107 bytes
        root = Path(place) / "root"
        root.mkdir()
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(root))
        yield root


def start_and_stop(done: "subprocess.CompletedProcess[str]") -> None:
    assert done.returncode == 0, done.stderr
    until(lambda: asked(b"s"))
    assert (asked(b"q") or {})["commands"] == 0
    until(lambda: not is_starting())


@of_linux
def test_a_warm_process_starts_beside_what_a_power_cut_has_left(
    warm: Warm, warm_root: Path
) -> None:
    """None of its files is synced, and none is read: the socket and the lock tell of a process by
    the kernel alone."""
    start_and_stop(run_recorded(warm, warm_root, KEPT_WARM))
    found = cuts(calls_of(warm_root))
    assert {"", ".lock", ".log"} == {Path(path).suffix for cut in found for path in cut.tree}
    for cut, with_socket in itertools.product(found, (False, True)):
        build(cut.tree, warm_root)
        if cut.tree:
            socket_file().parent.chmod(0o700)
        if cut.tree and with_socket:
            with closing(socket.socket(socket.AF_UNIX)) as listener:
                listener.bind(str(socket_file()))
        assert connected() is None
        start_and_stop(warm(warm_root, *KEPT_WARM))


def lost(done: Recorded) -> list[str]:
    """What is wrong after a cut when the command has ended: what it has reported must be there."""
    found = []
    for cut in ends(done.calls, done.start):
        build(cut.tree, done.root)
        if fault := done.wrong():
            found.append(f"{cut.rule} at the end: {fault}")
    return found


@pytest.mark.torture
@pytest.mark.parametrize("name", [*OPERATIONS, *ON_CLUSTERS])
def test_after_a_power_cut_the_same_command_ends_as_undisturbed(
    name: str, warm: Warm, tmp_path: Path
) -> None:
    done = record(found_or_skipped(name), warm, tmp_path)
    found = cuts(done.calls, done.start, any_order=1)
    tried = chosen(found, 40)
    told = [*lost(done), *faults(done, tried, warm)]
    if name in OPERATIONS:  # what a cluster is handed is not durable
        told += broken_laws(done.calls, done.start)
    rules = Counter(cut.rule.rstrip(" 0") for cut in tried)
    row = {"operation": name, "calls": len(done.calls), "states": len(found), "tried": len(tried)}
    print(json.dumps(row | {"rules": rules, "faults": told}))
    assert told == []


# --- what is needed ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [pytest.param("a run", marks=pytest.mark.slow), "a label"])
def test_the_laws_of_durable_writing(name: str, warm: Warm, tmp_path: Path) -> None:
    done = record(OPERATIONS[name], warm, tmp_path)
    assert broken_laws(done.calls, done.start) == set()


SOURCE = Path("src/kindling")
# Renames of what is compiled or downloaded again.
OTHERS = ("compiler.py", "kernel.py", "published.py", "wandb.py")
# Undone after an error; without hard links; an empty folder, whose name is to tell its inode.
RARE = (
    "discarded = discarded.rename(folder)", "self.last.replace(self.previous)",
    "new = new.rename(discarded_name(new))",
)  # fmt: skip
PERHAPS = re.compile(r"sync\(|\.rename\(|\.replace\([\w.]+\)")
WRITE_IN_PLACE = """
def in_place(old, new):
    import pathlib, shutil
    (shutil.copytree if old.is_dir() else shutil.copyfile)(old, new)
    (shutil.rmtree if old.is_dir() else pathlib.Path.unlink)(old)
    return pathlib.Path(new)
"""


@dataclass(frozen=True)
class Site:
    """A sync, or a rename of a path, in the source."""

    file: Path
    line: int
    text: str

    @property
    def rename(self) -> bool:
        return ".rename(" in self.text or ".replace(" in self.text


def sites() -> list[Site]:
    found = []
    files = (ROOT / SOURCE).rglob("*.py")
    for file in sorted(each for each in files if each.name not in OTHERS):
        source = file.read_text()
        for node in ast.walk(ast.parse(source)) if PERHAPS.search(source) else ():
            if isinstance(node, ast.Expr | ast.Assign) and isinstance(node.value, ast.Call):
                call, text = node.value, ast.unparse(node)
                name = ast.unparse(call.func).rpartition(".")[2]
                renames = name == "rename" or (name == "replace" and len(call.args) == 1)
                paths = renames and isinstance(call.func, ast.Attribute) and not call.keywords
                if (name in ("sync", "fsync") or paths) and text not in RARE:
                    found.append(Site(file.relative_to(ROOT), node.lineno, text))
    return found


def without(site: Site, root: Path) -> None:
    """Leaves a sync out, or writes what would be renamed in its place."""
    lines = (ROOT / site.file).read_text().split("\n")
    line, instead = lines[site.line - 1], "pass"
    if site.rename:
        match = re.fullmatch(r"(\w+ = )?([\w.]+)\.(?:rename|replace)\((.*)\)", site.text)
        assert match is not None, site
        instead = f"{match[1] or ''}in_place({match[2]}, {match[3]})"
    lines[site.line - 1] = line[: len(line) - len(line.lstrip())] + instead
    text = "\n".join(lines) + (WRITE_IN_PLACE if site.rename else "")
    (root / site.file).write_text(text)


@pytest.mark.torture
@pytest.mark.parametrize("site", sites(), ids=lambda site: f"{site.file.stem}:{site.line}")
def test_each_sync_and_each_rename_is_needed(site: Site, warm: Warm, tmp_path: Path) -> None:
    """Without it, a cut breaks a law on some file system."""
    root = tmp_path / "mutant"
    for part in ("src", "tests", "benchmarks", "conf", "hydra_plugins"):
        ignored = shutil.ignore_patterns("__pycache__", "*.zip")
        shutil.copytree(ROOT / part, root / part, ignore=ignored)
    without(site, root)
    mutant = Warm(*warm.modules, root=root, preload=Path(warm.preload["LD_PRELOAD"]))
    try:
        for name in ("a label", "a removal", "a run", "a committee"):
            (folder := tmp_path / name).mkdir()
            done = record(OPERATIONS[name], mutant, folder)
            if broken := broken_laws(done.calls, done.start):
                break
    finally:
        mutant.stop()
    print(json.dumps({"left out": site.text, "in": name, "breaks": sorted(broken)}))
    assert broken


# --- disks that fail ------------------------------------------------------------------------------


# SQLite's words for a call that failed.
SQLITE = ("disk I/O error", "database or disk is full", "unable to open database file")
READERS = "cannot be read as"  # before the words of another library


@dataclass(frozen=True)
class Failure:
    """An error of one call; with `full`, of each later call that needs space, too. `kinds`: of
    these calls alone (recorder.c)."""

    error: int
    full: bool = False
    kinds: str = CHANGES

    def hits(self, call: Call) -> bool:
        return call.kind in self.kinds or (call.kind == "-" and self.kinds == CHANGES)


FAILURES = {
    "an error once": Failure(errno.EIO),
    "a full disk": Failure(errno.ENOSPC, full=True),
    "a quota": Failure(errno.EDQUOT, full=True),
    "an error at close": Failure(errno.EIO, kinds="x"),
    "an error at reading": Failure(errno.EIO, kinds="og"),
    "a lock that fails": Failure(errno.ENOLCK, kinds="f"),
}


def again(done: Recorded, warm: Warm, failure: Failure, number: int = 0) -> tuple[int, str]:
    """The status and the words of the command, whose call of this number fails."""
    shutil.rmtree(done.root)
    shutil.copytree(done.start, done.root)
    ended = run_recorded(warm, done.root, done.operation.command, failure, number)
    return ended.returncode, ended.stdout + ended.stderr


def failing(done: Recorded, warm: Warm, failure: Failure, number: int) -> tuple[int, str]:
    """The status when this call fails, and what is wrong after the same command is typed again, ""
    if nothing is."""
    status, told = again(done, warm, failure, number)
    if done.operation.restarted:
        return status, done.fault(warm)
    if "Traceback" in told or status not in (0, 1, 2):
        return status, f"status {status}: {told[-700:]}"
    if status and not any(
        reason in told for reason in (os.strerror(failure.error), *SQLITE, READERS)
    ):
        return status, f"no reason: {told[-300:]}"
    return status, done.fault(warm)


@pytest.mark.torture
@pytest.mark.parametrize("kind", FAILURES)
@pytest.mark.parametrize("name", [*OPERATIONS, *ON_CLUSTERS])
def test_a_call_that_fails_is_told_and_nothing_is_lost(
    name: str, kind: str, warm: Warm, tmp_path: Path
) -> None:
    done, failure = record(found_or_skipped(name), warm, tmp_path), FAILURES[kind]
    assert again(done, warm, failure)[0] == 0
    calls = [call for call in calls_of(done.root) if failure.hits(call)]
    # Python itself looks for modules in the folder where a command is typed.
    numbers = chosen([n for n, call in enumerate(calls, 1) if call.path != "."], 40)
    ended = {number: failing(done, warm, failure, number) for number in numbers}
    told = [
        f"call {number}, {calls[number - 1]}: {fault}"
        for number, (_, fault) in ended.items()
        if fault
    ]
    row = {"operation": name, "failure": kind, "calls": len(calls), "tried": len(numbers)}
    print(json.dumps(row | {"faults": told}))
    assert told == []
    needs_space = any(call.kind in "cwml" for call in done.calls)  # a removal does not
    needless = failure.kinds != CHANGES or (failure.full and not needs_space)
    assert needless or any(status for status, _ in ended.values())


def empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


@of_linux
@pytest.mark.slow
def test_a_warm_process_on_a_disk_that_fails(warm: Warm, warm_root: Path) -> None:
    """Each call in turn. The command tells, or starts the process; the next one starts it."""
    tried = {}
    for kind, failure in FAILURES.items():
        empty(warm_root)
        start_and_stop(run_recorded(warm, warm_root, KEPT_WARM, failure))
        calls = [call for call in calls_of(warm_root) if failure.hits(call)]
        # Python itself looks for modules in the folder where a command is typed.
        numbers = [n for n, call in enumerate(calls, 1) if call.path != "."]
        tried[kind] = len(numbers)
        for number in numbers:
            empty(warm_root)
            done = run_recorded(warm, warm_root, KEPT_WARM, failure, number)
            said = f"{kind}, call {number}: {done.stdout + done.stderr}"
            assert done.returncode in (0, 1, 2), said
            assert "Traceback" not in said, said
            assert not done.returncode or os.strerror(failure.error) in said, said
            until(lambda: asked(b"s") or not is_starting())
            asked(b"q")
            until(lambda: not is_starting())
            start_and_stop(warm(warm_root, *KEPT_WARM))
    print(json.dumps({"operation": "a warm process", "tried": tried}))
    assert tried["an error once"] > 5
    assert all(tried[kind] for kind in FAILURES if kind != "an error at reading")


# --- bits that flip -------------------------------------------------------------------------------


def flip(state: Tree, path: str, root: Path, draw: random.Random) -> int:
    """Makes `root` this state with another bit in the file; returns the place of its byte."""
    build(state, root)
    content = bytearray((root / path).read_bytes())
    place = draw.randrange(len(content))
    content[place] ^= 1 << draw.randrange(8)
    (root / path).write_bytes(content)
    return place


@pytest.mark.torture
@pytest.mark.parametrize(
    "name",
    [
        "a run", "a run that keeps the best", "a fused sweep", "a sweep",
        "a sweep that keeps the best trial", "a sweep with halving",
        "a sweep of groups side by side", "a search", "a confirmation", "a pack",
        *ON_CLUSTERS,
    ],
)  # fmt: skip
def test_a_flipped_bit_is_told_or_changes_nothing(name: str, warm: Warm, tmp_path: Path) -> None:
    """In a file of an operation that was killed, one bit flips."""
    done = record(found_or_skipped(name), warm, tmp_path)
    states = [cut for cut in cuts(done.calls, done.start) if cut.rule == "killed"]
    draw, told, tried = random.Random(0), [], 0
    for cut in chosen(states, 10):
        # A discarded folder has its new inode in its name (cuts.py).
        known = (path for path, content in cut.tree.items() if content)
        files = sorted(path for path in known if DISCARDED not in path)
        for path in draw.sample(files, min(4, len(files))):
            place = flip(cut.tree, path, done.root, draw)
            fault, tried = done.fault(warm), tried + 1
            finished = f"{Path(path).parent}/result.json" in cut.tree
            records = Path(path).name in ("history.csv", "result.json")
            if fault == OTHER_OUTCOME and finished and records:
                continue  # nothing repeats the numbers of a finished run
            folder = Path(path).parent  # of the run, whose settings are told to be others
            folder = folder.parent if folder.name == ".hydra" else folder
            named = path in fault or str(folder) in fault
            if fault and ("Traceback" in fault or not named):
                told.append(f"{path}, byte {place}, after call {cut.calls}: {fault}")
    print(json.dumps({"operation": name, "tried": tried, "faults": told}))
    assert told == []


UNREPEATED = ("history.csv", "result.json", "overrides.yaml")  # what these say


@pytest.mark.parametrize(
    "name",
    [
        "a label",
        *(
            pytest.param(name, marks=pytest.mark.torture)
            for name in (
                "a committee", "a reproduction", "an export", "a bundle", "a report",
                "predictions", "a removal", "a removal of a sweep", "a cleaning",
            )
        ),
    ],
)  # fmt: skip
def test_a_flipped_bit_before_a_command_and_after_it(name: str, warm: Warm, tmp_path: Path) -> None:
    """Before it in each file that is there, after it in each that it made; then it is typed again.
    What it did not write without the bit, it does not write with it."""
    done = record(OPERATIONS[name], warm, tmp_path)
    before, end = after([], done.start), after(done.calls, done.start)
    kept = {path for path, content in end.items() if content and content == before.get(path)}
    files = [(before, path) for path in before] + [(end, path) for path in end.keys() - kept]
    files = sorted((each for each in files if each[0][each[1]]), key=lambda each: each[1])
    draw, told, tried = random.Random(0), list[str](), 2 * len(files)
    for state, path in files * 2:
        place = flip(state, path, done.root, draw)
        flipped = {**end, path: (done.root / path).read_bytes()}
        fault = done.fault(warm)
        content = {each: done.root / each for each in kept}
        lost = [
            each for each, file in content.items()
            if not file.is_file() or file.read_bytes() != flipped[each]
        ]  # fmt: skip
        page = done.root / RUN / "report.html"  # says which models are not shown
        named = path in fault + done.said or (page.is_file() and path in page.read_text())
        if fault == OTHER_OUTCOME and path in end and not named:
            seen = done.operation.outcome(done.root)
            build(flipped, done.root)
            named = seen == done.operation.outcome(done.root) or Path(path).name in UNREPEATED
        if lost or (fault and ("Traceback" in fault or not named)):
            told.append(f"{path}, byte {place}: {fault}; lost: {lost}")
    print(json.dumps({"operation": name, "tried": tried, "faults": told}))
    assert told == []
