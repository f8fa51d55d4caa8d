"""Sweeps on a Ray cluster of two nodes, killed in every way, have the bits of this machine."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kindling.config.compose import compose
from kindling.config.faults import find_launcher_faults
from kindling.records.folder import Run
from kindling.sweeps.tasks import Parcel
from kindling.system.errors import InputError, Interrupted
from tests.helpers.commands import ROOT, SMALL, run_command
from tests.helpers.steps import needs_engine
from tests.helpers.sweeps import ClusterCommand, lived, require_same, trained_here, until
from tests.sweeps.executors.test_keys import launcher

pytest.importorskip("ray", reason='needs ray: pip install -e ".[ray]"')
from kindling.sweeps.executors import ray_actors, ray_driver
from kindling.sweeps.executors.ray import Ray
from kindling.sweeps.executors.ray_actors import ActorStatus, GroupActor, Order
from kindling.sweeps.executors.ray_driver import Driver, prefix_of
from tests.helpers.ray_here import actor_of

SCRIPT = ROOT / "tests" / "clusters" / "ray.sh"
RAY = ("hydra.launcher.executor=ray", "checkpoint.every_n_epochs=1")
KEYS = ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH")

pytestmark = [pytest.mark.slow, needs_engine]


class TwoNodes:
    def __init__(self, state: Path) -> None:
        self.state = state

    def do(self, verb: str) -> str:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            [SCRIPT, verb, self.state], stdout=subprocess.PIPE, text=True, check=True,
            timeout=120, env={**os.environ, "PATH": path},
        )  # fmt: skip
        return done.stdout.strip()

    def processes(self) -> set[int]:
        """All processes of both nodes."""
        sessions = {int(file.read_text()) for file in self.state.glob("*.pid")}
        found = set()
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if os.getsid(int(entry.name)) in sessions and lived(int(entry.name)):
                    found.add(int(entry.name))
            except OSError:
                continue
        return found

    def session_of(self, node: str) -> int:
        return int((self.state / f"{node}.pid").read_text())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNodes]:
    state = tmp_path_factory.mktemp("ray")
    nodes = TwoNodes(state)
    before = {key: os.environ.get(key) for key in KEYS}
    try:
        address = nodes.do("up")
        os.environ |= dict(zip(KEYS, (address, "token", str(state / "token")), strict=True))
        yield nodes
        driver = Driver(address)
        try:
            assert {each.state for each in driver.call(ray_actors.known)} <= {"ended", "cancelled"}
        finally:
            driver.close()
    finally:
        nodes.do("down")
        for key, value in before.items():
            os.environ.pop(key, None)
            if value is not None:
                os.environ[key] = value
    until(lambda: not nodes.processes())  # a killed process takes a moment to give its memory back


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    return trained_here(tmp_path_factory.mktemp("expected"))


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the address of a cluster."""
    for key in KEYS:
        monkeypatch.delenv(key, raising=False)


def ended(folder: Path) -> bool:
    return all(Run(folder / str(trial)).ended for trial in range(4))


def gone_on_from(folder: Path) -> list[int]:
    """The epochs from which trials went on, by their logs."""
    logs = [folder / str(trial) / "train.log" for trial in range(4)]
    told = "".join(log.read_text() for log in logs if log.exists())
    return [int(number) for number in re.findall(r"going on from epoch (\d+)", told)]


def holders(folder: Path) -> list[int]:
    """The processes that train groups of the sweep."""
    found = []
    for lock in folder.glob(".stacks/*/.lock"):
        match = re.match(r"process (\d+) of", lock.read_text())
        found += [int(match[1])] if match and lived(int(match[1])) else []
    return found


def test_submit_leave_and_come_back(cluster: TwoNodes, tmp_path: Path, expected: list[Run]) -> None:
    """Four groups on two nodes. The folder is complete before anybody comes back."""
    sweep = tmp_path / "sweep"
    left = ClusterCommand(sweep, *RAY, "hydra.launcher.wait=false", "hydra.launcher.slots=4")
    assert left.wait() == 0
    told = left.log.read_text()
    assert "4 groups: 4 submitted to Ray, 0 submitted before" in told
    assert "to come back, type\n  python -m src.train resume=sweep" in told
    until(lambda: ended(sweep))
    left.resume()
    assert left.wait() == 0, left.log.read_text()
    assert gone_on_from(sweep) == []
    require_same(sweep, expected)


