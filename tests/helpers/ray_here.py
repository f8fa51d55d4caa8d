"""A process that Ray starts for a group, without a cluster: only Ray's package is needed."""

import pickle
import zlib
from pathlib import Path

from kindling.config.compose import compose
from kindling.sweeps.executors import ray_actors
from kindling.sweeps.executors.ray_actors import GroupActor
from kindling.sweeps.tasks import GroupTask, Parcel
from tests.helpers.commands import SMALL


def actor_of(sweep: Path) -> GroupActor:
    """With a group of one trial, whose log lies in the folder of the sweep."""
    config, folder = compose(*SMALL), sweep / "0"
    folder.mkdir(exist_ok=True)
    task = GroupTask(sweep, (0,), (config,), (folder,), sweep / ".stacks" / "state")
    actor = GroupActor.__new__(GroupActor)
    actor.log, actor.cpus = sweep / "log", 3
    actor.packed = tuple(ray_actors.chunks(zlib.compress(pickle.dumps(Parcel.of(task)))))
    return actor


def train() -> None:
    """Trains in this folder, as one actor, each time in a new process."""
    ray_actors.own_id, ray_actors.leave = lambda: "actor", lambda: None
    actor_of(Path.cwd()).train()
