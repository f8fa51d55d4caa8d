"""Tasks for tests that need no configuration of their own."""

from kindling.config import schema
from kindling.config.schema import OLD_TASK
from kindling.records.folder import columns
from kindling.tasks.task import Task, build_task

HISTORY = columns("classification", "val/acc")
HUBER = schema.Regression(name="regression", loss="huber", delta=0.5)
SQUARED = schema.Regression(name="regression", loss="squared_error", delta=1.0)
QUANTILES = schema.Regression(name="regression", loss="quantile", delta=1.0)
MULTILABEL = schema.Multilabel(name="multilabel", loss="binary_cross_entropy")


def classes(number: int) -> Task:
    """The classification into so many classes, by cross entropy."""
    return build_task(OLD_TASK, number)