def test_without_the_command_a_killed_process_is_replaced(
    cluster: TwoNodes, tmp_path: Path, expected: list[Run]
) -> None:
    """SIGTERM, with which Ray stops a node, ends the process with a checkpoint, not the group."""
    sweep = tmp_path / "sweep"
    command = ClusterCommand(sweep, *RAY)
    first, second = command.workers()
    assert {first, second} < cluster.processes()
    command.process.kill()
    command.wait()
    os.kill(first, signal.SIGKILL)
    os.kill(second, signal.SIGTERM)
    reached = command.epochs()
    until(lambda: not any(map(lived, (first, second))))
    command.resume()
    until(lambda: "groups: " in command.log.read_text().partition("submitted before")[2])
    assert command.wait() == 0, command.log.read_text()
    assert re.findall(r"(\d) submitted to Ray", command.log.read_text()) == ["2", "0"]
    assert len(gone_on_from(sweep)) == 4
    assert min(gone_on_from(sweep)) >= min(reached) - 1
    require_same(sweep, expected)


def test_without_the_command_a_dead_node_is_replaced(
    cluster: TwoNodes, tmp_path: Path, expected: list[Run]
) -> None:
    """All processes of the node die at once, and no node is left for its group at first."""
    sweep = tmp_path / "sweep"
    command = ClusterCommand(sweep, *RAY)
    workers = command.workers()
    assert {os.getsid(each) for each in workers} == {
        cluster.session_of(node) for node in ("head", "node")
    }
    command.process.kill()
    command.wait()
    reached = command.epochs()
    cluster.do("node-kill")
    cluster.do("node-up")
    until(lambda: ended(sweep))
    command.resume()
    assert command.wait() == 0, command.log.read_text()
    assert len(gone_on_from(sweep)) == 2
    assert min(gone_on_from(sweep)) >= min(reached) - 1
    require_same(sweep, expected)


def test_a_cancelled_sweep_is_resumed(
    cluster: TwoNodes, tmp_path: Path, expected: list[Run]
) -> None:
    """Ctrl-C leaves the groups alone, and says how to cancel them, those that wait too."""
    sweep = tmp_path / "sweep"
    command = ClusterCommand(sweep, *RAY, "hydra.launcher.slots=4")
    until(lambda: sum(count > 3 for count in command.epochs()) == 2)
    command.process.send_signal(signal.SIGINT)
    assert command.wait() == 130
    told = command.log.read_text()
    assert "the jobs go on without this process" in told
    cancel = re.search(r"to cancel them, type\n  python -m (src.cancel .*)\n", told)
    assert cancel
    workers = holders(sweep)
    done = run_command(tmp_path, *shlex.split(cancel[1]))
    assert re.fullmatch(r"[234] groups cancelled\n", done.stdout), done.stderr
    assert not any(map(lived, workers))
    assert min(command.epochs()) < 50
    nothing = run_command(tmp_path, *shlex.split(cancel[1]))
    assert nothing.returncode == 2
    assert "has no group of this sweep" in nothing.stderr
    command.resume()
    assert command.wait() == 0, command.log.read_text()
    require_same(sweep, expected)


def test_ctrl_c_ends_a_ray_of_the_command(alone: None, tmp_path: Path, expected: list[Run]) -> None:
    """With checkpoints. Nothing is left running, whatever ends the command."""
    sweep = tmp_path / "sweep"
    command = ClusterCommand(sweep, *RAY, "hydra.launcher.slots=2")
    workers = command.workers()
    command.process.send_signal(signal.SIGINT)
    assert command.wait() == 130
    assert "SIGINT: stopped; to go on, type\n  python -m src.train resume=sweep" in (
        command.log.read_text()
    )
    until(lambda: not any(map(lived, workers)))
    assert {Run(sweep / str(n)).result.get("status") for n in range(4)} == {"interrupted"}
    command.resume()
    until(lambda: len(gone_on_from(sweep)) == 4)
    workers = holders(sweep)
    command.process.kill()
    until(lambda: not any(map(lived, workers)))
    command.wait()
    command.resume()
    assert command.wait() == 0, command.log.read_text()
    require_same(sweep, expected)


