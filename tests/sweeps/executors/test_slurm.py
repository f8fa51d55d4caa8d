"""Sweeps on a Slurm cluster of two nodes, killed in every way, have the bits of this machine."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from kindling.config.compose import compose
from kindling.records.folder import Run
from kindling.system.errors import InputError
from tests.helpers.commands import PYTHONPATH, ROOT, SMALL, run_command
from tests.helpers.steps import needs_engine
from tests.helpers.sweeps import ClusterCommand, lived, require_same, trained_here, until
from tests.helpers.weights import same
from tests.sweeps.executors.test_keys import launcher

pytest.importorskip("submitit", reason='needs submitit: pip install -e ".[slurm]"')
from kindling.sweeps.executors import slurm

SCRIPT = ROOT / "tests" / "clusters" / "slurm.sh"
# Long enough for a command to start, and to be killed, while jobs train.
LONG = ("trainer.max_epochs=200", "checkpoint.every_n_epochs=1")
SLURM = ("hydra.launcher.executor=slurm", *LONG)
os.environ["PATH"] += ":/usr/sbin"

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or not all(map(shutil.which, PROGRAMS)),
        reason="needs root, and Debian's packages slurm-wlm and munge",
    ),
    needs_engine,
]


mounts = subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode == 0
needs_mounts = pytest.mark.skipif(not mounts, reason="needs the right to mount file systems")


def mount(folder: Path, size: str, *within: str) -> None:
    """Mounts an empty disk of this size; `within`: a command that enters a node."""
    folder.mkdir(exist_ok=True)
    command = [*within, "mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    subprocess.run(command, check=True)


def unmount(folder: Path, *within: str) -> None:
    subprocess.run([*within, "umount", str(folder)], check=True)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a running cluster. Its nodes see the small disk in its folder `disk`."""
    state = tmp_path_factory.mktemp("slurm")
    os.environ["SLURM_CONF"] = str(state / "slurm.conf")
    try:
        if mounts:
            mount(state / "disk", "200m")
        subprocess.run([SCRIPT, "up", state], check=True, timeout=60)
        yield state
        assert ask("squeue", "-h") == ""
        assert not jobs_of(state.parent)
    finally:
        subprocess.run([SCRIPT, "down", state], check=True, timeout=60)
        if mounts:
            unmount(state / "disk")
        del os.environ["SLURM_CONF"]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    return trained_here(tmp_path_factory.mktemp("expected"), *LONG)


