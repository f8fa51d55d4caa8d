"""Trains the best settings of a sweep again with fresh seeds, and estimates how good they are.

python -m src.confirm SWEEP --top 3 --seeds 20    SWEEP: the folder of a sweep or a search
python -m src.confirm SWEEP --json                for other programs
python -m src.confirm SWEEP/confirm               continues a confirmation

If the sweep is cross-validated, the seeds take turns on the folds. The same command continues a
confirmation that was stopped. The folder of the confirmation gets the files confirm.json and
confirm.png.
"""

import logging
import sys
from pathlib import Path

from src.runs.lookup import finder
from src.sweeps.confirm_command import check_command_line
from src.system.process import command_parser, import_for_ranks, importing, run
from src.system.signals import handled


def main() -> None:
    parser = command_parser("confirm", __doc__)
    parser.add_argument(
        "sweep",
        type=finder("sweep", "search"),
        help="of a sweep, a search or a confirmation",
    )
    parser.add_argument("--top", type=int, metavar="N", help="so many settings; default: 3")
    seeds = "so many seeds each; default: 20, or one for each fold if there are more folds"
    parser.add_argument("--seeds", type=int, metavar="K", help=seeds)
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="default: SWEEP/confirm")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    with handled(rank=False):
        command = check_command_line(given.sweep, given.top, given.seeds, given.output)
        if any(c.config.trainer.devices not in (1, "auto") for c in command.record.settings):
            import_for_ranks()
        logged = sys.stderr if given.json else sys.stdout
        logging.basicConfig(format="%(message)s", stream=logged, level=logging.INFO)
        with importing():
            from src.sweeps.confirm_loop import confirm, show

        found = confirm(command)
    show(found, as_json=given.json)


if __name__ == "__main__":
    run(main)
