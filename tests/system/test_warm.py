"""A command through the warm process is the command: state, results, signals, end."""

import json
import os
import pty
import random
import re
import resource
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from kindling.commands.warm import seconds
from kindling.records.folder import Run
from kindling.system.errors import InputError
from kindling.system.warm import NUMBER
from kindling.system.warm_server import READ_WHEN_LOADED, Running, Server, needs_rights
from tests.helpers.commands import LONG, PYTHONPATH, ROOT, SMALL
from tests.helpers.sweeps import lived, until
from tests.helpers.warm_process import Place
from tests.helpers.weights import same

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a warm process needs Linux")
COMMANDS = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("warm"))
    place.start()
    yield place
    place.stop()


@pytest.fixture
def own_place(tmp_path: Path) -> Iterator[Place]:
    """With a warm process that the test may end."""
    place = Place(tmp_path)
    place.start()
    yield place
    place.run("src.warm", "--stop")


@pytest.mark.slow
def test_a_run_and_its_evaluation_are_those_of_commands_by_themselves(
    place: Place, tmp_path: Path
) -> None:
    before = place.commands()
    runs = []
    for name, switch in (("warm", "on"), ("cold", "off")):
        done = place.run("src.train", *SMALL, f"hydra.run.dir={name}", KINDLING_WARM=switch)
        assert done.returncode == 0, done.stderr
        runs.append(Run(place.folder / name))
    assert place.commands() == before + 1
    assert same(*runs)
    first, second = (run.history for run in runs)
    assert [{key: value for key, value in row.items() if key != "seconds"} for row in first] == [
        {key: value for key, value in row.items() if key != "seconds"} for row in second
    ]
    told = [place.run("src.evaluate", "warm", KINDLING_WARM=switch) for switch in ("on", "off")]
    assert told[0].stdout == told[1].stdout
    assert "accuracy" in told[0].stdout
    assert told[0].returncode == told[1].returncode == 0


