"""Trains one run, or a sweep of runs.

python -m src.train [group=choice] [key=value] ...
python -m src.train -m key=value1,value2 ...
python -m src.train -m 'key1=zip(a,b)' 'key2=zip(c,d)' ...
python -m src.train resume=FOLDER [trainer.max_epochs=N]
python -m src.train --summary [key=value] ...    layers, shapes and parameters
python -m src.train --help
"""

import sys

import hydra
from omegaconf import DictConfig

from src.config.compose import MAIN, VERSION_BASE
from src.config.schema import CONF
from src.sweeps.command_line import check_command_line
from src.sweeps.run_command import run_command
from src.system.errors import exit_on_error
from src.system.launch import launch_info
from src.system.process import importing, run


@hydra.main(version_base=VERSION_BASE, config_path=str(CONF), config_name=MAIN)
def ask_hydra(_: DictConfig) -> None:
    """Hydra answers --help, --hydra-help, --cfg, --info and --shell-completion from sys.argv."""


def main() -> None:
    # Under torchrun or srun every rank checks the command line; only rank 0 prints the faults.
    with exit_on_error(silent=launch_info().rank > 0):
        command = check_command_line(sys.argv[1:])
    if command.summary:
        with importing():
            from src.models.summary import summarise

        print(summarise(command.configs[0]))
    elif command.trains:
        run_command(command)
    else:
        sys.argv[1:] = command.argv
        ask_hydra()


if __name__ == "__main__":
    run(main)
