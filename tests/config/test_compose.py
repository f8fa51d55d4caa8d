"""Composed configurations are those that Hydra's own loader composes."""

import ast
import random
from pathlib import Path
from typing import Any

import pytest
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from kindling.config import compose as module
from kindling.config.compose import Composer, apply_to_plain, compose, initialized
from kindling.config.overrides import parse_all
from kindling.system.errors import InputError
from tests.helpers.commands import ROOT
from tests.helpers.faults import faults


@pytest.mark.slow
def test_nothing_of_hydra_or_omegaconf_is_private() -> None:
    """No import of their private modules, and no assignment to an attribute of their modules."""
    for folder in ("src", "hydra_plugins"):
        for path in (ROOT / folder).rglob("*.py"):
            names, theirs = list[str](), set[str]()
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Import):
                    names += [alias.name for alias in node.names]
                    theirs |= {alias.asname or alias.name.split(".")[0] for alias in node.names
                               if alias.name.startswith(("hydra.", "omegaconf"))}  # fmt: skip
                elif isinstance(node, ast.ImportFrom) and node.module:
                    names += [f"{node.module}.{alias.name}" for alias in node.names]
                elif isinstance(node, ast.Assign | ast.AugAssign):
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    for target in targets:
                        while isinstance(target, ast.Attribute):
                            target = target.value  # noqa: PLW2901
                            assert getattr(target, "id", "") not in theirs, (path, node.lineno)
            for name in names:
                if name.startswith(("hydra.", "omegaconf.")):
                    assert not any(part.startswith("_") for part in name.split(".")), (path, name)


def plain(composed: DictConfig) -> Any:
    return OmegaConf.to_container(composed, enum_to_str=True)


@pytest.mark.slow
def test_points_are_composed_as_hydra_does() -> None:
    """Copies of a template are what Hydra's own loader gives, Hydra's own section included."""
    composer = Composer(None)
    own = ["hydra/launcher=fused", "hydra.sweep.dir=x", "hydra.job.env_copy=[PATH]"]
    typed = ["seed=1,2", "model=mlp,logistic_regression", *own, "data=toy", "optimizer.lr=0.3"]
    with initialized(None) as hydra:
        loader: ConfigLoader = hydra.config_loader
        master = loader.load_configuration("train", typed, RunMode.MULTIRUN)
        expected = plain(master)
        assert composer.section(typed) == expected.pop("hydra")
        assert composer.values(typed, resolve=False) == expected
        for point in (
            ["optimizer.lr=0.1", "seed=1"], ["optimizer.lr=0.2", "seed=2"],
            ["optimizer=adam", "optimizer.lr=0.2"], ["optimizer=adam", "optimizer.lr=0.3"],
            ["model.hidden_sizes=[3,4]"], ["model.hidden_sizes=7"], ["+data.new=1"],
            ["experiment=raschka_toy", "seed=4"], ["seed=4", "hydra.sweep.subdir=x"],
            ["~optimizer.lr"], ["++optimizer.new=1", "logger=[tensorboard,mlflow]"],
        ):  # fmt: skip
            job = loader.load_sweep_config(master, point)
            job.hydra.job.id, job.hydra.job.num = "7", 7
            expected = plain(job)
            for _ in range(2):
                assert composer.section([*own, *point], 7) == expected["hydra"], point
                assert composer.values(point) == {
                    key: value for key, value in expected.items() if key != "hydra"
                }
        alone = ["data=toy", "hydra.run.dir=x", "hydra.mode=RUN", "seed=3", "seed=4"]
        expected = plain(loader.load_configuration("train", alone, RunMode.RUN))
    assert composer.section(alone) == expected["hydra"]
    assert composer.values(alone)["seed"] == expected["seed"] == 4


def test_another_hydra_application_goes_on() -> None:
    outer = GlobalHydra.instance().hydra
    with initialized(None) as hydra:
        GlobalHydra.instance().hydra = hydra
        Composer(None).points([["seed=1"]])
        assert GlobalHydra.instance().hydra is hydra
    assert GlobalHydra.instance().hydra is outer


@pytest.mark.parametrize(
    "text",
    ["hydra.sweeper.params={seed:1}", "hydra.sweeper.params.a=1", "+hydra.sweeper.params.a=1"],
)
def test_a_dictionary_over_null_is_a_fault(text: str) -> None:
    """OmegaConf 2.3 has no words for it."""
    _, told = Composer(None).points([[text]])
    assert len(told) == 1
    assert "hydra.sweeper.params" in told[0]


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


@pytest.mark.slow
def test_plain_dictionaries_are_what_omegaconf_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random overrides of several templates. Where dictionaries do not suffice, OmegaConf is used;
    a fault is the same."""
    (tmp_path / "experiment").mkdir()
    for name, text in {"linked": "a: ${seed}", "plain": "list: [1, b]"}.items():
        file = tmp_path / "experiment" / f"{name}.yaml"
        file.write_text(f"# @package _global_\nmodel:\n  {text}\n")
    composer = Composer(str(tmp_path))
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
    combinations = [
        each
        for each in combinations
        if not any(override.is_sweep_override() for override in parse_all(each, []))
    ]
    applied: list[bool] = []

    def noted(*given: Any) -> bool:
        applied.append(apply_to_plain(*given))
        return applied[-1]

    monkeypatch.setattr(module, "apply_to_plain", noted)
    fast = [told(composer, texts) for texts in combinations]
    monkeypatch.setattr(module, "apply_to_plain", lambda *_: False)
    for texts, found in zip(combinations, fast, strict=True):
        assert found == told(composer, texts), texts
    assert sum(applied) > 60
    assert "${" not in repr(composer.values(["experiment=linked", "seed=5"]))
    assert composer.values(["experiment=linked", "seed=5"])["model"]["a"] == 5


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


def test_a_composer_learns_what_a_command_begins_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """But no composition for which Hydra may read files outside of the known folders."""
    composer = Composer(None)
    for texts in (
        ["optimizer=adamw", "optimizer.lr=0.1", "latest"],
        ["optimizer=sgd", "hydra/launcher=fused"],
        ["optimizer=sgd", "hydra.searchpath=[file:///tmp]"],
        ["-m", "optimizer=sgd", "seed=1,2"],
        ["--config-dir", "mine", "optimizer=sgd"],
    ):
        *_, last = [[], *composer.learn(texts)]
        assert last == []
    assert [*composer._templates] == [("optimizer=adamw",)]
    monkeypatch.setattr(composer, "_compose", lambda _: pytest.fail("composed again"))
    values = composer.values(["optimizer=adamw", "optimizer.lr=0.2"])
    assert values["optimizer"]["lr"] == 0.2
    monkeypatch.setattr(module, "MOST_LEARNT", 1)
    files, end = composer.learn(["optimizer=sgd"])
    assert str(ROOT / "conf" / "optimizer" / "sgd.yaml") in files
    assert end == []
    assert [*composer._templates] == [("optimizer=adamw",)]
    with pytest.raises(HydraException):
        [*Composer(None).learn(["optimizer=nosuch"])]
