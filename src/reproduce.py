# PYTHON_ARGCOMPLETE_OK
"""Repeats a run from its bundle, and compares results and environments.

python -m src.reproduce run.zip                       a file of `python -m src.report RUN --bundle`
python -m src.reproduce run.zip --accelerator cpu     on another device than in the bundle
python -m src.reproduce run.zip --data new/people.csv where the run's own data lies now
"""

import sys
import tempfile
from pathlib import Path

from src.system.arguments import command_parser
from src.system.process import importing, log_to, run


def main() -> None:
    parser = command_parser("reproduce", __doc__)
    parser.add_argument(
        "bundle", type=Path, metavar="BUNDLE", help="a file of `python -m src.report RUN --bundle`"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FOLDER", help="of the run; default: reproduced/NAME"
    )
    parser.add_argument(
        "--accelerator", choices=["cpu", "cuda", "mps"], help="default: that of the bundle"
    )
    parser.add_argument(
        "--data", type=Path, metavar="PATH",
        help="your own file or folder that the run was trained on; a bundle does not hold it",
    )  # fmt: skip
    arguments = parser.parse_args()
    log_to(sys.stdout)
    output = arguments.output or Path("reproduced") / arguments.bundle.stem
    with tempfile.TemporaryDirectory() as temporary:
        from src.runs.bundle import open_bundle

        bundle = open_bundle(
            arguments.bundle, Path(temporary), arguments.accelerator, arguments.data
        )
        with importing():
            from src.runs.comparison import describe
            from src.training.reproduction import reproduce

        found = reproduce(bundle, output)
        print(describe(found))
    raise SystemExit(0 if found.agrees else 1)


if __name__ == "__main__":
    run(main)