def ask(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def processes(pattern: str) -> dict[int, str]:
    """The command lines that match, by process."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if re.search(pattern, line) and lived(int(entry.name)):
            found[int(entry.name)] = line
    return found


def jobs_of(folder: Path | str) -> dict[int, str]:
    """The processes of the jobs of a sweep."""
    return processes(rf"^\S*python\S* -u -m submitit\.core\._submit {folder}")


def variable(process: int, name: str) -> str:
    """A variable of the environment of a process, or ""."""
    try:
        pairs = Path(f"/proc/{process}/environ").read_text(errors="replace").split("\0")
    except OSError:
        return ""
    return next((pair.partition("=")[2] for pair in pairs if pair.startswith(f"{name}=")), "")


def start_at_once(count: int) -> None:
    """Slurm lets a job that is queued again wait for two minutes; not here."""

    def pending() -> list[str]:
        return ask("squeue", "-h", "-r", "-t", "PENDING", "-o", "%i").split()

    until(lambda: len(pending()) == count)
    for job in pending():
        until(partial(_starts, job), 30)


def _starts(job: str) -> bool:
    command = ["scontrol", "update", f"jobid={job}", "starttime=now"]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def gone_on_from(folder: Path) -> list[int]:
    """The epochs from which trials went on, by their logs."""
    told = "".join((folder / str(trial) / "train.log").read_text() for trial in range(4))
    return [int(number) for number in re.findall(r"going on from epoch (\d+)", told)]


def test_submit_leave_and_come_back(cluster: Path, tmp_path: Path) -> None:
    """The folder is complete before anybody comes back."""
    sweep, short = tmp_path / "sweep", "trainer.max_epochs=20"
    left = ClusterCommand(sweep, *SLURM, short, "hydra.launcher.wait=false")
    assert left.wait() == 0
    told = left.log.read_text()
    assert "2 groups: 2 submitted to Slurm, 0 submitted before" in told
    assert "to come back, type\n  python -m src.train resume=sweep" in told
    assert re.search(r"to cancel them, type\n  scancel \d+\n", told)
    until(lambda: ask("squeue", "-h") == "")
    assert len((sweep / "results.csv").read_text().splitlines()) == 5
    left.resume()
    assert left.wait() == 0
    assert "best trial, to train it alone:" in left.log.read_text()
    require_same(sweep, trained_here(tmp_path / "expected", *LONG, short))


def test_a_killed_driver_and_a_killed_job(
    cluster: Path, tmp_path: Path, expected: list[Run]
) -> None:
    sweep = tmp_path / "sweep"
    command = ClusterCommand(sweep, *SLURM)
    first, second = command.workers()
    command.process.kill()
    command.wait()
    os.kill(first, signal.SIGKILL)
    reached = command.epochs()
    command.resume()
    until(lambda: "1 submitted to Slurm, 1 submitted before" in command.log.read_text())
    until(lambda: jobs_of(sweep).keys() - {first, second})
    (third,) = jobs_of(sweep).keys() - {first, second}
    until(lambda: min(command.epochs()) > max(reached) + 1)
    os.kill(third, signal.SIGKILL)  # under the eyes of the driver
    assert command.wait() == 0, command.log.read_text()
    assert "the process was killed; another goes on after epoch" in command.log.read_text()
    assert min(gone_on_from(sweep)) >= min(reached) - 1
    require_same(sweep, expected)


@pytest.mark.parametrize("lives_on", [False, True])
def test_a_dead_node(lives_on: bool, cluster: Path, tmp_path: Path, expected: list[Run]) -> None:
    """Slurm queues its job again. `lives_on`: the process that trains hangs instead of dying, and
    the new job waits for it."""
    sweep = tmp_path / "sweep"
    command = ClusterCommand(sweep, *SLURM)
    worker = command.workers()[0]
    node, job = variable(worker, "SLURMD_NODENAME"), variable(worker, "SLURM_JOB_ID")
    daemons = processes(rf"slurmd -N {node}|slurmstepd: \[{job}\.")
    for daemon in daemons:
        os.kill(daemon, signal.SIGKILL)
    # The kernel hangs up a process that is stopped when its parent dies.
    until(lambda: not any(map(lived, daemons)))
    os.kill(worker, signal.SIGSTOP if lives_on else signal.SIGKILL)
    try:
        until(lambda: "down" in ask("sinfo", "-h", "-n", node, "-o", "%T"))
        start_at_once(1)  # on the other node, when the other job has ended there
        if lives_on:
            until(lambda: ask("squeue", "-h", "-t", "RUNNING", "-o", "%A") == f"{job}\n")
            until(lambda: jobs_of(sweep).keys() - {worker})
            (second,) = jobs_of(sweep).keys() - {worker}
            time.sleep(5)
            assert lived(second)
            os.kill(worker, signal.SIGCONT)
        assert command.wait() == 0, command.log.read_text()
        require_same(sweep, expected)
    finally:
        subprocess.run([SCRIPT, "node-up", cluster, node], check=True)
        until(lambda: ask("sinfo", "-h", "-t", "idle", "-o", "%D") == "2\n")


def test_a_job_that_is_preempted_goes_on(
    cluster: Path, tmp_path: Path, expected: list[Run]
) -> None:
    """SIGUSR2 announces the end of the time, and SIGTERM comes when Slurm requeues a job."""
    sweep = tmp_path / "sweep"
    command = ClusterCommand(sweep, *SLURM)
    workers = command.workers()
    reached = command.epochs()
    jobs = ask("squeue", "-h", "-r", "-o", "%i").split()
    subprocess.run(["scancel", "--signal=USR2", jobs[0]], check=True)
    subprocess.run(["scontrol", "requeue", jobs[1]], check=True)
    until(lambda: not any(map(lived, workers)))
    start_at_once(2)
    assert command.wait() == 0, command.log.read_text()
    assert len(gone_on_from(sweep)) == 4
    assert min(gone_on_from(sweep)) >= min(reached)
    require_same(sweep, expected)


def test_a_cancelled_sweep_is_resumed_elsewhere(
    cluster: Path, tmp_path: Path, expected: list[Run]
) -> None:
    sweep = tmp_path / "sweep"
    command = ClusterCommand(sweep, *SLURM)
    workers = command.workers()
    subprocess.run(["scancel", *ask("squeue", "-h", "-o", "%A").split()], check=True)
    assert command.wait() == 143
    assert re.search(
        r"cancelled; to go on, type\n  python -m src.train resume=", command.log.read_text()
    )
    assert not any(map(lived, workers))
    assert {Run(sweep / str(n)).result["status"] for n in range(4)} == {"interrupted"}
    command.resume("hydra.launcher.executor=null")
    assert command.wait() == 0, command.log.read_text()
    require_same(sweep, expected)


def test_ctrl_c_leaves_the_jobs_alone(cluster: Path, tmp_path: Path) -> None:
    command = ClusterCommand(tmp_path / "sweep", *SLURM)
    workers = command.workers(1)
    command.process.send_signal(signal.SIGINT)
    assert command.wait() == 130
    told = command.log.read_text()
    assert "the jobs go on without this process; to come back, type\n" in told
    assert all(map(lived, workers))
    cancel = re.search(r"(scancel \d+)\n", told)
    assert cancel
    ask(*cancel[1].split())
    until(lambda: ask("squeue", "-h") == "")


def test_other_code_is_refused(cluster: Path, tmp_path: Path) -> None:
    """The job imports a copy of the package that says another commit."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import os\n"
        "if 'SLURM_JOB_ID' in os.environ:\n"
        "    import kindling.system.machine\n"
        "    kindling.system.machine.commit = lambda: 'elsewhere'\n"
    )
    setup = f"hydra.launcher.setup=['export PYTHONPATH={site}:{PYTHONPATH}']"
    done = run_command(
        tmp_path, "src.train", "-m", "hydra/launcher=fused", *SMALL, "seed=0,1",
        "hydra.launcher.executor=slurm", setup, "hydra.sweep.dir=sweep",
    )  # fmt: skip
    assert done.returncode == 1
    assert re.search(
        r"trial 0 failed: InputError: \S+ has commit elsewhere instead of", done.stdout
    )
    unread = run_command(tmp_path, "src.train", "resume=sweep")
    assert unread.returncode == 2
    assert "its record has hydra.launcher.setup=" in unread.stderr
    again = run_command(tmp_path, "src.train", "resume=sweep", "hydra.launcher.setup=null")
    assert again.returncode == 0, again.stdout + again.stderr


