"""The keys of an executor are checked before torch is imported."""

from dataclasses import asdict

import pytest
import yaml

from hydra_plugins.fused_launcher import FusedLauncherConf
from kindling.config.compose import compose
from kindling.config.executors import EXECUTORS
from kindling.config.faults import find_launcher_faults
from kindling.config.schema import Execution, FusedLauncher
from kindling.sweeps.executors.base import Executor
from kindling.sweeps.executors.local import Local
from kindling.sweeps.trials import build_executor
from kindling.system.installation import CONF
from tests.helpers.commands import SMALL, require_told_without_torch

FUSED = ("-m", "hydra/launcher=fused", "seed=0,1")


def launcher(**changed: object) -> FusedLauncher:
    values = asdict(FusedLauncherConf()) | changed
    values.pop("_target_")
    settings, faults = find_launcher_faults(values)
    assert settings is not None, faults
    return settings


def test_every_key_has_a_default_in_both_places() -> None:
    shipped = yaml.safe_load((CONF / "search.yaml").read_text())["search"]
    defaults = asdict(FusedLauncherConf())
    assert set(FusedLauncher.model_fields) == set(defaults) - {"_target_"}
    having = {key for entry in EXECUTORS.values() for key in entry.keys}
    assert having == set(Execution.model_fields) - {"executor"}
    for key in Execution.model_fields:
        assert shipped[key] == defaults[key] == None  # noqa: E711


def test_executors_by_name() -> None:
    configs = [compose(*SMALL)]
    assert type(build_executor(launcher(), configs)) is Executor
    local = build_executor(launcher(executor="local", slots=3), configs)
    assert isinstance(local, Local)
    assert local.slots == 3


@pytest.mark.slow
def test_wrong_keys_are_told_before_torch_is_imported() -> None:
    key = "hydra.launcher"
    faults = {
        (f"{key}.executor=cloud",): f"{key}.executor=cloud: must be one of local, slurm, ray",
        (f"{key}.executor=local", f"{key}.slots=0"): f"{key}.slots=0: must be greater than 0",
        (f"{key}.slots=2",): (
            f"{key}.slots=2: needs another executor; type {key}.executor=local or slurm or ray too"
        ),
        (f"{key}.executor=local", f"{key}.partition=gpu"): f"type {key}.executor=slurm too",
        (f"{key}.executor=local", f"{key}.wait=false"): "only a cluster trains without this",
        (
            f"{key}.executor=slurm",
            f"{key}.partition='a\\nb'",
        ): f"{key}.partition=a\\nb: must be a name",
        (f"{key}.executor=slurm", f"{key}.account=-x"): f"{key}.account=-x: must be a name",
        (f"{key}.executor=slurm", f"{key}.setup=['a\nb']"): "must be a line of a shell script",
        (f"{key}.max_trials=0",): f"{key}.max_trials=0: must be greater than 0",
        (f"{key}.halving=1",): f"{key}.halving=1: must be greater than or equal to 2",
    }
    require_told_without_torch("train", {(*FUSED, *texts): told for texts, told in faults.items()})
    space = "optimizer.lr=tag(log,interval(0.01,1))"
    require_told_without_torch(
        "search",
        {
            (space, "search.slots=2"): "search.slots=2: needs another executor; type",
            (
                space,
                "search.executor=cloud",
            ): "search.executor=cloud: must be one of local, slurm, ray",
            (space, "search.executor=slurm", "search.address=x:1"): "type search.executor=ray too",
        },
    )
