"""Trains one run, or a sweep of them.

python -m src.train [group=choice] [key=value] ...
python -m src.train -m key=value1,value2 ...
python -m src.train resume=FOLDER [trainer.max_epochs=N]
python -m src.train --help
"""

import hydra
from omegaconf import DictConfig

from src.config.schema import CONF
from src.runs import hydra_files
from src.sweeps.command_line import main_argv
from src.system.errors import exit_on_error
from src.system.launch import launch_info
from src.system.process import import_for_ranks, importing, run


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="train")
def job(composed: DictConfig) -> float:
    with importing():
        from src.sweeps.job import run_training  # only now torch: see src/composition.py

    return run_training(composed)


def main() -> None:
    with exit_on_error(silent=launch_info().rank > 0):
        command = main_argv()
    if command.launches_ranks:
        import_for_ranks()
    if command.resumes is not None:
        with importing():
            from src.sweeps.job import resume_run

        resume_run(*command.resumes)
        return
    if launch_info().rank and command.points:  # Hydra's folders are rank 0's
        with importing():
            from src.sweeps.job import follow

        follow(command)
        return
    hydra_files.keep_whole()
    job()
    if command.sweep_dir is not None:
        from src.sweeps.job import finish_sweep

        finish_sweep(command.sweep_dir)


if __name__ == "__main__":
    run(main)
