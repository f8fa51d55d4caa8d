"""The contract: faults are found whole, early and by name; what is shipped is valid."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser

from src.config import schema
from src.config.compose import compose
from src.config.read import read_config
from src.config.schema import CONF, GROUPS
from src.data.paths import FOLDERS
from src.sweeps.command_line import check_command_line
from src.system.errors import InputError
from tests.helpers.commands import ROOT
from tests.helpers.faults import faults


@pytest.mark.parametrize(
    ("override", "answer"),
    [
        ("model.hiden_sizes=64", "unknown key; did you mean model.hidden_sizes?"),
        ("+model.hiden_sizes=64", "unknown key; did you mean model.hidden_sizes?"),
        ("+foo.bar=1", "foo.bar=1: unknown key"),
        ("lr=0.1", "did you mean optimizer.lr?"),
        ("experiment=raschka", "must be one of few_samples, gpu_guide_mlp,"),
        ("model=mpl", "must be one of logistic_regression, mlp; did you mean mlp?"),
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
        ("checkpoint.monitor=test/acc", "must be one of val/acc, val/loss, train/acc, train/loss"),
        ("optimizer.lr=0.1,0.2", "type -m too"),
        ("optimizer.lr=[", "cannot be read"),
        ("~optimizer.lr", "optimizer.lr: is missing"),
        ("hydra.nothing=1", "nothing"),
    ],
)
def test_a_fault_names_key_value_and_remedy(override: str, answer: str) -> None:
    assert answer in faults(override)


@pytest.mark.parametrize(
    ("overrides", "answer"),
    [
        (["trainer.precision=16-mixed", "trainer.accelerator=cpu"], "trainer.precision=bf16-mixed"),
        (["trainer.precision=64", "trainer.accelerator=mps"], "type trainer.precision=32"),
        (["trainer.devices=2", "trainer.accelerator=mps"], "MPS has one device"),
        (["trainer.devices=999", "trainer.accelerator=cpu"], "this machine lends"),
        (["optimizer=adam", "optimizer.momentum=0.9"], "optimizer=adam has no such key"),
        (["model=logistic_regression", "model.hidden_sizes=3"], "has no such key"),
        (["data=csv", "data.target=a", "data.drop=[b,a]"], "has data.target=a, the column of"),
        (["data=csv", "data.target=a", "data.drop=a"], "data.drop=a: has data.target=a"),
    ],
)
def test_rules_across_keys(overrides: list[str], answer: str) -> None:
    assert answer in faults(*overrides)


def test_every_number_has_two_ends() -> None:
    """Whatever the key, 10^30 and its inverse are answered; nothing of that size is made."""
    numbers = [
        f"{section}.{key}"
        for section, values in compose().to_primitives().items()
        for key, value in (values.items() if isinstance(values, dict) else ())
        if type(value) in (int, float)
    ]
    assert len(numbers) > 20
    for key in numbers:
        for text in (f"{key}={10**30}", f"{key}=1e30", f"{key}=-1e-30"):
            assert key in faults(text)


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


def test_every_point_of_a_sweep_is_checked() -> None:
    text = faults("-m", "model.hidden_sizes=16,0", "optimizer.lr=0.1,0.5,-1")
    assert "points 2, 5: optimizer.lr=-1" in text
    assert "points 3, 4, 5: model.hidden_sizes=0" in text


def test_groups_can_be_swept() -> None:
    check_command_line(["-m", "model=mlp,logistic_regression", "seed=range(0,3)"])
    assert "point 1: data.batch_size=0" in faults("-m", "model=mlp", "data.batch_size=1,0")


def test_a_named_root_must_have_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nope, empty, file = tmp_path / "nope", tmp_path / "empty", tmp_path / "file"
    empty.mkdir()
    file.write_text("")
    for data, folder in FOLDERS.items():
        assert f"there is no such folder; name the folder that has {folder}, or make it" in faults(
            f"data={data}", f"data.root={nope}"
        )
        check_command_line([f"data={data}", f"data.root={empty}"])  # to be downloaded there
    for key, given in (("data.root", ["data.root={}"]), ("DATA_ROOT", [])):
        for root, answer in (
            (nope, "there is no such folder; name the folder that has MNIST/raw, or leave it out"),
            (empty, "has no MNIST/raw; name the folder that has, or type data=mnist"),
            (file, "is not a folder"),
        ):
            if not given:
                monkeypatch.setenv("DATA_ROOT", str(root))
            told = faults(*(text.format(root) for text in given), "optimizer.lr=-1")
            assert f"{key}={root}: {answer}" in told
            assert "optimizer.lr=-1" in told
    (empty / "MNIST" / "raw").mkdir(parents=True)
    check_command_line([f"data.root={empty}"])


@pytest.mark.parametrize(
    ("name", "text"),
    [("a", "x=[a]"), ("a b", "'x=[\"a b\"]'"), ("null", "'x=[\"null\"]'"), ("1", "'x=[\"1\"]'"),
     ("it's [1], \\ \\\"2\" =\\", None)],
)  # fmt: skip
def test_what_is_typed_is_read_as_it_was(name: str, text: str | None) -> None:
    shown = schema.typed("x", [name])
    assert text in (None, shown)
    (given,) = shlex.split(shown)
    assert OverridesParser.create().parse_override(given).value() == [name]


def test_a_sweep_gets_its_folder_before_it_starts() -> None:
    first, second = (check_command_line(["-m", "seed=1,2"]) for _ in range(2))
    assert first.sweep_dir != second.sweep_dir
    assert first.argv[-1] == f"hydra.sweep.dir={first.sweep_dir}"
    assert check_command_line(["seed=1"]).sweep_dir is None


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "history.csv").write_text("mine")
    assert "holds a run already" in faults(f"hydra.run.dir={tmp_path}")
    (tmp_path / "results.csv").write_text("mine")
    assert "holds a sweep already" in faults("-m", "seed=1,2", f"hydra.sweep.dir={tmp_path}")


@pytest.mark.parametrize("accelerator", ["cuda", "mps"])
def test_an_absent_accelerator_is_named(accelerator: str) -> None:
    from src.system import machine

    if accelerator == machine.resolve(compose().trainer).accelerator:
        pytest.skip(f"there is {accelerator} here")
    assert "torch sees no such device" in faults(f"trainer.accelerator={accelerator}")


def _door(folder: Path, argument: str) -> "subprocess.CompletedProcess[str]":
    """src.train with an argument; the last thing printed is its status and if torch is loaded."""
    script = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.argv = ['train', {argument!r}]\n"
        "from src import train\n"
        "try: train.main()\n"
        "except SystemExit as end: print(end.code, 'torch' in sys.modules)"
    )
    return subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=True
    )


def test_faults_cost_no_torch_and_exit_with_2(tmp_path: Path) -> None:
    done = _door(tmp_path, "model.hiden=1")
    assert done.stdout.strip() == "2 False"
    assert done.stderr.startswith("error: 1 fault in the configuration, nothing was started")
    assert not list(tmp_path.iterdir())


def test_help_lists_groups_and_costs_no_torch(tmp_path: Path) -> None:
    done = _door(tmp_path, "--help")
    assert "optimizer: adam, adamw, sgd" in done.stdout
    assert done.stdout.strip().endswith("0 False")


# Keys without a default, of the choices that have such.
NEEDED = {"image_folder": ["data.path"], "npz": ["data.path"], "csv": ["data.path", "data.target"]}


def test_every_key_is_shipped_and_every_shipped_key_is_known() -> None:
    shipped = set()
    for group in GROUPS[:-1]:
        for choice in schema.options(group):
            needed = [f"{key}=x" for key in NEEDED.get(choice, ())]
            config = compose(f"{group}={choice}", *needed)
            shipped |= {
                f"{section}.{key}"
                for section, values in config.to_primitives().items()
                if isinstance(values, dict)
                for key in values
                if section == "trainer" or key != "name"
            }
    names = {key for key in schema.known_keys() if "." in key}
    assert shipped == names


def test_no_shipped_yaml_names_code() -> None:
    files = sorted(CONF.rglob("*.yaml"))
    assert len(files) > 20
    for path in files:
        assert "_target_" not in path.read_text(), path


def test_one_int_is_a_list_of_one() -> None:
    config = compose("model.hidden_sizes=64", "data=synthetic", "data.shape=20")
    assert config.to_primitives()["model"]["hidden_sizes"] == [64]
    assert config.to_primitives()["data"]["shape"] == [20]


def test_the_hash_sees_every_key_but_the_place_of_the_data() -> None:
    base = compose()
    assert compose("data.root=/elsewhere").hash() == base.hash()
    assert compose("seed=1").hash() != base.hash()
    assert compose("optimizer.lr=0.4").hash() != base.hash()


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
