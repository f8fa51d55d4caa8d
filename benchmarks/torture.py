"""Kills runs at random instants, resumes them, and compares them with an undisturbed run.

python -m src.torture --kills 200
"""

import json
import os
from pathlib import Path

from kindling.system.arguments import command_parser
from kindling.system.colour import tell_error
from kindling.system.errors import InputError
from kindling.system.process import importing
from kindling.system.warm import SWITCH

DEFAULT = ("single", "sweep", "halving", "ranks")
NAMES = (*DEFAULT, "local", "slurm", "ray")


def main() -> None:
    os.environ[SWITCH] = "off"  # the commands that are measured and killed start for themselves
    parser = command_parser("torture", __doc__)
    parser.add_argument(
        "--kills", type=int, default=20, metavar="N", help="in all; 1 or more, default: 20"
    )
    parser.add_argument(
        "--scenario",
        choices=NAMES,
        action="append",
        help="only this; repeatable; slurm and ray need a cluster, and address=HOST:PORT; default: "
        "the first four",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of the random instants; default: 0"
    )
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="keep the runs there; default: remove them"
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="for every run")
    chosen = parser.parse_args()
    if chosen.kills < 1:
        raise InputError(f"--kills {chosen.kills}: must be 1 or more")
    if chosen.keep is not None and chosen.keep.exists():
        raise InputError(f"--keep {chosen.keep}: exists already; name another folder")
    with importing():
        from benchmarks.crashes import describe_tallies, torture
    tallies = torture(
        chosen.kills, chosen.scenario or DEFAULT,
        seed=chosen.seed, overrides=chosen.overrides, keep=chosen.keep,
    )  # fmt: skip
    print(describe_tallies(tallies))
    print(json.dumps([tally.to_primitives() for tally in tallies]))
    if any(tally.identical < tally.runs for tally in tallies):
        tell_error("a resumed run differs from the undisturbed one; see `different`")
        raise SystemExit(1)