@pytest.mark.parametrize("devices", ["trainer.devices=2", "trainer.num_nodes=2"])
def test_a_group_of_two_ranks(devices: str, cluster: Path, tmp_path: Path) -> None:
    """On one node the run starts its ranks; on two nodes srun does."""
    common: tuple[str, ...] = (
        "data=digits", "trainer=ddp", "trainer.accelerator=cpu", "trainer.max_epochs=3", "seed=3",
    )  # fmt: skip
    # The two nodes have names that only Slurm knows.
    setup = "hydra.launcher.setup=['export MASTER_ADDR=127.0.0.1']"
    one: list[str] = []
    if devices == "trainer.num_nodes=2":  # two machines share no memory
        one, common = ["trainer.devices=1"], (*common, "trainer.step=closed_form")
    there = run_command(
        tmp_path, "src.train", "-m", "hydra/launcher=fused", *common, *one, devices,
        "hydra.launcher.executor=slurm", setup, "hydra.sweep.dir=there",
    )  # fmt: skip
    assert there.returncode == 0, there.stdout + there.stderr
    here = run_command(tmp_path, "src.train", *common, "trainer.devices=2", "hydra.run.dir=here")
    assert here.returncode == 0, here.stderr
    trained = Run(tmp_path / "there" / "0")
    assert trained.result["ranks"] == 2
    assert same(trained, Run(tmp_path / "here"))


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("partition=nowhere", "partition=nowhere: the cluster has no such partition, but main; "),
        ("memory=90000", "Slurm refuses the jobs: sbatch: error: Batch job submission failed: "),
    ],
)
def test_what_slurm_refuses_is_told(key: str, told: str, cluster: Path, tmp_path: Path) -> None:
    done = run_command(
        tmp_path, "src.train", "-m", "hydra/launcher=fused", *SMALL, "seed=0,1",
        "hydra.launcher.executor=slurm", f"hydra.launcher.{key}", "hydra.sweep.dir=sweep",
    )  # fmt: skip
    assert done.returncode == 2
    assert told in done.stderr.splitlines()[-1]
    assert "go on by resume=FOLDER" in done.stderr
    name = key.partition("=")[0]
    again = run_command(tmp_path, "src.train", "resume=sweep", f"hydra.launcher.{name}=null")
    assert again.returncode == 0, again.stderr


