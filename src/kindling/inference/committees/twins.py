"""Trains the members of a committee once more, on all rows that are not for the test.

Members are chosen by validation rows, from which they have not learned. A twin has the settings of
a member, learns from these rows too, for as many epochs as the best of the member, and joins the
member. docs/results.md has what this gains.
"""

import logging
import tempfile
from collections.abc import Callable
from pathlib import Path

from kindling.config.measures import CLASSIFICATION
from kindling.config.schema import Config
from kindling.data.sources.source import Source
from kindling.records.folder import Run
from kindling.records.loading import Trained, open_trained
from kindling.system.errors import InputError, first_line
from kindling.training import random_state
from kindling.training.in_memory import train_in_memory

log = logging.getLogger(__name__)

MOST_ROWS = 10_000  # of training and validation; measured on tables of 100 to 3,000 rows


def twins_help(config: Config, source: Source) -> bool:
    """Whether the validation rows of such members are a part of few training rows, and the members
    say classes: numbers are not predicted better. The rate must not follow a schedule, which would
    be another one over the fewer epochs of a twin."""
    drawn = source.validation is None and config.data.val_fraction is not None
    few = len(source.train) <= MOST_ROWS and config.data.folds is None
    plain = config.task.name == CLASSIFICATION and config.scheduler.name == "none"
    return drawn and few and plain


def train_twin(run: Run, hold: Callable[[Config], Config] | None = None) -> Trained | None:
    """The twin of a run; None if its training diverged, and with a warning if it cannot be trained:
    more rows may leave one sample for the last batch, which a batch norm refuses. No logger hears
    of the twin. `hold` gives the configuration what a program holds. Raises Interrupted after a
    signal."""
    config = run.config if hold is None else hold(run.config)
    data = config.data.model_copy(update={"val_fraction": None})
    epochs = max(1, run.result["best"]["epoch"] or 0)
    trainer = config.trainer.model_copy(
        update={
            "max_epochs": epochs, "min_epochs": None, "early_stopping_patience": None,
            "progress_bar": False,
        }
    )  # fmt: skip
    silent = {"tensorboard": False, "mlflow": False, "wandb": False, "own": []}
    logger = config.logger.model_copy(update=silent)
    changes = {"data": data, "trainer": trainer, "logger": logger, "resume": None}
    try:
        return _trained(config.model_copy(update=changes), run)
    except InputError as error:
        log.warning("%s: has no twin: %s", run.folder, first_line(error))
        return None


def _trained(config: Config, run: Run) -> Trained | None:
    from kindling.training.fit import fit  # imports Lightning

    found = train_in_memory(config, run.folder)
    if found is not None:
        return found.trained
    with tempfile.TemporaryDirectory() as folder, random_state.kept():
        own = fit(config, Path(folder, "twin"))
        return open_trained(own.folder) if own.best_checkpoint.exists() else None
