"""Trains the best settings of a sweep again with fresh seeds, and estimates how good they are.

python -m src.confirm SWEEP --top 3 --seeds 20    SWEEP: the folder of a sweep or a search
python -m src.confirm SWEEP --json                for other programs
python -m src.confirm SWEEP/confirm               continues a confirmation

If the sweep is cross-validated, the seeds take turns on the folds. The same command continues a
confirmation that was stopped. The folder of the confirmation gets the figures, confirm.json, and a
report, confirm.html.
"""

import sys
from pathlib import Path

from kindling.config.closed_form import needed_by_ranks
from kindling.system.arguments import command_parser
from kindling.system.process import import_for_ranks, importing, log_to
from kindling.system.signals import handled


def main() -> None:
    from kindling.records.confirm_record import MOST_SEEDS, MOST_SETTINGS
    from kindling.records.lookup import CONFIRMED, finder, typed_folders
    from kindling.sweeps.confirmation.command import check_command_line

    parser = command_parser("confirm", __doc__)
    parser.value(
        "sweep", "SWEEP", "the folder of a sweep, a search or a confirmation",
        type=finder(CONFIRMED), completer=typed_folders,
    )  # fmt: skip
    parser.value("--top", "N", f"settings; 1 to {MOST_SETTINGS}, default: 3", type=int)
    parser.value(
        "--seeds", "K",
        f"of each setting; 2 to {MOST_SEEDS:,}, default: 20, or the folds if there are more",
        type=int,
    )  # fmt: skip
    parser.value("--output", "FOLDER", "default: SWEEP/confirm", type=Path)
    parser.flag("--json", "print one JSON object")
    given = parser.parse_args()
    with handled(rank=False):
        command = check_command_line(given.sweep, given.top, given.seeds, given.output)
        configs = [setting.config for setting in command.record.settings]
        if any(config.trainer.devices not in (1, "auto") for config in configs):
            import_for_ranks(*needed_by_ranks(configs[0].read))
        log_to(sys.stderr if given.json else sys.stdout)
        with importing():
            from kindling.sweeps.confirmation.loop import confirm, show

        found = confirm(command)
    show(found, as_json=given.json)
