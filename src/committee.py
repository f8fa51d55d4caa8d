# PYTHON_ARGCOMPLETE_OK
"""Makes a committee: one model that averages the probabilities of several trained models.

python -m src.committee SWEEP --best 10        the ten best finished trials of a sweep
python -m src.committee SWEEP --greedy         those trials whose mean is best
python -m src.committee RUN RUN ...            these runs
python -m src.committee SWEEP --best 10 --by val/loss --folder FOLDER

Members are chosen on the validation set alone. The result is a run folder, SWEEP/committee or
runs/DATE/TIME, that evaluate, predict, demo, export and report take as any other.
"""

from pathlib import Path

from src.system.arguments import command_parser, completed_by
from src.system.process import importing, run
from src.system.signals import handled


def main() -> None:
    from src.inference.members import METRICS, MOST_PICKS, PICKS, read_request
    from src.runs.folder import MOST_MEMBERS
    from src.runs.lookup import COMBINED, FINISHED, find, typed_folders

    parser = command_parser("committee", __doc__)
    completed_by(
        parser.add_argument("paths", nargs="+", metavar="PATH", help="a sweep, or runs"),
        typed_folders,
    )
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument(
        "--best", type=int, metavar="N",
        help=f"the N best, with equal weights; 2 to {MOST_MEMBERS}",
    )  # fmt: skip
    choice.add_argument(
        "--greedy", type=int, nargs="?", const=PICKS, metavar="N",
        help=f"N greedy picks with replacement; 2 to {MOST_PICKS:,}, default: {PICKS}",
    )  # fmt: skip
    parser.add_argument(
        "--by", choices=METRICS, help="how to choose; default: what the runs monitored"
    )
    parser.add_argument(
        "--folder", type=Path, metavar="FOLDER",
        help="of the committee; default: SWEEP/committee, or runs/DATE/TIME",
    )  # fmt: skip
    arguments = parser.parse_args()
    use = COMBINED if len(arguments.paths) == 1 else FINISHED
    paths = [find(text, use) for text in arguments.paths]
    request = read_request(paths, arguments.best, arguments.greedy, arguments.by, arguments.folder)
    with handled(rank=False):
        with importing():
            from src.inference.committee_run import make_committee, summary

        print(summary(make_committee(request)))


if __name__ == "__main__":
    run(main)
