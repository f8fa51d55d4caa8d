"""Cancels the groups of a sweep that are queued or train on a Ray cluster.

python -m src.cancel FOLDER [--address=HOST:PORT]

Groups that train write a checkpoint first. To continue the sweep, type
python -m src.train resume=FOLDER. Jobs of Slurm are cancelled by scancel.
"""

import os

from src.runs.lookup import finder
from src.system.errors import InputError
from src.system.extras import missing
from src.system.process import command_parser, run


def main() -> None:
    parser = command_parser("cancel", __doc__)
    parser.add_argument("folder", type=finder("sweep", "search"), help="of a sweep or search")
    parser.add_argument(
        "--address", default=os.environ.get("RAY_ADDRESS"), help="of the cluster; or RAY_ADDRESS"
    )
    arguments = parser.parse_args()
    for fault in missing("python -m src.cancel", "ray", ("ray",)):
        raise InputError(fault)
    from src.sweeps.executors.ray_driver import cancel

    count = cancel(arguments.folder, arguments.address)
    print(f"{count} {'groups' if count > 1 else 'group'} cancelled")


if __name__ == "__main__":
    run(main)