def test_what_a_cluster_knows(cluster: TwoNodes, tmp_path: Path) -> None:
    configs = [compose(*SMALL)]
    address = os.environ["RAY_ADDRESS"]
    executor = Ray(launcher(executor="ray", address=address), configs)
    assert executor.resume_command(Path("s")) == (
        f"python -m src.train resume=s hydra.launcher.address={address}"
    )
    assert executor.slots == 2
    assert sorted(node["CPU"] for node in executor.nodes) == [1, 1]
    name = f"{prefix_of(tmp_path)}-unseen"
    unseen = Order(name, tmp_path / "nowhere" / "log", b"", 1, 0, None)
    executor.driver.call(ray_actors.submit, [unseen])
    until(lambda: name in executor.states() or executor.known[name].state == "ended")
    until(lambda: executor.known[name].state == "ended" or not executor.states())
    assert name not in executor.states()
    assert f"does not see the folder {tmp_path}" in executor.remedy(name)
    executor.driver.close()


def test_a_group_that_no_node_can_hold_is_told(
    cluster: TwoNodes, caplog: pytest.LogCaptureFixture
) -> None:
    executor = Ray(launcher(executor="ray", gpus=2, memory=1), [compose(*SMALL)])
    assert "a group needs 1 cores, 2 GPUs and 1 GB, and no node of Ray has so much, only" in (
        caplog.text
    )
    assert "the groups wait until such a node joins the cluster" in caplog.text
    executor.driver.close()


def test_bad_addresses_are_told_in_a_line(
    cluster: TwoNodes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ray_driver, "ANSWER_SECONDS", 3)
    with pytest.raises(
        InputError, match=r"Ray at 127\.0\.0\.1:1 does not answer; check the address"
    ):
        Driver("127.0.0.1:1").call(ray_actors.nodes)
    with pytest.raises(InputError, match="name the cluster of Ray: type --address HOST:PORT"):
        ray_driver.cancel(tmp_path, None)


def test_a_process_that_has_lost_its_cluster_is_replaced(cluster: TwoNodes) -> None:
    driver = Driver(os.environ["RAY_ADDRESS"])
    assert len(driver.call(ray_actors.nodes)) >= 2
    assert driver.process is not None
    driver.process.kill()
    driver.process.join()
    with pytest.raises(InputError, match="does not answer"):
        driver.call(ray_actors.nodes)
    with pytest.raises(InputError, match=r"Ray at .*: invalid literal for int"):
        driver.call(int, "x")
    driver.close()


def test_too_much_for_a_ray_of_the_command(alone: None) -> None:
    with pytest.raises(InputError, match=r"needs 1 cores, 9 GPUs .* type a smaller gpus, cpus or"):
        Ray(launcher(executor="ray", gpus=9), [compose(*SMALL)])


