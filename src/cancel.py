# PYTHON_ARGCOMPLETE_OK
"""Cancels the groups of a sweep that are queued or train on a Ray cluster.

python -m src.cancel FOLDER [--address=HOST:PORT]

Groups that train write a checkpoint first. To continue the sweep, type
python -m src.train resume=FOLDER. Jobs of Slurm are cancelled by scancel.
"""

import os

from src.system.arguments import command_parser, completed_by
from src.system.errors import InputError
from src.system.extras import missing
from src.system.process import run


def main() -> None:
    from src.runs.lookup import NEWEST_SWEEP, finder, typed_folders

    parser = command_parser("cancel", __doc__)
    completed_by(
        parser.add_argument(
            "folder", type=finder(NEWEST_SWEEP), metavar="FOLDER", help="of a sweep or search"
        ),
        typed_folders,
    )
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        default=os.environ.get("RAY_ADDRESS"),
        help="of the cluster; default: RAY_ADDRESS",
    )
    arguments = parser.parse_args()
    for fault in missing("python -m src.cancel", "ray", ("ray",)):
        raise InputError(fault)
    from src.sweeps.executors.ray_driver import cancel

    count = cancel(arguments.folder, arguments.address)
    print(f"{count} {'groups' if count > 1 else 'group'} cancelled")


if __name__ == "__main__":
    run(main)
