"""A trial trains until it diverges or is stopped; the first of both stays."""

from src.training.trial_status import EARLY_STOPPING, HALVING, TrialStatuses


def test_a_trial_trains_until_it_diverges_or_is_stopped() -> None:
    statuses = TrialStatuses(4)
    assert statuses.active_trials == [0, 1, 2, 3]
    statuses.diverge(1, 5)
    statuses.diverge(1, 9)
    statuses.stop([1, 2], HALVING)
    statuses.stop([2], EARLY_STOPPING)
    assert statuses.active_trials == [0, 3]
    assert statuses.diverged_steps == {1: 5}
    assert (statuses[1].stop_reason, statuses[2].stop_reason) == (None, HALVING)
    assert [statuses[trial].trains for trial in range(4)] == [True, False, False, True]


def test_statuses_survive_a_checkpoint() -> None:
    statuses = TrialStatuses(3)
    statuses.diverge(0, 7)
    statuses.stop([2], EARLY_STOPPING)
    restored = TrialStatuses(3)
    restored.diverge(1, 1)
    restored.load_state_dict(statuses.state_dict())
    assert [restored[trial] for trial in range(3)] == [statuses[trial] for trial in range(3)]
