"""Trains the run of a bundle again."""

from pathlib import Path

from src.runs.bundle import Bundle
from src.runs.comparison import Comparison, compare
from src.runs.loading import open_trained
from src.system.errors import InputError
from src.training.fit import fit


def reproduce(bundle: Bundle, folder: Path) -> Comparison:
    """Trains the configuration of a bundle into a new folder and compares both runs. Raises
    InputError when the folder is not empty, when the bundle holds no model, or as `fit`."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: exists already; type --output FOLDER")
    original = open_trained(bundle.run.folder)  # a damaged bundle fails before training
    return compare(bundle, original, fit(bundle.config, folder))
