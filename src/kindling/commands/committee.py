"""Makes a committee: one model that averages the probabilities of several trained models.

python -m src.committee SWEEP --best 10        the ten best finished trials of a sweep
python -m src.committee SWEEP --greedy         those trials whose mean is best
python -m src.committee RUN RUN ...            these runs
python -m src.committee SWEEP --best 10 --by val/loss --folder FOLDER

Of a sweep over folds, a setting is chosen with all of its folds; of one setting, SWEEP suffices.
Members are chosen on the validation set alone. The result is a run folder, SWEEP/committee or
runs/DATE/TIME, that evaluate, predict, demo, export and report take as any other.
"""

from pathlib import Path

from kindling.system.arguments import command_parser
from kindling.system.process import importing
from kindling.system.signals import handled


def main() -> None:
    from kindling.inference.committees.members import METRICS, MOST_PICKS, PICKS, read_request
    from kindling.records.folder import MOST_MEMBERS
    from kindling.records.lookup import COMBINED, FINISHED, find, typed_folders

    parser = command_parser("committee", __doc__)
    parser.value("paths", "PATH", "a sweep, or runs", nargs="+", completer=typed_folders)
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument(
        "--best", type=int, metavar="N",
        help=f"the N best, with equal weights; 2 to {MOST_MEMBERS}, of folds 1 or more settings",
    )  # fmt: skip
    choice.add_argument(
        "--greedy", type=int, nargs="?", const=PICKS, metavar="N",
        help=f"N greedy picks with replacement; 2 to {MOST_PICKS:,}, default: {PICKS}",
    )  # fmt: skip
    parser.value(
        "--start", "N", "of --greedy: the N best are picked first, and stay; default: 0", type=int,
        default=0,
    )  # fmt: skip
    parser.add_argument(
        "--by", choices=METRICS, help="how to choose; default: what the runs monitored"
    )
    parser.value(
        "--folder", "FOLDER", "of the committee; default: SWEEP/committee, or runs/DATE/TIME",
        type=Path,
    )  # fmt: skip
    arguments = parser.parse_args()
    use = COMBINED if len(arguments.paths) == 1 else FINISHED
    paths = [find(text, use) for text in arguments.paths]
    request = read_request(
        paths, arguments.best, arguments.greedy, arguments.by, arguments.folder,
        start=arguments.start,
    )  # fmt: skip
    with handled(rank=False):
        with importing():
            from kindling.inference.committees.making import make_committee, summary

        print(summary(make_committee(request)))
