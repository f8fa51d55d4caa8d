"""Repeats a run from its bundle, and compares results and environments.

python -m src.reproduce run.zip                       a file of `python -m src.report RUN --bundle`
python -m src.reproduce run.zip --accelerator cpu     on another device than in the bundle
python -m src.reproduce run.zip --data new/people.csv where the run's own data lies now
"""

import sys
import tempfile
from pathlib import Path

from kindling.system.arguments import command_parser
from kindling.system.installation import as_command
from kindling.system.process import importing, log_to


def main() -> None:
    parser = command_parser("reproduce", __doc__)
    parser.value("bundle", "BUNDLE", f"a file of `{as_command('report')} RUN --bundle`", type=Path)
    parser.value("--output", "FOLDER", "of the run; default: reproduced/NAME", type=Path)
    parser.add_argument(
        "--accelerator", choices=["cpu", "cuda", "mps"], help="default: that of the bundle"
    )
    parser.value(
        "--data", "PATH",
        "your own file or folder that the run was trained on; a bundle does not hold it", type=Path,
    )  # fmt: skip
    arguments = parser.parse_args()
    log_to(sys.stdout)
    output = arguments.output or Path("reproduced") / arguments.bundle.stem
    with tempfile.TemporaryDirectory() as temporary:
        from kindling.records.bundle import open_bundle

        bundle = open_bundle(
            arguments.bundle, Path(temporary), arguments.accelerator, arguments.data
        )
        with importing():
            from kindling.records.comparison import describe_comparison
            from kindling.training.reproduction import reproduce

        found = reproduce(bundle, output)
        print(describe_comparison(found))
    raise SystemExit(0 if found.agrees else 1)
