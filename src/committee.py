"""Makes a committee: one model that averages the probabilities of several trained models.

python -m src.committee SWEEP --best 10        the ten best finished trials of a sweep
python -m src.committee SWEEP --greedy         those trials whose mean is best
python -m src.committee RUN RUN ...            these runs
python -m src.committee SWEEP --best 10 --by val/loss --folder FOLDER

Members are chosen on the validation set alone. The result is a run folder, SWEEP/committee or
runs/DATE/TIME, that evaluate, predict, demo, export and report take as any other.
"""

from pathlib import Path

from src.inference.members import METRICS, PICKS, read_request
from src.runs.lookup import finder
from src.system.process import command_parser, importing, run
from src.system.signals import handled


def main() -> None:
    parser = command_parser("committee", __doc__)
    parser.add_argument("paths", type=finder(), nargs="+", metavar="PATH", help="a sweep, or runs")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--best", type=int, metavar="N", help="the N best, with equal weights")
    choice.add_argument(
        "--greedy", type=int, nargs="?", const=PICKS, metavar="N",
        help=f"N greedy picks with replacement; without N, {PICKS}",
    )  # fmt: skip
    parser.add_argument(
        "--by", choices=METRICS, help="how to choose; default: what the runs monitored"
    )
    parser.add_argument("--folder", type=Path, help="default: SWEEP/committee, or runs/DATE/TIME")
    arguments = parser.parse_args()
    request = read_request(
        arguments.paths, arguments.best, arguments.greedy, arguments.by, arguments.folder
    )
    with handled(rank=False):
        with importing():
            from src.inference.committee_run import make_committee, summary

        print(summary(make_committee(request)))


if __name__ == "__main__":
    run(main)
