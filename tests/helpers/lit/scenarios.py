"""Runs of the extension's modules, in a process that has it installed. Prints what they came to.

python -m tests.helpers.lit.scenarios FOLDER NAME
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.crashes import fingerprint
from kindling.config.compose import compose
from kindling.config.schema import Config
from kindling.records import checkpoint
from kindling.records.checkpoint import CheckpointPair
from kindling.records.folder import Run
from kindling.system.errors import InputError
from kindling.training.fit import fit
from tests.helpers.kills import Killed

COMMON = ("trainer=cpu", "trainer.max_epochs=4")
ODD = ("model=odd", "data=digits", "checkpoint.monitor=val_loss", "checkpoint.mode=min")
TEMPLATE = ("model=template", "data=template")
TOKENS = (*ODD, "model.kind=words", "data=tokens")


def configured(*overrides: str) -> Config:
    return compose(*COMMON, *overrides)


def weights(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = checkpoint.read(run.last_checkpoint)["state_dict"]
    return found


def killed(config: Config, folder: Path, after: int) -> Run:
    """A run whose process dies after so many checkpoints, and that is then resumed."""
    write, count = CheckpointPair.write, 0

    def dying(self: CheckpointPair, content: dict[str, Any]) -> None:
        nonlocal count
        write(self, content)
        count += 1
        if count == after:
            raise Killed

    CheckpointPair.write = dying  # type: ignore[method-assign]
    try:
        fit(config, folder)
    except Killed:
        pass
    finally:
        CheckpointPair.write = write  # type: ignore[method-assign]
    return fit(config, folder, resume=True)


RESUMED = {
    "template": TEMPLATE,
    "template_workers": (*TEMPLATE, "data.num_workers=1"),
    "template_on_ours": ("model=template", "data=digits"),
    "plain": (*ODD, "optimizer.momentum=0.9", "augmentation.shift=1"),
    "plateau": (*ODD, "scheduler=plateau", "scheduler.patience=0", "optimizer.lr=5"),
    "manual": (*ODD, "model.kind=manual"),
    "tokens": TOKENS,
    "swa": (*ODD, "callbacks=[swa]", "trainer.max_epochs=5"),
    "early": (*ODD, "callbacks=[early]", "trainer.max_epochs=9"),
}


def resumed(folder: Path) -> dict[str, Any]:
    """For each: whether a run killed after each of its checkpoints equals an undisturbed one."""
    found: dict[str, Any] = {}
    for name, overrides in RESUMED.items():
        config = configured(*overrides)
        whole = fit(config, folder / name / "whole")
        expected = fingerprint(whole)
        same = [
            fingerprint(killed(config, folder / name / str(after), after)) == expected
            for after in (1, 2, 3)
        ]
        found[name] = {"same": same, "epochs": whole.result["epochs"]}
    return found


SCENARIOS: dict[str, Callable[[Path], dict[str, Any]]] = {"resumed": resumed}

if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(SCENARIOS[sys.argv[2]](Path(sys.argv[1]))))
