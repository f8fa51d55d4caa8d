"""Sweeps whose keys change together: the sweeper of a command with zip(…), and its jobs."""

from collections.abc import Sequence

from hydra.core.override_parser.types import Override

from src.config.axes import axes_of, is_zipped, product_of, zip_faults
from src.config.faults import config_error
from src.config.overrides import key_of, parse_all

SWEEPER = "hydra/sweeper"
ZIP = "zip"  # hydra_plugins/zip_sweeper.py


def with_zip_sweeper(texts: Sequence[str]) -> list[str]:
    """The overrides of a sweep. If some of them are zipped, and no sweeper is chosen, the sweeper
    that knows zip(…) is chosen."""
    chosen = any(key_of(text) == SWEEPER for text in texts)
    zipped = any(map(is_zipped, parse_all([text for text in texts if ZIP in text], [])))
    return [*texts, f"{SWEEPER}={ZIP}"] if zipped and not chosen else [*texts]


def sweeper_faults(overrides: Sequence[Override]) -> list[str]:
    """A fault for each other sweeper that a command with zip(…) chooses."""
    if not any(map(is_zipped, overrides)):
        return []
    return [
        f"{each.input_line}: does not know zip(…); leave {SWEEPER} out"
        for each in overrides
        if each.key_or_group == SWEEPER and each.value() != ZIP
    ]


def jobs_of(texts: Sequence[str]) -> list[list[str]]:
    """The overrides of each job of a sweep, as the command line has checked them. Raises InputError
    for overrides that were not checked, such as hydra.sweeper.params, with all faults."""
    faults: list[str] = []
    overrides = parse_all(texts, faults)
    faults += zip_faults(overrides)
    if faults:
        raise config_error(faults)
    return [list(texts) for texts in product_of(axes_of(overrides))]
