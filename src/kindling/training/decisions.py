"""What the results of the epochs decide: which trials have diverged, and which stop before their
last epoch."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from kindling.config.measures import sort_key
from kindling.config.schema import Config
from kindling.records.folder import Row

# A trial has diverged when the loss of a batch, summed over samples and divided by data.batch_size,
# is NaN or above this bound. In float32, the cross entropy of a probability above 0 is at most 104.
# Some losses of thousands have recovered.
DIVERGED = 1e6

# Reasons to stop a trial before its last epoch: the values of `stopped` in result.json.
EARLY_STOPPING, HALVING, MAX_TIME = "early_stopping", "halving", "max_time"
CALLBACK = "callback"  # a callback of the user has set trainer.should_stop


class TrialStatuses:
    """Why trials of a run or of a stack no longer train, by their numbers. A trial ends when it
    diverges, when it is stopped, or with its last epoch."""

    def __init__(self, trials: int) -> None:
        self.trials = range(trials)
        self.diverged: dict[int, int] = {}  # the step that showed it, from 1
        self.stopped: dict[int, str] = {}  # the reason

    @property
    def active_trials(self) -> list[int]:
        return [n for n in self.trials if n not in self.diverged and n not in self.stopped]

    def stop(self, trials: Iterable[int], reason: str) -> None:
        """Stops those of `trials` that still train."""
        self.stopped |= dict.fromkeys({*trials} & {*self.active_trials}, reason)

    def state_dict(self) -> dict[str, dict[int, Any]]:
        found: dict[str, dict[int, Any]] = {"diverged": self.diverged, "stopped": self.stopped}
        return {name: dict(sorted(values.items())) for name, values in found.items()}

    def load_state_dict(self, state: Mapping[str, Mapping[int, Any]]) -> None:
        self.diverged, self.stopped = dict(state["diverged"]), dict(state["stopped"])


def sort_keys(rows: Sequence[Row], config: Config) -> list[float]:
    """Of the monitored values after each epoch: the smaller, the better."""
    monitor = config.checkpoint.monitor
    return [sort_key(monitor, row[monitor]) for row in rows[1:]]  # row 0 is before training


def out_of_patience(sort_keys: Sequence[float], config: Config) -> bool:
    """Whether the best epoch is early_stopping_patience epochs ago, after min_epochs. `sort_keys`
    are those of the monitored values after each epoch."""
    patience, done = config.trainer.early_stopping_patience, len(sort_keys)
    if patience is None or done < max(1, config.trainer.min_epochs or 0):
        return False
    return done - 1 - sort_keys.index(min(sort_keys)) >= patience


def rungs(epochs: int, factor: int) -> list[int]:
    """The epochs after which trials are dropped: 1, factor, factor², …, without the last epoch. A
    larger number of epochs only adds rungs, so a sweep can be resumed with more epochs."""
    found, rung = [], 1
    while rung < epochs:
        found.append(rung)
        rung *= factor
    return found


def best(sort_keys: Mapping[int, float], costs: Mapping[int, int], factor: int) -> set[int]:
    """The best trials, as many as together cost at most 1/factor of all, but at least one. Equal
    trials are ordered by number. A trial without a finite value is only kept as the single one.

    The cost of a trial is its number of parameters. Counting trials instead would save less in a
    sweep over widths, where the widest trials are the best: in the README's sweep, the best eighth
    of the trials does a fifth of the arithmetic.
    """
    ranked = sorted(sort_keys, key=lambda trial: (sort_keys[trial], trial))
    bound = sum(costs.values()) // factor
    spent = accumulate(costs[trial] for trial in ranked)
    affordable = {trial for trial, cost in zip(ranked, spent, strict=True) if cost <= bound}
    return {trial for trial in affordable if math.isfinite(sort_keys[trial])} | {ranked[0]}
