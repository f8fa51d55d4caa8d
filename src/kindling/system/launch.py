"""Which of the launched processes this one is, read from the environment of the launcher."""

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class LaunchInfo:
    """This process's rank, the number of all ranks, and the number of ranks on each node.

    `launched_by` is "torchrun", also for ranks that a run started, "srun", or None for one process.
    """

    rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    launched_by: str | None = None


def launch_info() -> LaunchInfo:
    """Reads the variables of torch's elastic launcher and of Slurm."""
    env = os.environ
    if "TORCHELASTIC_RUN_ID" in env:
        sizes = int(env["WORLD_SIZE"]), int(env["LOCAL_WORLD_SIZE"])
        return LaunchInfo(int(env["RANK"]), *sizes, "torchrun")
    # A shell within an allocation has Slurm's variables too. Only a step of srun has a step number.
    interactive = env.get("SLURM_JOB_NAME") in ("bash", "interactive")
    world_size = int(env.get("SLURM_NTASKS", 1))
    if world_size > 1 and "SLURM_STEP_ID" in env and not interactive:
        nodes = int(env.get("SLURM_NNODES", 1))
        return LaunchInfo(int(env["SLURM_PROCID"]), world_size, world_size // nodes, "srun")
    return LaunchInfo()