def enter(cluster: Path, node: str) -> list[str]:
    """A command before this one runs on a node, which mounts file systems for itself."""
    process = (cluster / "run" / f"slurmd-{node}.pid").read_text().strip()
    return ["nsenter", "-t", process, "-m"]


def fill(folder: Path) -> Path:
    """Leaves no byte free on the disk of a folder."""
    filler = folder / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return filler


@needs_mounts
def test_nodes_that_do_not_see_the_folder(cluster: Path, tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    command = ClusterCommand(sweep, *SLURM, "hydra.launcher.wait=false", "trainer.max_epochs=2")
    nodes = [enter(cluster, node) for node in ("n1", "n2")]
    for within in nodes:
        mount(tmp_path, "1m", *within)
    try:
        assert command.wait() == 0
        command.resume()
        assert command.wait() == 1
    finally:
        for within in nodes:
            unmount(tmp_path, *within)
    told = command.log.read_text()
    assert "if there is none, the machines of the cluster do not see the folder" in told
    assert {Run(sweep / str(n)).result["status"] for n in range(4)} == {"failed"}
    command.resume()
    assert command.wait() == 0, command.log.read_text()


@needs_mounts
def test_a_disk_that_is_full(cluster: Path, tmp_path: Path, expected: list[Run]) -> None:
    sweep = tmp_path / "sweep"
    sweep.symlink_to(cluster / "disk", target_is_directory=True)
    command = ClusterCommand(sweep, *SLURM)
    workers = command.workers()
    filler = fill(sweep)
    assert command.wait() in (1, 2)
    told = command.log.read_text()
    assert "No space left on device" in told
    assert "Traceback" not in told
    until(lambda: not any(map(lived, workers)))
    filler.unlink()
    command.resume()
    assert command.wait() == 0, command.log.read_text()
    require_same(sweep, expected)


@needs_mounts
def test_a_node_whose_own_disk_is_full(cluster: Path, tmp_path: Path, expected: list[Run]) -> None:
    """Training needs the disk of the sweep alone."""
    sweep, own, within = tmp_path / "sweep", tmp_path / "own", enter(cluster, "n2")
    mount(own, "4k", *within)
    try:
        setup = f"hydra.launcher.setup=['export TMPDIR={own}','head -c 9999 /dev/zero > {own}/x']"
        command = ClusterCommand(sweep, *SLURM, setup)
        assert command.wait() == 0, command.log.read_text()
    finally:
        unmount(own, *within)
    require_same(sweep, expected)


def test_the_size_of_the_cluster(cluster: Path) -> None:
    configs = [compose(*SMALL)]
    assert slurm.Slurm(launcher(executor="slurm"), configs).slots == 2
    assert slurm.Slurm(launcher(executor="slurm", slots=5), configs).slots == 5
    with pytest.raises(InputError, match="nowhere"):
        slurm.Slurm(launcher(executor="slurm", partition="nowhere"), configs)
