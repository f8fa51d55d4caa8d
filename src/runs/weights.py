"""The file with the weights of a run, for every command that uses a model."""

from pathlib import Path

from src.runs.folder import Run, is_sweep, resume_command
from src.runs.sweep_folder import Sweep
from src.system.errors import InputError, reading


def checkpoint_of(path: Path) -> Path:
    """The best checkpoint of a run folder; the path of a file is returned as it is. Raises
    InputError when there is no such file; for a sweep, with the best trial that has weights. Does
    not import torch."""
    with reading(path):
        if path.is_file():
            return path
        file = Run(path).best_checkpoint
        if file.exists():
            return file
        exists = path.exists()
    if not exists:
        raise InputError(f"{path}: there is no such file or folder; name a run, runs/DATE/TIME")
    if Run(path).config_file.exists() and (reason := Run(path).why_no_weights):
        raise InputError(reason)
    if is_sweep(path):
        runs = (outcome.run for outcome in Sweep(path).ranked())
        best = next((run.folder for run in runs if run.best_checkpoint.exists()), None)
        if best is None:
            raise InputError(
                f"{path}: is a sweep of which no trial has weights; to train on, type "
                f"{resume_command(path)}"
            )
        raise InputError(
            f"{path}: is a sweep; name one of its trials, such as the best one, {best}"
        )
    raise InputError(
        f"{path}: is not a run folder, it has no checkpoints/best.ckpt; name a folder that "
        "`python -m src.train` wrote (runs/<date>/<time>) or a .ckpt file"
    )
