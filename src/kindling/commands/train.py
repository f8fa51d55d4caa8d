"""Trains one run, or a sweep of runs.

python -m src.train model.hidden_sizes=[64] optimizer=adam       one run, runs/DATE/TIME
python -m src.train -m optimizer.lr=0.1,0.5 seed=1,2             all combinations, one by one
python -m src.train -m hydra/launcher=fused optimizer.lr=0.1,0.5 seed=1,2
                                                                 together, in a fraction of the time
python -m src.train -m 'optimizer.lr=zip(0.1,0.5)' 'seed=zip(1,2)'
                                                                 keys that change together
python -m src.train --cfg job optimizer=adam                     the whole configuration
python -m src.train --summary model.hidden_sizes=[64]            layers, shapes and parameters
python -m src.train resume=FOLDER [trainer.max_epochs=N]         continues a run or a sweep
python -m src.train data=csv --help                              the keys of this data set too

A sweep writes a folder for each trial, sweeps/DATE/TIME/NUMBER.
"""

import sys
from typing import Any

from kindling.system.errors import exit_on_error
from kindling.system.installation import as_typed
from kindling.system.launch import launch_info
from kindling.system.process import importing


def ask_hydra(_: Any) -> None:
    """Hydra answers --hydra-help, --cfg and --info from sys.argv."""


def main() -> None:
    # Under torchrun or srun every rank checks the command line; only rank 0 prints the faults.
    with exit_on_error(silent=launch_info().rank > 0):
        from kindling.sweeps.command_line import check_command_line
        from kindling.sweeps.run_command import run_command

        command = check_command_line(sys.argv[1:], as_typed(__doc__ or ""))
    if command.help is not None:
        print(command.help)
    elif command.summary:
        with importing():
            from kindling.models.summary import summarise

        print(summarise(command.configs[0]))
    elif command.trains:
        run_command(command)
    else:
        import hydra

        from kindling.config.compose import MAIN, VERSION_BASE
        from kindling.system.installation import CONF

        sys.argv[1:] = command.argv
        of_train = hydra.main(config_path=str(CONF), config_name=MAIN, **VERSION_BASE)
        of_train(ask_hydra)()
