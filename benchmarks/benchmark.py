"""Times the contenders of a suite and prints a table. The last line is one JSON object.

python -m src.benchmark suite=commands     whole commands, beside scripts of other libraries
python -m src.benchmark suite=loops [rounds=5] [data=mnist_or_digits]
python -m src.benchmark suite=sweep [full=true] [commands=false]
python -m src.benchmark suite=search
python -m src.benchmark suite=estimator    beside scikit-learn's MLPClassifier
python -m src.benchmark suite=tables       accuracy of cross-validations
python -m src.benchmark suite=checkpoints      (or report, busy, gpu_check)
python -m src.benchmark suite=devices      (or precision, batch_size, hidden_size, dataset_size,
                                           transfer, augmentation, ranks, graph; each also writes
                                           SUITE.png)
"""

import os

from kindling.system.arguments import command_parser
from kindling.system.warm import SWITCH


def main() -> None:
    os.environ[SWITCH] = "off"  # the commands that are measured and killed start for themselves
    parser = command_parser("benchmark", __doc__)
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="as in the examples")
    arguments = parser.parse_args()
    from benchmarks.settings import read_settings

    settings = read_settings(arguments.settings)
    from benchmarks import run_suite

    table, line = run_suite(settings)
    print(f"{table}\n\n{line}")
