"""Tries many learning rates at once, as one stack, and says which are good.

python -m src.lr_find [group=choice] [key=value] ...                  1e-4 to 10, one epoch each
python -m src.lr_find optimizer=adam --from 1e-5 --to 0.1 --rates 64 --epochs 2

The settings are those of python -m src.train, without optimizer.lr and scheduler. Each rate begins
with the same weights and stays constant. The command prints the best rates and draws a picture.
"""

import logging
import sys

from src.system.process import command_parser, importing, run
from src.system.signals import handled


def main() -> None:
    parser = command_parser("lr_find", __doc__)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--from", type=float, default=1e-4, dest="lowest", metavar="RATE")
    parser.add_argument("--to", type=float, default=10.0, dest="highest", metavar="RATE")
    parser.add_argument("--rates", type=int, default=32, metavar="N", help="default: 32")
    parser.add_argument("--epochs", type=int, default=1, metavar="N", help="default: 1")
    given = parser.parse_args()
    from src.sweeps.command_line import check_command_line

    check_command_line(given.overrides)  # without torch
    logging.basicConfig(format="%(message)s", stream=sys.stdout, level=logging.INFO)
    with handled(rank=False):
        with importing():
            from src.sweeps.lr_find import advice, lr_find

        found = lr_find(given.overrides, given.lowest, given.highest, given.rates, given.epochs)
    print(advice(found))


if __name__ == "__main__":
    run(main)
