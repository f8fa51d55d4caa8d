"""Kills runs at random instants, resumes them, and compares them with an undisturbed run.

python -m src.torture --kills 200
"""

import json
import sys
from pathlib import Path

from src.system.process import command_parser, importing, run

DEFAULT = ("single", "sweep", "halving", "ranks")
NAMES = (*DEFAULT, "local", "slurm", "ray")


def main() -> None:
    parser = command_parser("torture", __doc__)
    parser.add_argument("--kills", type=int, default=20, help="kills in all (default: 20)")
    parser.add_argument(
        "--scenario",
        choices=NAMES,
        action="append",
        help="only this scenario; repeatable; slurm and ray need a cluster, and address=HOST:PORT",
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed of the instants")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the runs there")
    parser.add_argument("overrides", nargs="*", help="KEY=VALUE for every run")
    chosen = parser.parse_args()
    if chosen.kills < 1:
        parser.error(f"argument --kills: {chosen.kills} is less than 1")
    if chosen.keep is not None and chosen.keep.exists():
        parser.error(f"argument --keep: {chosen.keep} exists already")
    with importing():
        from src.benchmarks.crashes import describe, torture
    tallies = torture(
        chosen.kills, chosen.scenario or DEFAULT,
        seed=chosen.seed, overrides=chosen.overrides, keep=chosen.keep,
    )  # fmt: skip
    print(describe(tallies))
    print(json.dumps([tally.to_primitives() for tally in tallies]))
    if any(tally.identical < tally.runs for tally in tallies):
        print(
            "error: a resumed run differs from the undisturbed one; see `different`",
            file=sys.stderr,
        )
        raise SystemExit(1)


if __name__ == "__main__":
    run(main)