@pytest.mark.slow
def test_ranks_and_stacks_side_by_side_are_those_of_commands_by_themselves(place: Place) -> None:
    """Their processes are forks of the command's, which is a fork of the warm process."""
    ranks = ("trainer.devices=2", "trainer.strategy=ddp")
    for switch in ("on", "off"):
        done = place.run(
            "src.train", *SMALL, *ranks, f"hydra.run.dir=ranks_{switch}", KINDLING_WARM=switch
        )
        assert done.returncode == 0, done.stderr
        done = place.run(
            "src.train", "-m", *SMALL, "hydra/launcher=fused", "hydra.launcher.executor=local",
            "hydra.launcher.slots=2", "seed=1,2,3", f"hydra.sweep.dir=side_{switch}",
            KINDLING_WARM=switch,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    for name in ("ranks_{}", "side_{}/0", "side_{}/1", "side_{}/2"):
        assert same(*(Run(place.folder / name.format(switch)) for switch in ("on", "off")))


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("src.train", "optimizer.lr=fast", "model.hidden=3"),
        ("src.train", "--help"),
        ("src.runs", "nosuch", "--json"),
        ("src.evaluate",),
        ("src.predict", "nosuch", "none.png"),
        ("kindling", "export", "--help"),
        ("src.demo", "--help"),
    ],
)
def test_what_a_command_tells(arguments: tuple[str, ...], place: Place) -> None:
    before = place.commands()
    told = [place.run(*arguments, KINDLING_WARM=switch) for switch in ("on", "off")]
    assert place.commands() == before + 1
    assert (told[0].returncode, told[0].stdout, told[0].stderr) == (
        told[1].returncode, told[1].stdout, told[1].stderr,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
def test_the_state_of_a_process(seed: int, place: Place, tmp_path: Path) -> None:
    """Everything that a process is given by its parent, drawn at random."""
    draw = random.Random(seed)
    file, target = tmp_path / "open", tmp_path / "state.json"
    file.write_text("content")
    descriptor = os.open(file, os.O_RDONLY)
    number = draw.randrange(40, 90)
    os.dup2(descriptor, number)
    ignored = draw.sample([signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT, signal.SIGINT], 2)
    closed = draw.choice([None, 0, 1, 2])
    umask = draw.choice([0o22, 0o77, 0o2])
    files = draw.randrange(200, 900)
    blocked = draw.choice([[], [signal.SIGUSR2]])

    def prepare() -> None:
        os.umask(umask)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
        resource.setrlimit(resource.RLIMIT_CPU, (1000 + seed, 2000))
        for each in ignored:
            signal.signal(each, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        if closed is not None:
            os.close(closed)

    before, states = place.commands(), []
    given = [draw.choice(["a", "ö", "\udcff", " ", ""]) for _ in range(3)]
    for switch in ("on", "off"):
        done = place.run(
            "tests.helpers.own_state", *given,
            options={"preexec_fn": prepare, "pass_fds": [number], "stdin": subprocess.DEVNULL},
            KINDLING_WARM=switch, TOLD=str(target), STATUS=str(seed), NO_COLOR=str(seed),
            ODD="\udcfe", COLUMNS="77",
        )  # fmt: skip
        assert done.returncode == seed, done.stderr
        states.append(json.loads(target.read_text()))
    assert place.commands() == before + 1
    os.close(descriptor)
    os.close(number)
    hot, cold = states
    for state in states:
        del state["environment"]["KINDLING_WARM"]
        state["descriptors"] = {
            name: re.sub(r"\d+", "N", link) for name, link in state["descriptors"].items()
        }
    for name in cold:
        assert hot[name] == cold[name], name
    assert hot["descriptors"][str(number)].endswith("/open")


def test_nobody_closes_the_files_of_a_command(place: Place) -> None:
    """Not even objects of the warm process, whose numbers they may have."""
    before = place.commands()
    done = place.run("tests.helpers.holds_files")
    assert place.commands() == before + 1
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.slow
def test_streams(place: Place) -> None:
    """Piped input, a reader that goes away, and an output that is full."""
    assert place.run("src.train", *SMALL, "hydra.run.dir=kept").returncode == 0
    before = place.commands()
    done = place.run("src.runs", "rm", "kept", options={"input": "y\n"})
    assert done.returncode == 2
    assert "--yes" in done.stderr
    with Path("/dev/full").open("w") as full:
        process = subprocess.run(
            place.command("src.runs", "kept"), cwd=place.folder, env=place.environment,
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert process.returncode == 1
    assert "the standard output cannot be written" in process.stderr
    piped = subprocess.run(
        f"{sys.executable} -m src.train --help | head -n 1; echo ${{PIPESTATUS[0]}}",
        shell=True, executable="/bin/bash", cwd=place.folder, env=place.environment,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert piped.stdout.splitlines()[-1] == "0"
    assert place.commands() == before + 3


@pytest.mark.parametrize(("status", "learnt"), [(0, [["seed=1"]]), (1, [])])
def test_a_warm_process_learns_from_commands_that_succeed(
    status: int, learnt: list[list[str]]
) -> None:
    server = object.__new__(Server)
    server.selector, server.work = selectors.DefaultSelector(), deque()
    server.prepare = lambda typed: iter([typed])
    child = os.fork()
    if not child:
        os._exit(status)
    here, there = socket.socketpair()
    descriptor = os.pidfd_open(child)
    server.selector.register(descriptor, selectors.EVENT_READ)
    server.running = {descriptor: Running(child, os.getpid(), there, ["seed=1"])}
    server._ended(descriptor)
    assert [list(*steps) for steps in server.work] == learnt
    with here:
        assert NUMBER.unpack(here.recv(NUMBER.size)) == (status,)


def test_a_stamp_of_a_file_is_never_renewed(tmp_path: Path) -> None:
    """The compositions in memory are of the files as they were at their first stamp."""
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    server = object.__new__(Server)
    old.write_text("a: 1")
    files = [str(old)]
    server.stamps, server.work = {}, deque([iter([files, [*files, str(new)]])])
    server._work()
    stamps = dict(server.stamps)
    old.write_text("a: 1000")
    new.write_text("b: 1")
    server._work()
    assert server.stamps[str(old)] == stamps[str(old)]
    assert [*server.stamps] == [str(old), str(new)]
    assert server.stamps[str(new)] is not None
    server._work()
    assert not server.work


@contextmanager
def trains(place: Place, name: str) -> "Iterator[tuple[subprocess.Popen[str], int]]":
    """A long run through the warm process, and its process there."""
    with place.begin("src.train", *LONG, f"hydra.run.dir={name}") as process:
        try:
            history = place.folder / name / "history.csv"
            until(lambda: history.exists() and history.read_text().count("\n") > 3)
            child = child_of(place)
            assert child != process.pid
            yield process, child
        finally:
            process.kill()


def child_of(place: Place) -> int:
    """The process of the only command."""
    state = place.told()
    assert state["running"] == 1, state["refused"]
    server = state["process"]
    (child,) = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    return int(child)


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_stops_a_run_in_good_order(number: int, status: int, place: Place) -> None:
    with trains(place, f"signal{number}") as (process, child):
        process.send_signal(number)
        _, errors = process.communicate(timeout=300)
        assert process.returncode == status
        assert f"python -m src.train resume=signal{number}" in errors
        assert not lived(child)
        assert Run(place.folder / f"signal{number}").result["status"] == "interrupted"


@pytest.mark.slow
def test_a_killed_command_is_killed(place: Place) -> None:
    with trains(place, "killed") as (process, child):
        process.kill()
        process.wait()
        until(lambda: not lived(child))
        assert not Run(place.folder / "killed").ended


def test_a_command_ends_by_the_signal_that_ends_it(place: Place) -> None:
    with trains(place, "ended") as (process, child):
        os.kill(child, signal.SIGKILL)
        assert process.wait(timeout=300) == -signal.SIGKILL


@pytest.mark.slow
def test_stop_and_go_on(place: Place) -> None:
    """By signals that no program can catch."""
    with trains(place, "stopped") as (process, child):
        process.send_signal(signal.SIGSTOP)
        until(lambda: state_of(child) == "T")
        process.send_signal(signal.SIGCONT)
        until(lambda: state_of(child) in "RS")
        process.terminate()
        assert process.wait(timeout=300) == 143


def state_of(number: int) -> str:
    return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.slow
def test_the_keys_of_a_terminal(place: Place) -> None:
    """A shell with job control: Ctrl-Z, fg, Ctrl-C."""
    shell, terminal = pty.fork()
    if not shell:
        os.chdir(place.folder)
        os.execve("/bin/bash", ["bash", "--norc", "-i"], {**place.environment, "TERM": "dumb"})
    try:
        typed = " ".join([sys.executable, "-m", "src.train", *LONG, "hydra.run.dir=keys"])
        os.write(terminal, f"{typed}\n".encode())
        history = place.folder / "keys" / "history.csv"
        read(terminal, lambda _: history.exists() and history.read_text().count("\n") > 3)
        child = child_of(place)
        os.write(terminal, b"\x1a")
        assert "Stopped" in read(terminal, lambda told: "Stopped" in told)
        assert state_of(child) == "T"
        os.write(terminal, b"fg\n")
        read(terminal, lambda _: state_of(child) != "T")
        rows = history.read_text().count("\n")
        read(terminal, lambda _: history.read_text().count("\n") > rows + 2)
        os.write(terminal, b"\x03")
        read(terminal, lambda told: "resume=keys" in told)
        os.write(terminal, b"echo status $?\n")
        assert "status 130" in read(terminal, lambda told: "status 130" in told)
    finally:
        os.kill(shell, signal.SIGKILL)
        os.waitpid(shell, 0)
        os.close(terminal)


def read(terminal: int, enough: Callable[[str], object]) -> str:
    """What the terminal shows, until that is enough."""
    os.set_blocking(terminal, False)
    told, end = "", time.monotonic() + 600
    while not enough(told):
        assert time.monotonic() < end, told
        with suppress(BlockingIOError):
            told += os.read(terminal, 65536).decode(errors="replace")
        time.sleep(0.02)
    return told


@pytest.mark.parametrize(
    ("reason", "more", "before"),
    [
        ("another value of OMP_NUM_THREADS", {"OMP_NUM_THREADS": "2"}, []),
        ("another value of LD_BIND_NOW", {"LD_BIND_NOW": "1"}, []),
        ("another value of RANK", {"RANK": "0"}, []),
        ("another options of Python", {}, [sys.executable, "-X", "dev"]),
        ("another scheduling", {}, ["nice", "-n", "3", sys.executable]),
        ("a limit of its memory", {}, ["prlimit", "--as=9000000000", sys.executable]),
        ("another cores", {}, ["taskset", "-c", "0", sys.executable]),
    ],
)
def test_what_the_child_could_not_be_is_left_to_a_process_of_its_own(
    reason: str, more: dict[str, str], before: list[str], place: Place
) -> None:
    if len(os.sched_getaffinity(0)) == 1 and before[:1] == ["taskset"]:
        pytest.skip("this machine has one core")
    count = place.commands()
    done = subprocess.run(
        [*(before or [sys.executable]), "-m", "src.runs", "--help"],
        cwd=place.folder, env={**place.environment, **more}, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    state = place.told()
    assert state["commands"] == count
    assert state["refused"].startswith(reason)
    assert reason in place.run("src.warm", "--status").stdout


def test_a_module_in_the_folder_hides_an_installed_one(place: Place, tmp_path: Path) -> None:
    (tmp_path / "omegaconf.py").write_text("raise ImportError('mine')\n")
    done = subprocess.run(
        place.command("src.train", "--help"), cwd=tmp_path, env=place.environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "mine" in done.stderr
    state = place.told()
    assert "has a module omegaconf, which hides an installed one" in state["refused"]


@pytest.mark.parametrize("name", ["hydra_plugins", "mine-1.0.dist-info", "mine.egg-info"])
def test_what_the_folder_adds_is_read(name: str, place: Place, tmp_path: Path) -> None:
    """Plugins of Hydra, and extensions."""
    (tmp_path / name).mkdir()
    done = subprocess.run(
        place.command("src.train", "--help"), cwd=tmp_path, env=place.environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert f"has {name}, which the warm process has not read" in place.told()["refused"]


def with_own_configurations(folder: Path) -> tuple[Place, Path]:
    """A place whose commands have an extension, and where the extension may have data=mine."""
    packages, own = folder / "packages", folder / "own"
    (own / "data").mkdir(parents=True)
    (packages / "mine-1.0.dist-info").mkdir(parents=True)
    (packages / "mine-1.0.dist-info" / "METADATA").write_text("Name: mine\nVersion: 1.0\n")
    (packages / "mine-1.0.dist-info" / "entry_points.txt").write_text(
        "[kindling.extensions]\nmine = mine_of_a_test\n"
    )
    (packages / "mine_of_a_test.py").write_text(
        "import pathlib\nfrom kindling.config import registry\n"
        f"registry.register_configs(pathlib.Path({str(own)!r}))\n"
    )
    (folder / "place").mkdir()
    place = Place(folder / "place", PYTHONPATH=f"{PYTHONPATH}:{packages}")
    return place, own / "data" / "mine.yaml"


@pytest.mark.slow
def test_changed_configurations_end_it(tmp_path: Path) -> None:
    """What was composed before a file was changed is not used again."""
    place, configuration = with_own_configurations(tmp_path)
    configuration.write_text("defaults: [digits]\nval_fraction: 0.5\n")
    place.start()
    mine = ("src.train", "data=mine", "trainer.max_epochs=2")
    assert "719 validation" in place.run(*mine).stdout
    assert place.commands() == 1
    until(lambda: not place.told()["works"])  # it has composed data=mine
    configuration.write_text("defaults: [digits]\n")
    assert "288 validation" in place.run(*mine).stdout
    until(lambda: place.state() is None)


@pytest.mark.slow
def test_a_configuration_that_is_newer_than_the_warm_process_may_change(tmp_path: Path) -> None:
    """The process has learnt its composition from a command."""
    place, configuration = with_own_configurations(tmp_path)
    place.start()
    until(lambda: not place.told()["works"])
    configuration.write_text("defaults: [digits]\nval_fraction: 0.5\n")
    mine = ("src.train", "data=mine", "trainer.max_epochs=2")
    assert "719 validation" in place.run(*mine).stdout
    assert place.commands() == 1
    until(lambda: not place.told()["works"])
    configuration.write_text("defaults: [digits]\n")
    assert "288 validation" in place.run(*mine).stdout


@pytest.mark.slow
def test_changed_packages_end_it(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    (tmp_path / "place").mkdir()
    place = Place(tmp_path / "place", PYTHONPATH=f"{PYTHONPATH}:{packages}")
    place.start()
    assert place.run("src.runs").returncode == 0
    (packages / "a_folder").mkdir()  # as runs/ in a checkout
    assert place.run("src.runs").returncode == 0
    assert place.commands() == 2
    (packages / "new-1.0.dist-info").mkdir()
    assert place.run("src.runs").returncode == 0
    until(lambda: place.state() is None)
    assert place.run("src.warm", "--status").returncode == 1


@pytest.mark.slow
def test_it_ends_when_nobody_needs_it(tmp_path: Path) -> None:
    place = Place(tmp_path)
    assert place.run("src.warm", "--for", "3s").returncode == 0
    until(lambda: "no warm" in place.run("src.warm", "--status").stdout)
    left = [file.suffix for file in place.runtime.rglob("*") if file.is_file()]
    assert sorted(left) == [".lock", ".log"]
    told = place.run("src.warm", "--status")
    assert told.returncode == 1
    assert told.stdout == "no warm process; python -m src.warm starts one\n"


@pytest.mark.slow
def test_a_second_one_and_the_end(own_place: Place) -> None:
    """A second `warm` changes the time; `--stop` leaves commands alone that run."""
    told = own_place.run("src.warm", "--for", "2h").stdout
    assert "warm since" in told
    assert "ends 2.0 h after the last command" in told
    with trains(own_place, "run") as (process, child):
        assert "1 running; ends after these" in own_place.run("src.warm", "--stop").stdout
        assert own_place.run("src.runs").returncode == 0  # by itself
        assert lived(child)
        process.terminate()
        assert process.wait(timeout=300) == 143


@pytest.mark.slow
def test_a_killed_warm_process(own_place: Place) -> None:
    """Its commands write a checkpoint, and those that come later start for themselves."""
    with trains(own_place, "run") as (process, child):
        state = own_place.told()
        os.kill(state["process"], signal.SIGKILL)
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 1
        assert "the warm process was ended from outside, and the command with it" in errors
        until(lambda: not lived(child))
        assert Run(own_place.folder / "run").result["status"] == "interrupted"
        assert own_place.run("src.runs").returncode == 0
        own_place.start()  # beside the socket that was left
        assert own_place.run("src.runs").returncode == 0
        assert own_place.commands() == 1


@pytest.mark.slow
def test_many_at_once_and_hostile_bytes(own_place: Place) -> None:
    file = next(each for each in own_place.runtime.rglob("*") if each.is_socket())
    draw = random.Random(0)
    held = []
    for size in (0, 1, 5, 32, 5000):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(file))
        connection.sendall(draw.randbytes(size))
        held.append(connection)
    for content in (b"", b"{", b"[]", b"{}", b'{"descriptors": []}', b'{"descriptors": 3}'):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(file))
        order = os.memfd_create("order")
        os.write(order, content)
        socket.send_fds(connection, [b"r"], [order, order])
        os.close(order)
        held.append(connection)
    with ThreadPoolExecutor(16) as pool:
        runs = [pool.submit(own_place.run, "src.runs") for _ in range(40)]
    assert {each.result().returncode for each in runs} == {0}
    for connection in held:
        connection.close()
    until(lambda: own_place.state() is not None)
    assert own_place.run("src.runs").returncode == 0
    assert own_place.commands() >= 1


def test_a_folder_that_others_can_write_into(tmp_path: Path) -> None:
    place = Place(tmp_path)
    folder = place.runtime / f"kindling-warm-{os.getuid()}"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    done = place.run("src.warm")
    assert done.returncode == 2
    assert f"{folder}: is no folder of yours alone; set XDG_RUNTIME_DIR" in done.stderr
    assert place.run("src.runs").returncode == 0
    done = place.run("src.warm", XDG_RUNTIME_DIR=str(tmp_path / ("long" * 30)))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_limits_that_a_child_could_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    infinite = resource.RLIM_INFINITY
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert needs_rights({"RLIMIT_NOFILE": (soft, hard)}) == ""
    assert needs_rights({"RLIMIT_NOFILE": (soft, hard - 1)}) == ""
    for higher in (hard + 1, infinite):
        assert needs_rights({"RLIMIT_NOFILE": (soft, higher)}) == "RLIMIT_NOFILE"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert needs_rights({"RLIMIT_NOFILE": (soft, infinite)}) == ""


def test_a_system_without_what_linux_has(tmp_path: Path) -> None:
    """Commands are as they were, and `warm` says why there is none."""
    program = (
        "import os, signal, socket, sys\n"
        "del signal.struct_siginfo, signal.sigwaitinfo, signal.pidfd_send_signal\n"
        "del os.memfd_create, os.pidfd_open, os.O_PATH, socket.SO_PEERCRED, socket.send_fds\n"
        "sys.argv[0] = 'kindling'\n"
        "from kindling.system import warm; warm.available = lambda: False\n"
        "from kindling.__main__ import main; main()\n"
    )
    for arguments, status, told in (
        (("runs",), 0, ""),
        (("warm",), 2, "error: a warm process needs Linux; commands start for themselves\n"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments], cwd=tmp_path,
            env={**os.environ, "KINDLING_WARM": "on"}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (status, told)


def test_durations() -> None:
    assert [seconds(text) for text in ("45s", "1.5m", "8h", "30d")] == [45, 90, 28800, 2592000]
    for text in ("", "5", "0s", "31d", "-1h", "1e3s", "nan", "5 m"):
        with pytest.raises(InputError, match="must be a duration of at most 30d, such as 45s"):
            seconds(text)


@pytest.mark.slow
def test_what_libraries_ask_for_when_they_are_loaded(tmp_path: Path) -> None:
    """Each variable that C code asks for makes a difference, or is read again by each command."""
    source, library = tmp_path / "asked.c", tmp_path / "asked.so"
    source.write_text(
        "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <stdio.h>\n#include <fcntl.h>\n"
        "#include <string.h>\n#include <unistd.h>\n"
        'static void note(const char *name) { int f = open("' + str(tmp_path / "asked") + '",'
        'O_WRONLY|O_CREAT|O_APPEND, 0600); write(f, name, strlen(name)); write(f, "\\n", 1);'
        "close(f); }\n"
        "char *getenv(const char *name) { static char *(*real)(const char *);"
        'if (!real) real = dlsym(RTLD_NEXT, "getenv"); note(name); return real(name); }\n'
        "char *secure_getenv(const char *name) { static char *(*real)(const char *);"
        'if (!real) real = dlsym(RTLD_NEXT, "secure_getenv"); note(name); return real(name); }\n'
    )
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", library, source, "-ldl"], check=True)
    except FileNotFoundError:
        pytest.skip("there is no C compiler")
    script = (
        "import importlib, src\n"
        "from kindling.commands.warm import LIBRARIES, compositions\n"
        "from kindling.system import warm_server\n"
        "import json, threading, os, torch\n"
        "with warm_server.recorded() as read:\n"
        "    for name in LIBRARIES: importlib.import_module(name)\n"
        "    before = {*read}\n"
        "    steps = [*compositions([]), *compositions(['scheduler=cosine'])]\n"
        "    print(len(steps) > 10, {*read} - before)\n"
        "print(json.dumps([sorted(read), torch.cuda.is_initialized(), threading.active_count(),\n"
        "    len(os.listdir('/proc/self/task'))]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, text=True,
        env={**os.environ, "LD_PRELOAD": str(library), "OPENBLAS_NUM_THREADS": "1",
             "OF_NOBODY": "1"},
    )  # fmt: skip
    steps, told = done.stdout.splitlines()
    assert steps == "True set()"
    read, cuda, threads, tasks = json.loads(told)
    assert (cuda, threads, tasks) == (False, 1, 1)
    assert {"LOCAL_RANK", "HOME"} <= {*read}
    assert "OF_NOBODY" not in read  # else somebody goes through all names
    asked = {*(tmp_path / "asked").read_text().split()} - {*read}
    left = {name for name in asked if not name.startswith(READ_WHEN_LOADED)}
    # Read again when they are needed; of the interpreter itself; a test of a library.
    left -= {"PATH", "TMPDIR", "SQLITE_TMPDIR", "__PYVENV_LAUNCHER__", "bar"}
    assert sorted(left) == []
