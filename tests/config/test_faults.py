"""A message names the key, the value, what is allowed and what to type; all come at once."""

from pathlib import Path

import pytest
import yaml

from kindling.config.compose import compose
from kindling.config.faults import read_config
from kindling.system.errors import InputError
from tests.helpers.faults import faults


@pytest.mark.parametrize(
    ("override", "answer"),
    [
        ("model.hiden_sizes=64", "unknown key; did you mean model.hidden_sizes?"),
        ("+model.hiden_sizes=64", "unknown key; did you mean model.hidden_sizes?"),
        ("+foo.bar=1", "foo.bar=1: unknown key"),
        ("lr=0.1", "did you mean optimizer.lr?"),
        (
            "model.hidden_sizes=[-4,3.5]",
            "=[-4,3.5]: must be greater than 0 and a whole number, for e",
        ),
        ("experiment=raschka", "must be one of cnn, cnn_cifar10, digits_or_none, few_samples,"),
        ("model=mpl", "one of cnn, ladder, logistic_regression, mlp, own; did you mean mlp?"),
        ("optimizer.lr=0", "optimizer.lr=0: must be greater than 0, for example optimizer.lr=0.5"),
        ("optimizer.lr=-1", "must be greater than 0"),
        ("optimizer.lr=nan", "must be a finite number"),
        ("optimizer.lr=big", "must be a valid number"),
        ("model.hidden_sizes=[]", "must have at least 1 item"),
        ("model.hidden_sizes=0", "model.hidden_sizes=0: must be greater than 0"),
        ("model.hidden_sizes=[32,-1]", "must be greater than 0"),
        ("model.hidden_sizes=wide", "must be a valid list, for example model.hidden_sizes=[32]"),
        ("model.hidden_sizes=true", "must be a valid list"),
        ("data.batch_size=0", "must be greater than 0 or auto, for example data.batch_size=100"),
        ("data.val_fraction=0", "must be greater than 0"),
        ("data.val_fraction=1", "must be less than 1"),
        ("data.val_fraction=1.5", "must be less than 1"),
        ("trainer.precision=17-mixed", "32, 64, bf16-mixed, 16-mixed; did you mean 16-mixed?"),
        ("trainer.accelerator=gpuu", "must be one of auto, cpu, cuda, mps"),
        ("trainer.accelerator=gpu", "cuda, mps; did you mean cuda?"),
        ("trainer=gpu", "; did you mean cuda?"),
        ("OPTIMIZER.LR=0.1", "unknown key; did you mean optimizer.lr?"),
        ("model=MLP", "; did you mean mlp?"),
        ("trainer.devices=0", "must be greater than 0 or auto"),
        ("trainer.max_time=1h", "must be DD:HH:MM:SS"),
        ("trainer.max_time=00:00:00:00", "trainer.max_time=00:00:00:00: must be a second or more"),
        (f"model.hidden_sizes={10**30}", "must be less than or equal to 2147483647"),
        (f"model.hidden_sizes=[{'4,' * 999}4]", "must have at most 256 items"),
        ("model.hidden_sizes=[2000000000,2000000000]", "4,000,000,000,000,000,000 weights"),
        (f"trainer.steps_per_call={10**30}", "must be less than or equal to 2147483647 or auto"),
        ("model.max_norm=1e-300", "model.max_norm=1e-300: must lie between 1e-12 and 1e+12"),
        ("optimizer.lr=1e300", "must lie between 1e-12 and 1e+12"),
        ("data.num_workers=100000", "must be less than or equal to 256"),
        ("scheduler.gamma=1e9", "must be less than or equal to 10"),
        ("optimizer.momentum=1", "must be less than 1"),
        ("optimizer.nesterov=true", "type optimizer.momentum=0.9"),
        ("scheduler.milestones=[5,3]", "for example scheduler.milestones=[3,5]"),
        ("data.num_workers=2", "type data.loader=workers too"),
        ("data.pin_memory=true", "type data.loader=workers too"),
        ("data.persistent_workers=true", "type data.num_workers=2 too"),
        ("checkpoint.mode=min", "type checkpoint.mode=max"),
        (
            "checkpoint.keep=most",
            "checkpoint.keep=most: must be one of all, best or a whole number",
        ),
        ("checkpoint.keep=0", "must be one of all, best or greater than 0, for example"),
        ("trainer.class_weights=[1]", "must be balanced or must have at least 2 items"),
        ("trainer.class_weights=[1,-1]", "trainer.class_weights=[1,-1]: must be balanced or great"),
        ("trainer.class_weights=[0,0]", "must be balanced or greater than 0"),
        ("trainer.class_weights=even", "must be balanced or a valid list"),
        ("data.sampler=weighted", "data.sampler=weighted: must be balanced"),
        (
            "checkpoint.monitor=test/acc",
            "must be one of val/acc, val/r2, val/loss, val/f1, val/precision, val/recall, "
            "val/auroc, val/top5, val/brier, val/ece, val/rmse, val/mae, train/acc, train/r2, "
            "train/loss",
        ),
        ("optimizer.lr=0.1,0.2", "0.1,0.2: several values need a sweep; type -m too"),
        ("model.hidden_sizes=64,32", "type -m too, or as one list: 'model.hidden_sizes=[64,32]'"),
        ("tags=a,b", "type -m too, or as one list: 'tags=[a,b]'"),
        ("name=a,b", "type -m too, or as one text: 'name=\"a,b\"'"),
        ("scheduler.milestones=3,5", "or as one list: 'scheduler.milestones=[3,5]'"),
        ("trainer.max_epochs=1e3", "must be a whole number; type trainer.max_epochs=1000"),
        ("trainer.steps_per_call=1e1", "a whole number or auto; type trainer.steps_per_call=10"),
        ("trainer.max_epochs=0.5", "must be a whole number, for example"),
        ('tags=[a,"b c"]', 'tags=[a,"b c"]: must be'),
        ("optimizer.lr=[", "a bracket has no partner"),
        ("~optimizer.lr", "optimizer.lr: is missing"),
        ("hydra.nothing=1", "nothing"),
    ],
)
def test_a_fault_names_key_value_and_remedy(override: str, answer: str) -> None:
    assert answer in faults(override)


