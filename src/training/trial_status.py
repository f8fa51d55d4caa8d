"""Which trials still train. A trial ends when it diverges, when it is stopped (early stopping,
halving or max_time), or with its last epoch."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# Reasons to stop a trial before its last epoch: the values of `stopped` in result.json.
EARLY_STOPPING, HALVING, MAX_TIME = "early_stopping", "halving", "max_time"


@dataclass
class TrialStatus:
    """Whether and why a trial no longer trains."""

    diverged_step: int | None = None  # counted from 1; None if the trial has not diverged
    stop_reason: str | None = None  # None if the trial has not been stopped

    @property
    def trains(self) -> bool:
        """Whether the trial has neither diverged nor been stopped. True after its last epoch."""
        return self.diverged_step is None and self.stop_reason is None


class TrialStatuses:
    """The statuses of the trials of a run or of a stack, by the number of the trial."""

    def __init__(self, trials: int) -> None:
        self._statuses = [TrialStatus() for _ in range(trials)]

    def __getitem__(self, trial: int) -> TrialStatus:
        return self._statuses[trial]

    @property
    def active_trials(self) -> list[int]:
        return [trial for trial, status in enumerate(self._statuses) if status.trains]

    @property
    def diverged_steps(self) -> dict[int, int]:
        """For each trial that has diverged, the step that showed it, counted from 1."""
        return {trial: s.diverged_step for trial, s in enumerate(self._statuses) if s.diverged_step}

    def stop(self, trials: Iterable[int], reason: str) -> None:
        """Stops those of `trials` that still train."""
        for trial in trials:
            if self._statuses[trial].trains:
                self._statuses[trial].stop_reason = reason

    def diverge(self, trial: int, step: int) -> None:
        """Notes the step that showed divergence, unless an earlier step is noted already."""
        if self._statuses[trial].diverged_step is None:
            self._statuses[trial].diverged_step = step

    def state_dict(self) -> dict[str, Any]:
        stopped = {trial: s.stop_reason for trial, s in enumerate(self._statuses) if s.stop_reason}
        return {"diverged": self.diverged_steps, "stopped": stopped}

    def load_state_dict(self, state: Mapping[str, Mapping[int, Any]]) -> None:
        for trial, status in enumerate(self._statuses):
            status.diverged_step = state["diverged"].get(trial)
            status.stop_reason = state["stopped"].get(trial)
