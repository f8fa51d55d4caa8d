"""Whether this machine has what a configuration needs. torch is imported only to look for a GPU."""

from contextvars import ContextVar
from typing import Any

from kindling.config.faults import DETACHED, find_faults
from kindling.config.schema import Config
from kindling.data.paths import path_faults
from kindling.native.engine import why_absent
from kindling.records.lookup import MODEL, checkpoint_of, find
from kindling.system.errors import InputError
from kindling.system.extras import missing_loggers
from kindling.system.launch import launch_info
from kindling.system.process import importing

from_python = ContextVar("from_python", default=False)  # True: a program has given what it holds


def find_all_faults(point: dict[str, Any]) -> tuple[Config | None, list[str]]:
    """As find_faults, and a fault for each absent package and each absent file of data."""
    config, faults = find_faults(point)
    if config is not None:
        faults += missing_loggers(config.logger.chosen)
        if config.start_from is not None and config.resume is None:  # a resumed run needs no start
            try:
                checkpoint_of(find(config.start_from, MODEL))
            except InputError as error:
                faults.append(f"start_from={config.start_from}: {error}")
        faults += [] if from_python.get() else config.only_from_python
        if config.trainer.step == "native" and (reason := why_absent()):
            faults.append(f"trainer.step=native: {reason}; or type trainer.step=auto")
    section = point.get("data")
    if isinstance(section, dict):
        faults += path_faults(section)
    return config, faults


def require_machine(config: Config, executor: str | None = None) -> None:
    """Raises InputError when the launched ranks or the accelerator do not match a configuration.
    With the executor of a cluster, other machines have the devices."""
    trainer, started = config.trainer, launch_info()
    if executor == "slurm":  # starts a job with so many nodes
        return
    if started.launched_by is None and trainer.num_nodes > 1:
        raise InputError(
            f"trainer.num_nodes={trainer.num_nodes}: every node starts its own processes; type "
            f"torchrun --nnodes={trainer.num_nodes} --nproc-per-node={trainer.devices} ... "
            "-m src.train ... on each of them, or srun"
        )
    if started.launched_by is not None:
        local = started.local_world_size
        nodes = started.world_size // local
        devices = local if trainer.devices == "auto" else trainer.devices
        if (devices, trainer.num_nodes, trainer.max_restarts) != (local, nodes, 0):
            raise InputError(
                f"trainer.devices={trainer.devices} trainer.num_nodes={trainer.num_nodes} "
                f"trainer.max_restarts={trainer.max_restarts}: {started.launched_by} has started "
                f"{local} process(es) on each of {nodes} node(s), and restarts "
                f"them itself; type trainer.devices={local} "
                f"trainer.num_nodes={nodes} trainer.strategy=ddp"
            )
    if trainer.accelerator in ("cuda", "mps") and executor not in DETACHED:
        with importing():
            from kindling.system.machine import resolve

        resolve(trainer)