def test_a_ray_of_the_command_cannot_be_left(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    values = launcher(executor="ray").model_dump() | {"wait": False}
    (fault,) = find_launcher_faults(values)[1]
    assert "Ray ends with this command; type hydra.launcher.address=HOST:PORT too" in fault
    monkeypatch.setenv("RAY_ADDRESS", "local")
    assert len(find_launcher_faults(values)[1]) == 1
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert find_launcher_faults(values)[1] == []
    monkeypatch.delenv("RAY_ADDRESS")
    assert find_launcher_faults(values | {"address": "10.0.0.1:6379"})[1] == []


# --- in this process, without Ray ----------------------------------------------------------------


class Ended(BaseException):
    """Of the process of an actor."""


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GroupActor:
    """An actor with a group of one trial."""

    def ends(status: int = 0) -> None:
        raise Ended(status)

    monkeypatch.setattr("os._exit", ends)
    monkeypatch.setattr(ray_actors, "leave", ends)
    monkeypatch.setattr(ray_actors, "own_id", lambda: "first")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return actor_of(tmp_path)


def test_an_actor_trains_with_its_cores_and_ends(group: GroupActor, tmp_path: Path) -> None:
    with pytest.raises(Ended, match="0"):
        group.train()
    assert Run(tmp_path / "0").result["status"] == "finished"
    assert os.environ["OMP_NUM_THREADS"] == "3"


@pytest.mark.parametrize(
    ("error", "status"),
    [(Interrupted(signal.SIGTERM), "143"), (Interrupted(ray_actors.CANCEL), "0"), (OSError(), "1")],
)
def test_only_a_cancelled_group_is_not_started_again(
    error: BaseException, status: str, group: GroupActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr(Parcel, "train", fail)
    with pytest.raises(Ended, match=status):
        group.train()


def test_a_group_that_is_always_killed_fails(
    group: GroupActor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def killed(_: object) -> None:
        raise OSError

    train = Parcel.train
    monkeypatch.setattr(Parcel, "train", killed)
    for _ in range(3):
        with pytest.raises(Ended, match="1"):
            group.train()
    with pytest.raises(Ended, match="0"):
        group.train()
    result = Run(tmp_path / "0").result
    assert result["status"] == "failed"
    assert "the process was killed 3 times in epoch 1" in result["error"]
    # A resume submits the group again. Its first process is killed before it notes its start.
    monkeypatch.setattr(ray_actors, "own_id", lambda: "second")
    monkeypatch.setattr(Parcel, "train", train)
    with pytest.raises(Ended, match="0"):
        group.train()
    assert Run(tmp_path / "0").result["status"] == "finished"

    assert (tmp_path / "log.starts").read_text() == "first 0\n" * 4 + "second 0\n"


def test_a_damaged_history_is_left_to_the_training(group: GroupActor, tmp_path: Path) -> None:
    """Without a checkpoint it is written anew; each start would fail while it counts the epochs."""
    run = Run(tmp_path / "0")
    run.history_file.write_text("epoch\0\n")
    with pytest.raises(Ended, match="0"):
        group.train()
    assert run.result["status"] == "finished"
    assert run.history[-1]["epoch"] == run.result["epochs"]


def test_a_large_parcel_is_sent_in_parts() -> None:
    data = os.urandom(150_000)
    parts = ray_actors.chunks(data)
    assert [len(part) for part in parts] == [65536, 65536, 18928]
    assert b"".join(parts) == data


def actor(name: str, state: str, end: int = 0, cause: str = "") -> dict[str, Any]:
    """An actor as in Ray's own table."""
    death = SimpleNamespace(
        WhichOneof=lambda _: "died" if cause else None, died=SimpleNamespace(error_message=cause)
    )
    where = {"Address": {"NodeID": "n"}, "Pid": 7}
    return {"Name": name, "State": state, "EndTime": end, "DeathCause": death, **where}


def test_the_last_actor_with_a_name_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        actor("a", "ALIVE"),
        actor("a", "DEAD", 9, "NODE_DIED"),
        actor("b", "DEAD", 8, "killed via ray.kill"),
        actor("b", "DEAD", 5, "out of memory"),
        actor("c", "RESTARTING"),
        actor("d", "DEPENDENCIES_UNREADY"),
        actor("e", "DEAD", 8, "out of memory"),
    ]
    monkeypatch.setattr(ray_actors, "list_actors", lambda: dict(enumerate(rows)))
    assert {each.name: each for each in ray_actors.known()} == {
        "a": ActorStatus("a", "running", "", "n", 7, False),
        "b": ActorStatus("b", "cancelled", "killed via ray.kill", "n", 7, False),
        "c": ActorStatus("c", "queued", "", "n", 7, False),
        "d": ActorStatus("d", "queued", "", "n", 7, True),
        "e": ActorStatus("e", "ended", "out of memory", "n", 7, False),
    }
