"""Augmented copies of each sample at the prediction: whether a model can have them.

Imports no torch, so that a wrong number or a wrong run is reported at once.
"""

from collections.abc import Sequence
from pathlib import Path

from src.config import schema
from src.runs.folder import Run
from src.system.errors import InputError

MOST_COPIES = 1000


def read_copies(run: Path, copies: int | None) -> int:
    """The number of copies that `--augmented` asks for; 0 without this option.

    Raises InputError for a number out of range, and for a run folder that was trained without
    augmentation. A checkpoint file, and the shape of the user's own arrays, are checked when the
    model is opened (`require_augmentation`).
    """
    if copies is None:
        return 0
    _require_range(copies)
    if run.is_dir() and Run(run).config_file.exists():
        config = Run(run).config
        _require_pictures(copies, str(run), _has_pictures(config.data), config.data.name)
        if not isinstance(config.data, schema.Npz):
            _require_chosen(copies, str(run), config.augmentation)
    return copies


def require_augmentation(
    config: schema.Config, shape: Sequence[int], name: str, copies: int
) -> None:
    """Raises InputError unless `copies` is in range, samples of `shape` are pictures and `config`
    has an augmentation. `name` is that of the model."""
    _require_range(copies)
    _require_pictures(copies, name, len(shape) == 3, config.data.name)
    _require_chosen(copies, name, config.augmentation)


def told(copies: int) -> str:
    """What the probabilities are, for people."""
    return f"probabilities are means over each sample and {copies} augmented copies"


def _require_range(copies: int) -> None:
    if not 1 <= copies <= MOST_COPIES:
        raise InputError(f"--augmented {copies}: type a number from 1 to {MOST_COPIES}")


def _require_pictures(copies: int, name: str, pictures: bool, data: str) -> None:
    if not pictures:
        raise InputError(
            f"--augmented {copies}: {name} takes samples of data={data} that are not pictures, and "
            "only pictures can be augmented; leave --augmented out"
        )


def _require_chosen(copies: int, name: str, augmentation: schema.Augmentation) -> None:
    if not augmentation.chosen:
        raise InputError(
            f"--augmented {copies}: {name} was trained without augmentation; train with, for "
            "example, augmentation=digits or augmentation.shift=1, or leave --augmented out"
        )


def _has_pictures(data: schema.Data) -> bool:
    """Whether samples may have the shape (channels, height, width), before the data are read."""
    if isinstance(data, schema.Synthetic):
        return len(data.shape) == 3
    return not isinstance(data, schema.Toy | schema.Csv)
