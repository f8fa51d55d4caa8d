"""The life of a trial: it trains until it has finished, diverged, stopped or been dropped."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# Why a trial stopped before its last epoch, as result.json and the reports have it.
EARLY, HALVED, LATE = "early_stopping", "halving", "max_time"


@dataclass
class TrialStatus:
    """The step, counted from 1, that showed divergence, and why the trial stopped early, if so."""

    diverged: int | None = None
    stopped: str | None = None

    @property
    def trains(self) -> bool:
        """Whether the trial has epochs left, unless it has come to its last one."""
        return self.diverged is None and self.stopped is None


class TrialStatuses:
    """The statuses of the trials that began together, in the order of their numbers."""

    def __init__(self, trials: int) -> None:
        self._statuses = [TrialStatus() for _ in range(trials)]

    def __getitem__(self, trial: int) -> TrialStatus:
        return self._statuses[trial]

    @property
    def training(self) -> list[int]:
        return [trial for trial, status in enumerate(self._statuses) if status.trains]

    @property
    def diverged(self) -> dict[int, int]:
        """Trial to the step that showed divergence."""
        found = enumerate(self._statuses)
        return {trial: each.diverged for trial, each in found if each.diverged is not None}

    def stop(self, trials: Iterable[int], reason: str) -> None:
        """Ends those of the trials that still train."""
        for trial in trials:
            if self._statuses[trial].trains:
                self._statuses[trial].stopped = reason

    def diverge(self, trial: int, step: int) -> None:
        """Notes the first step that showed divergence; later ones change nothing."""
        if self._statuses[trial].diverged is None:
            self._statuses[trial].diverged = step

    def state_dict(self) -> dict[str, Any]:
        found = enumerate(self._statuses)
        stopped = {trial: each.stopped for trial, each in found if each.stopped is not None}
        return {"diverged": self.diverged, "stopped": stopped}

    def load_state_dict(self, state: Mapping[str, Mapping[int, Any]]) -> None:
        for trial, status in enumerate(self._statuses):
            status.diverged = state["diverged"].get(trial)
            status.stopped = state["stopped"].get(trial)
