"""Trains groups as actors of a Ray cluster."""

import logging
import pickle
import shlex
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from kindling.config.schema import Config, Execution, Search
from kindling.records.groups import State
from kindling.sweeps.executors import ray_actors
from kindling.sweeps.executors.cluster import GB, REMEDY, Cluster
from kindling.sweeps.executors.ray_actors import ActorStatus, Order
from kindling.sweeps.executors.ray_driver import Driver, prefix_of
from kindling.sweeps.tasks import GroupTask, Parcel
from kindling.system.errors import InputError, Interrupted
from kindling.system.files import require_contained
from kindling.system.installation import as_command
from kindling.system.resources import cpu_count
from kindling.training.result import shown

log = logging.getLogger(__name__)


class Ray(Cluster):
    """Without an address, Ray starts with the command and ends with it."""

    name = "Ray"

    def __init__(self, execution: Execution, configs: Sequence[Config]) -> None:
        """Raises InputError when the cluster does not answer, or when the Ray of this command has
        no place for a group."""
        self.address, self.cpus = execution.ray_address, execution.cpus or 1
        places = execution.slots or max(1, cpu_count() // self.cpus)
        self.driver = Driver(self.address, places * self.cpus)
        self.nodes = self.driver.call(ray_actors.nodes)
        self.known: dict[str, ActorStatus] = {}
        super().__init__(execution, configs)
        gpus = max(map(self.gpus, configs), default=0)
        if not self._places(gpus):
            self._without_a_place(gpus)

    def capacity(self, gpus: int) -> int:
        return max(1, self._places(gpus))

    def run(self, tasks: Sequence[GroupTask]) -> None:
        try:
            super().run(tasks)
        except Interrupted as interrupted:
            if self.address is not None:
                raise
            self.driver.close()
            told = f"stopped; to go on, type\n  {self.resume_command(tasks[0].sweep)}"
            raise Interrupted(interrupted.number, told) from None

    def submit(self, tasks: Sequence[GroupTask], gpus: int) -> list[str]:
        logs = tasks[0].jobs_folder
        require_contained(logs)
        logs.mkdir(parents=True, exist_ok=True)
        orders = [
            Order(
                name=f"{prefix_of(task.sweep)}-{task.state_folder.name}",
                log=logs / f"{task.state_folder.name}.log",
                parcel=zlib.compress(pickle.dumps(Parcel.of(task))),
                cpus=self.cpus,
                gpus=gpus,
                memory=self.execution.memory,
            )
            for task in tasks
        ]
        self.driver.call(ray_actors.submit, orders, seconds=60 + len(orders))
        return [order.name for order in orders]

    def states(self) -> Mapping[str, State]:
        self.known = {each.name: each for each in self.driver.call(ray_actors.known)}
        return {name: each.state for name, each in self.known.items() if each.state != "ended"}

    def cancel_command(self, sweep: Path, jobs: Sequence[str]) -> str:  # noqa: ARG002
        given = self.execution.address
        address = [f"--address={given}"] if given else []
        return f"{as_command('cancel')} {shlex.join([str(shown(sweep)), *address])}"

    def resume_command(self, sweep: Path) -> str:
        """With the address, which is not taken from a folder that may come from a stranger."""
        given = self.execution.address
        section = "search" if isinstance(self.execution, Search) else "hydra.launcher"
        return super().resume_command(sweep) + (f" {section}.address={given}" if given else "")

    def remedy(self, job: str) -> str:
        cause = self.known[job].cause if job in self.known else ""
        return f"Ray says: {' '.join(cause.split())[:500]}; {REMEDY}" if cause else REMEDY

    def _places(self, gpus: int) -> int:
        needed = {"CPU": self.cpus, "GPU": gpus, "memory": (self.execution.memory or 0) * GB}
        return int(
            sum(
                min(node.get(name, 0) // count for name, count in needed.items() if count)
                for node in self.nodes
            )
        )

    def _without_a_place(self, gpus: int) -> None:
        needed = f"{self.cpus} cores, {gpus} GPUs and {self.execution.memory or 0} GB"
        nodes = [
            f"{node.get('CPU', 0):g} cores, {node.get('GPU', 0):g} GPUs and "
            f"{node.get('memory', 0) / GB:.0f} GB"
            for node in self.nodes
        ]
        there = "; ".join(dict.fromkeys(nodes)) or "nothing"
        fault = f"a group needs {needed}, and no node of Ray has so much, only {there}"
        if self.address is None:
            raise InputError(f"{fault}; type a smaller gpus, cpus or memory")
        log.warning("%s; the groups wait until such a node joins the cluster", fault)
