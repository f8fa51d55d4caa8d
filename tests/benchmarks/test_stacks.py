"""A stack of a benchmark trains as a run of its trials does."""

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.stacks import ON_CPU, configure, stack, trials
from kindling.config.compose import compose
from kindling.records.loading import open_trained
from kindling.steps import choice as step_choice
from kindling.steps.base import Learner
from kindling.training.fit import fit
from tests.helpers.steps import needs_engine


@pytest.mark.parametrize("kind", [pytest.param("native", marks=needs_engine), "closed_form"])
@pytest.mark.parametrize("loading", [True, False])
def test_a_stack_takes_the_steps_that_users_get(
    kind: str, loading: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the engine and without, two epochs of a stack leave each trial as its own run does."""
    if kind == "closed_form":
        monkeypatch.setattr(step_choice, "why_not_native", lambda _: "the engine is not built")
    built = []
    learner = step_choice.LEARNERS[kind]

    def note(*arguments: Any) -> Learner:
        built.append(learner(*arguments))
        return built[-1]

    monkeypatch.setitem(step_choice.LEARNERS, kind, note)
    config, data = configure(ON_CPU, "data=digits")
    contender = stack(data, trials(config, [0.1, 0.3], [5, 6]), loading=loading)
    assert contender.train() > 0
    assert contender.train() > 0
    assert len(built) == 1
    assert built[0].batch_of == [0, 1]
    for seed, rate, model in zip((5, 6), (0.1, 0.3), built[0].models, strict=True):
        run = fit(
            compose(
                "data=digits", "trainer=cpu", "scheduler=none", "trainer.max_epochs=2",
                f"optimizer.lr={rate}", f"seed={seed}",
            ),
            tmp_path / str(seed),
        )  # fmt: skip
        assert run.result["step"] == kind
        trained = open_trained(run.last_checkpoint).model
        for ours, theirs in zip(model.parameters(), trained.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    features = data.train.features
    expected = built[0].models[0](features.flatten(1))
    torch.testing.assert_close(contender.logits(features.flatten(1)), expected)


def test_trials_share_batches_if_they_share_seeds() -> None:
    config, data = configure(ON_CPU, "data=digits")
    stack(data, trials(config, [0.1, 0.2, 0.3], [4, 4, 4]))
    assert len(data.orders) == 1
    stack(data, trials(config, [0.1, 0.2, 0.3], [4, 5, 4]))
    assert len(data.orders) == 2
