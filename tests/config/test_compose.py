"""Composed configurations are those that Hydra's own loader composes."""

import random
from pathlib import Path
from typing import Any

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.core.config_loader import ConfigLoader
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from src.config.compose import Composer, _split, compose, plain_parts
from src.config.overrides import parse_all, parsed
from src.config.schema import CONF
from src.system.errors import InputError
from tests.helpers.faults import faults


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


@pytest.mark.parametrize(
    "text",
    ["hydra.sweeper.params={seed:1}", "hydra.sweeper.params.a=1", "+hydra.sweeper.params.a=1"],
)
def test_a_dictionary_over_null_is_a_fault(text: str) -> None:
    """OmegaConf has no words for it."""
    _, told = Composer(None).points([[text]])
    assert told == [f"{text}: cannot be set on a command line; set the key in a configuration file"]


VALUES = (
    "1", "-2", "0.25", "1e-3", ".5", "nan", "inf", "true", "null", "text", "'1'", "'a b'",
    "\"x,y\"", "", "'true'", "1e3", "0x10", "1_000", "[]", "[1,2]", "[[1],[a,null]]", "{}",
    "{a:1}", "{name:mlp}", "[{a:1}]", "${seed}", "${oc.env:HOME}", "'\\${seed}'", "???", "a:b",
    "['${seed}']", "choice(1,2)", "1,2", "é", "'\\\\'", "int(3)", "str(4)",
)  # fmt: skip
KEYS = (
    "seed", "resume", "optimizer.lr", "optimizer.new", "model.hidden_sizes",
    "model.hidden_sizes.x", "model.hidden_sizes[0]", "model.dropout", "data.val_fraction", "none",
    "checkpoint", "checkpoint.mode", "trainer.precision", "seed.x", "scheduler.milestones",
    "optimizer[lr]", "trainer..x", "data.shape.0",
)  # fmt: skip


def test_a_wrong_launcher_hides_no_other_fault() -> None:
    told = faults("-m", "optimizer.lr=0.1,-1", "hydra/launcher=fusd")
    assert "hydra/launcher=fusd: must be one of basic, fused, joblib; did you mean fused?" in told
    assert "optimizer.lr=-1: must be greater than 0" in told


def test_plain_dictionaries_are_what_omegaconf_gives(tmp_path: Path) -> None:
    """Random overrides of several templates. Where dictionaries do not suffice, OmegaConf is used;
    a fault is the same."""
    (tmp_path / "experiment").mkdir()
    for name, text in {"linked": "a: ${seed}", "plain": "list: [1, b]"}.items():
        file = tmp_path / "experiment" / f"{name}.yaml"
        file.write_text(f"# @package _global_\nmodel:\n  {text}\n")
    fast, slow = Composer(str(tmp_path)), Composer(str(tmp_path))
    draw = random.Random(0)
    templates = [[], ["data=toy"], ["experiment=plain"], ["experiment=linked"], ["optimizer=adam"]]
    combinations = [
        [
            *draw.choice(templates),
            *(
                f"{draw.choice([*[''] * 9, '+', '++', '~'])}{key}={draw.choice(VALUES)}"
                for key in draw.sample(KEYS, draw.choice([1, 1, 1, 2, 3]))
            ),
        ]
        for _ in range(300)
    ]
    combinations = [each for each in combinations if len(parse_all(each, [])) == len(each)]
    master = slow.load_configuration(
        "train", ["hydra/launcher=fused", "hydra.sweep.dir=x"], RunMode.MULTIRUN
    )
    plain_points = equal_jobs = 0
    for texts in combinations:
        choices, others = _split(texts)
        slow._template(choices)._simple = False
        assert told(fast, texts) == told(slow, texts), texts
        plain_points += (
            fast._template(choices).plain_with([parsed(text) for text in others]) is not None
        )
        try:
            job = slow.load_sweep_config(master, texts)
        except (HydraException, OmegaConfBaseException, ValueError):
            continue  # the command line has reported it
        with open_dict(job):
            job.hydra.job.id = job.hydra.job.num = 7
            job.hydra.runtime.output_dir = str(Path("x/7").absolute())
        mine = fast.plain_job(master, texts, 7)
        assert mine.folder == Path("x/7")
        values, section = plain_parts(job)
        assert repr(mine.values) == repr(values)
        assert mine.hydra == section
        assert list(mine.hydra["job"]) == list(section["job"])
        equal_jobs += 1
    assert plain_points > 35
    assert equal_jobs > 65


def told(composer: Composer, texts: list[str]) -> str:
    """The point of a combination or its faults. NaN is not equal to itself, but its text is."""
    try:
        return repr(composer.points([texts]))
    except ValueError as error:  # of OmegaConf, for unknown keys; the command line reports them
        return repr(error)


def test_a_fault_of_compose_says_nothing_of_a_start() -> None:
    with pytest.raises(InputError) as caught:
        compose("model.hiden=3")
    assert str(caught.value).splitlines()[0] == "1 fault in the configuration"


def test_a_list_is_no_text() -> None:
    with pytest.raises(InputError, match="compose takes texts, such as"):
        compose(["optimizer.lr=0.1"])  # type: ignore[arg-type]
