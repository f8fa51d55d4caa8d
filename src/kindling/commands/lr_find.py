"""Tries many learning rates at once, as one stack, and says which are good.

python -m src.lr_find [group=choice] [key=value] ...                  1e-4 to 10, one epoch each
python -m src.lr_find optimizer=adam --from 1e-5 --to 0.1 --rates 64 --epochs 2

The settings are those of python -m src.train, without optimizer.lr and scheduler. Each rate begins
with the same weights and stays constant. The command prints the best rates and draws a picture.
"""

import sys

from kindling.system.arguments import command_parser
from kindling.system.process import importing, log_to
from kindling.system.signals import handled


def main() -> None:
    from kindling.sweeps.command_line import check_command_line
    from kindling.sweeps.completion import complete

    parser = command_parser("lr_find", __doc__)
    parser.value("overrides", "KEY=VALUE", "settings of all rates", nargs="*", completer=complete)
    parser.value(
        "--from", "RATE", "the lowest rate; 1e-12 or more, default: 0.0001", type=float,
        default=1e-4, dest="lowest",
    )  # fmt: skip
    parser.value(
        "--to", "RATE", "the highest rate; at most 1e12, default: 10", type=float, default=10.0,
        dest="highest",
    )  # fmt: skip
    parser.value("--rates", "N", "how many; 2 to 1,000, default: 32", type=int, default=32)
    parser.value("--epochs", "N", "of each rate; 1 to 1,000,000, default: 1", type=int, default=1)
    given = parser.parse_args()
    check_command_line(given.overrides)  # without torch
    log_to(sys.stdout)
    with handled(rank=False):
        with importing():
            from kindling.sweeps.lr_find import advice, lr_find

        found = lr_find(given.overrides, given.lowest, given.highest, given.rates, given.epochs)
    print(advice(found))