@pytest.mark.parametrize("value", ["[64", "64]", "[", "(64"])
def test_a_list_without_a_bracket_is_advised_no_text(value: str) -> None:
    """A list of numbers is never a text; a list of texts may be meant as one."""
    told = "a bracket has no partner; write a list without spaces, or put it in quotes"
    assert faults(f"model.hidden_sizes={value}").endswith(told)
    assert "a text in two kinds of quotes" in faults(f"tags={value}")


@pytest.mark.parametrize("typed", [("optimizer.lr", "=", "0.1"), ("optimizer.lr=", "0.1")])
def test_spaces_around_the_sign_are_one_fault(typed: tuple[str, ...]) -> None:
    assert faults(*typed).splitlines() == [
        "1 fault in the configuration, nothing was started",
        f"  {' '.join(typed)}: write no spaces around =; type optimizer.lr=0.1",
    ]


def test_all_faults_come_at_once() -> None:
    text = faults(
        "model.hiden=1", "optimizer.lr=-1", "data.batch_size=0", "optimizer.nesterov=true"
    )
    assert text.startswith("4 faults in the configuration, nothing was started\n")
    assert [line.split(":")[0].strip() for line in text.splitlines()[1:]] == [
        "model.hiden=1",
        "data.batch_size=0",
        "optimizer.lr=-1",
        "optimizer.nesterov=true needs a momentum, not optimizer.momentum=0.0; "
        "type optimizer.momentum=0.9",
    ]


def test_a_configuration_survives_its_file(tmp_path: Path) -> None:
    config = compose("experiment=raschka_toy")
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config.to_primitives()))
    assert read_config(path) == config


@pytest.mark.parametrize("content", ["[1, 2]", "a: [", "!!python/object:os.system {}", "\x00"])
def test_a_foreign_file_is_no_configuration(tmp_path: Path, content: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(content)
    with pytest.raises(InputError, match=r"config\.yaml"):
        read_config(path)
