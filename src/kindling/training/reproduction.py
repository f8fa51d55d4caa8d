"""Trains the run of a bundle again."""

from pathlib import Path

from kindling.data.folders import digest_of
from kindling.records.bundle import Bundle
from kindling.records.comparison import Comparison, compare
from kindling.records.loading import open_trained
from kindling.system.errors import InputError
from kindling.training.fit import fit


def reproduce(bundle: Bundle, folder: Path) -> Comparison:
    """Trains the configuration of a bundle into a new folder and compares both runs. Raises
    InputError when the folder is not empty, when the bundle holds no model, for other data than
    those of the run, or as `fit`."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: exists already; type --output FOLDER")
    original = open_trained(bundle.run.folder)  # a damaged bundle fails before training
    path = getattr(bundle.config.data, "path", None)
    if path is not None and digest_of(Path(path)) != original.digest:
        raise InputError(
            f"{path}: its content is not that of the data that the run was trained on; name these "
            "data by --data PATH"
        )
    return compare(bundle, original, fit(bundle.config, folder))
