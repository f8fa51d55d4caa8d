"""Small searches."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kindling.config.schema import Config
from kindling.sweeps.search.command import CheckedSearch, check_command_line
from kindling.sweeps.search.loop import SearchLoop
from kindling.sweeps.search.study import Study, open_study
from kindling.system.errors import InputError

WIDTH = "model.hidden_sizes=choice([2],[3],[2,2])"
RATE = "optimizer.lr=tag(log,interval(0.01,1))"
MOMENTUM = "optimizer.momentum=interval(0,0.9)"
SMALL = (
    *("data=synthetic", "data.samples=60", "data.test_samples=20", "data.shape=[4]"),
    *("data.batch_size=12", "trainer=cpu", "trainer.max_epochs=2", "trainer.steps_per_call=2"),
)
SPACE = (WIDTH, RATE, MOMENTUM)
Told = list[tuple[dict[str, Any], float | None, str]]  # parameters, value, state
Trained = list[list[int]]  # the numbers of the trials of each batch


def value_of(config: Config) -> float:
    """The value of a pretended trial: best at a rate of 0.1 without momentum. A fold adds 0.01."""
    values = config.to_primitives()
    rate, momentum = values["optimizer"]["lr"], values["optimizer"]["momentum"]
    fold = values["data"]["fold"] or 0
    return float(1 - abs(math.log10(rate) + 1) / 4 - momentum / 4 + fold / 100)


def checked(folder: Path, *overrides: str) -> CheckedSearch:
    return check_command_line([*SMALL, *SPACE, f"search.folder={folder}", *overrides])


def searched(folder: Path, *overrides: str) -> Told:
    command = checked(folder, *overrides)
    SearchLoop(command, open_study(command)).run()
    return told(folder, *overrides)


def told(folder: Path, *overrides: str) -> Told:
    return trials_of(open_study(checked(folder, *overrides)))


def trials_of(study: Study) -> Told:
    return [(trial.params, trial.value, trial.state.name) for trial in study.trials]


def refusal(act: Callable[[], object]) -> str:
    with pytest.raises(InputError) as caught:
        act()
    return str(caught.value)
