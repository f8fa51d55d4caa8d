"""Searches a space of settings. Optuna proposes batches of trials, which train as stacks.

python -m src.search KEY=SPACE ... [KEY=VALUE] ... [search.KEY=VALUE] ...
python -m src.search resume=FOLDER [search.trials=N]

The same command resumes a search that was stopped, and so does resume=FOLDER. The command may run
in several processes at once; each of them trains other batches.

SPACE is written in Hydra's grammar:
  'model.hidden_sizes=choice([64],[128],[64,64])'       one of several values
  'optimizer.momentum=interval(0,0.95)'                 any number between the two
  'optimizer.lr=tag(log,interval(0.01,1))'              the same, half of them below 0.1
  'model.hidden_sizes=tag(log,int(interval(16,256)))'   whole numbers
  'trainer.max_epochs=range(2,10,2)'                    2, 4, 6, 8
  'optimizer.lr=zip(0.1,0.3)' 'seed=zip(1,2)'           values of several keys that change together
A key with one value has this value in all trials, as for python -m src.train.

With search.folds=5, each proposal of Optuna is trained on the 5 folds of a cross-validation, in 5
run folders, and Optuna is told the mean. search.trials and search.batch count proposals.

Keys of the search, with their defaults, their ranges and their meaning:
"""

import sys

from kindling.config.closed_form import needed_by_ranks
from kindling.system.arguments import command_parser
from kindling.system.process import import_for_ranks, import_for_stacks, importing, log_to
from kindling.system.signals import handled


def main() -> None:
    from kindling.config.allowed import search_keys
    from kindling.sweeps.completion import complete_search
    from kindling.sweeps.search.command import check_command_line

    parser = command_parser("search", f"{__doc__}{search_keys()}")
    parser.value(
        "overrides", "KEY=SPACE", "or KEY=VALUE, or search.KEY=VALUE", nargs="*",
        completer=complete_search,
    )  # fmt: skip
    arguments = parser.parse_args()
    with handled(rank=False):
        command = check_command_line(arguments.overrides)
        if command.settings.executor == "local":
            import_for_stacks()
        elif command.corner.trainer.devices not in (1, "auto"):
            import_for_ranks(*needed_by_ranks(command.corner.read))
        log_to(sys.stdout)
        with importing():
            from kindling.sweeps.search.study import open_study

        study = open_study(command)
        with importing():
            from kindling.sweeps.search.loop import SearchLoop

        SearchLoop(command, study).run()
