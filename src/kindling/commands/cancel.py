"""Cancels the groups of a sweep that are queued or train on a Ray cluster.

python -m src.cancel FOLDER [--address=HOST:PORT]

Groups that train write a checkpoint first. To continue the sweep, type
python -m src.train resume=FOLDER. Jobs of Slurm are cancelled by scancel.
"""

import os

from kindling.system.arguments import command_parser
from kindling.system.errors import InputError
from kindling.system.extras import missing
from kindling.system.installation import as_command


def main() -> None:
    from kindling.records.lookup import NEWEST_SWEEP, finder, typed_folders

    parser = command_parser("cancel", __doc__)
    parser.value(
        "folder", "FOLDER", "of a sweep or search", type=finder(NEWEST_SWEEP),
        completer=typed_folders,
    )  # fmt: skip
    parser.value(
        "--address", "HOST:PORT", "of the cluster; default: RAY_ADDRESS",
        default=os.environ.get("RAY_ADDRESS"),
    )  # fmt: skip
    arguments = parser.parse_args()
    for fault in missing(as_command("cancel"), "ray", ("ray",)):
        raise InputError(fault)
    from kindling.sweeps.executors.ray_driver import cancel

    count = cancel(arguments.folder, arguments.address)
    print(f"{count} {'groups' if count > 1 else 'group'} cancelled")
