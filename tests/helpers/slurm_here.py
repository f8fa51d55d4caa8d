"""Training with `hydra.launcher.executor=slurm`, but without Slurm: this machine runs the jobs."""

import os
import sys
import tempfile
from pathlib import Path

from kindling.commands.train import main
from kindling.sweeps.executors import cluster
from kindling.system.process import run

SCRIPT = Path(__file__).parents[1] / "clusters" / "slurm_here.sh"
COMMANDS = ("sbatch", "scontrol", "sinfo", "squeue", "srun")


def train() -> None:
    """`python -m src.train` with the arguments of this process."""
    with tempfile.TemporaryDirectory() as place:
        for name in COMMANDS:
            (Path(place) / name).symlink_to(SCRIPT)
        queue = Path(place) / "queue"
        queue.mkdir()
        os.environ |= {"PATH": f"{place}:{os.environ['PATH']}", "QUEUE": str(queue)}
        cluster.POLL_SECONDS = 0.1
        sys.argv[0] = "src.train"
        run(main, plain=True)
