"""Learns a table: trains many small networks, chooses a committee, and tests it beside baselines.

python -m src.tables FILE.csv --target COLUMN
python -m src.tables FILE.csv --target COLUMN --networks 128 --minutes 5
python -m src.tables FILE.csv --target COLUMN data.drop=[name] task=regression

The networks differ in settings that are drawn: sizes, activation, dropout, rate, decay and seed.
Their committee is chosen on validation rows, and tested once on test rows, beside gradient boosting
and a linear model. The answer is a run folder that predict, evaluate, export, report and demo take.
The same command continues a pack that was stopped.

KEY=VALUE sets any key of python -m src.train for all networks.
"""

import sys
from pathlib import Path

from kindling.system.arguments import command_parser
from kindling.system.process import import_for_stacks, importing, log_to
from kindling.system.signals import handled


def main() -> None:
    from kindling.sweeps.packs.command import NETWORKS, check_command_line

    parser = command_parser("tables", __doc__)
    parser.value("file", "FILE", "a table with a header", type=Path)
    parser.value("--target", "COLUMN", "the column to predict")
    parser.value(
        "--networks", "N", f"how many are trained, default: {NETWORKS}", type=int, default=NETWORKS
    )
    parser.value("--minutes", "M", "about how long all takes at most", type=float)
    parser.value("--seed", "N", "of the drawn settings, default: 0", type=int, default=0)
    parser.value("--folder", "FOLDER", "of the pack; default: sweeps/FILE-COLUMN-ID", type=Path)
    parser.value("overrides", "KEY=VALUE", "for all networks", nargs="*")
    given = parser.parse_intermixed_args()
    log_to(sys.stdout)
    with handled(rank=False):
        pack = check_command_line(
            given.file, given.target, given.overrides, networks=given.networks, seed=given.seed,
            minutes=given.minutes, folder=given.folder,
        )  # fmt: skip
        if pack.sweep.section["launcher"].get("executor") == "local":
            import_for_stacks()
        with importing():
            from kindling.sweeps.packs.loop import make_pack, tell

        print(tell(make_pack(pack)))
