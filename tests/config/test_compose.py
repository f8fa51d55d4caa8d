"""Composed configurations are those that Hydra's own loader composes."""

from typing import Any

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.core.config_loader import ConfigLoader
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from src.config.compose import Composer
from src.config.schema import CONF


def test_points_are_composed_as_hydra_does() -> None:
    """Copies of a template are what Hydra's own loader gives, Hydra's own section included."""
    hydra, composer = initialized(), Composer(None)
    own = ["hydra/launcher=fused", "hydra.sweep.dir=x", "hydra.job.env_copy=[PATH]"]
    typed = ["seed=1,2", "model=mlp,logistic_regression", *own, "data=toy", "optimizer.lr=0.3"]
    masters = [
        loader.load_configuration("train", typed, RunMode.MULTIRUN) for loader in (hydra, composer)
    ]
    assert plain(masters[1]) == plain(masters[0])
    for point in (
        ["optimizer.lr=0.1", "seed=1"], ["optimizer.lr=0.2", "seed=2"],
        ["optimizer=adam", "optimizer.lr=0.2"], ["optimizer=adam", "optimizer.lr=0.3"],
        ["model.hidden_sizes=[3,4]"], ["model.hidden_sizes=7"], ["+data.new=1"],
        ["experiment=raschka_toy", "seed=4"], ["seed=4", "hydra.sweep.subdir=x"],
        ["~optimizer.lr"], ["++optimizer.new=1", "logger=[tensorboard,mlflow]"],
    ):  # fmt: skip
        expected = plain(hydra.load_sweep_config(masters[0], point))
        for _ in range(2):
            assert plain(composer.load_sweep_config(masters[1], point)) == expected, point
    alone = ["data=toy", "hydra.run.dir=x", "hydra.mode=RUN", "seed=3", "seed=4"]
    composed = [
        loader.load_configuration("train", alone, RunMode.RUN) for loader in (hydra, composer)
    ]
    assert plain(composed[1]) == plain(composed[0])


def initialized() -> ConfigLoader:
    """Hydra's own loader for conf/, in the state in which Composer has put Hydra."""
    Composer(None)
    return ConfigLoaderImpl(create_config_search_path(str(CONF)))


def plain(composed: DictConfig) -> Any:
    return OmegaConf.to_container(composed)


def test_faults_of_composing_are_hydras() -> None:
    hydra, composer = initialized(), Composer(None)
    for texts in (["optimizer.rate=1"], ["seed=1,2"], ["model=none"], ["~seed=5"], ["+seed=1"]):
        told = []
        for loader in (hydra, composer):
            with pytest.raises(HydraException) as caught:
                loader.load_configuration("train", texts, RunMode.RUN)
            told.append(str(caught.value))
        assert told[0] == told[1]
