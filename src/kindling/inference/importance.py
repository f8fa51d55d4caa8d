"""Which columns of a table a model needs: how much of its score is lost when the cells of a column
are exchanged among the test rows (Breiman, Random Forests, 2001)."""

import math
import statistics
from dataclasses import dataclass

import torch

from kindling.data.sources.source import Source
from kindling.data.targets import spread
from kindling.inference.logits import compute_logits
from kindling.records.confidence import TWO_SIDED
from kindling.records.loading import Trained
from kindling.system.terminal import progress

REPEATS = 5
MOST_ROWS, MOST_COLUMNS = 2000, 100


@dataclass(frozen=True)
class Importance:
    """The score that each of REPEATS exchanges loses, and the interval of LEVEL around their mean:
    how far it would differ with other test rows."""

    column: str
    lost: tuple[float, ...]
    interval: tuple[float, float]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.lost)


def importances(trained: Trained, source: Source) -> list[Importance]:
    """Of each column, the most important first, by at most MOST_ROWS test rows; none for other data
    than tables, and for more than MOST_COLUMNS columns. Columns that say the same share what they
    say: each alone may then seem to be of no use."""
    columns, task, stream = trained.columns, trained.task, torch.Generator().manual_seed(0)
    if columns is None or len(columns.by_name) > MOST_COLUMNS:
        return []
    test = source.test.take(torch.randperm(len(source.test), generator=stream)[:MOST_ROWS])
    rows, labels = len(test), test.labels

    def scores(features: torch.Tensor) -> torch.Tensor:
        """Of each row, (features' rows / rows, rows)."""
        many = type(test)(features, labels.repeat(len(features) // rows, *[1] * (labels.dim() - 1)))
        found = task.scores(compute_logits(trained, many).double().mT[None], many.labels[None])
        return found.double().view(-1, rows)

    # The score is a linear function of the sum of the rows' scores.
    varied = spread(labels) or math.nan
    slope = rows * (task.score(1.0, rows, varied) - task.score(0.0, rows, varied))
    before, found = scores(test.features), list[Importance]()
    for name, parts in progress([*columns.by_name.items()], "columns exchanged"):
        changed = test.features.repeat(REPEATS, 1)
        orders = [torch.randperm(rows, generator=stream) for _ in range(REPEATS)]
        for _, part in parts:
            changed[:, part] = torch.cat([test.features[order, part] for order in orders])
        lost = slope * (before - scores(changed))
        mean = lost.mean().item()
        half = TWO_SIDED * lost.mean(0).std().item() / math.sqrt(rows)
        found.append(Importance(name, tuple(lost.mean(1).tolist()), (mean - half, mean + half)))
    return sorted(found, key=lambda each: -each.mean)
