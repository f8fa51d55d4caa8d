"""Every key has a shipped default and a range; one key of the schema is one key of conf/."""

import pytest

from kindling.config.compose import compose
from kindling.config.faults import check, known_keys, options
from kindling.config.registry import CONFIG_FOLDERS
from kindling.config.schema import GROUPS
from kindling.system.installation import CONF
from tests.helpers.faults import faults


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


# Keys without a default, of the choices that have such.
NEEDED = {"image_folder": ["data.path"], "npz": ["data.path"], "csv": ["data.path", "data.target"]}


@pytest.mark.slow
def test_every_key_is_shipped_and_every_shipped_key_is_known() -> None:
    shipped = set()
    for group in GROUPS[:-1]:
        for choice in options(group):
            needed = [f"{key}=x" for key in NEEDED.get(choice, ())]
            if group == "task" and choice != "classification":
                needed = ["data=csv", "data.path=x", "data.target=x"]
            config = compose(f"{group}={choice}", *needed)
            shipped |= {
                f"{section}.{key}"
                for section, values in config.to_primitives().items()
                if isinstance(values, dict)
                for key in values
                if section == "trainer" or key != "name"
            }
    names = {key for key in known_keys() if "." in key}
    assert shipped == names


def test_no_shipped_yaml_names_code() -> None:
    files = sorted(path for folder in (CONF, *CONFIG_FOLDERS) for path in folder.rglob("*.yaml"))
    assert len(files) > 20
    for path in files:
        assert "_target_" not in path.read_text(), path


def test_one_int_is_a_list_of_one() -> None:
    config = compose("model.hidden_sizes=64", "data=synthetic", "data.shape=20")
    assert config.to_primitives()["model"]["hidden_sizes"] == [64]
    assert config.to_primitives()["data"]["shape"] == [20]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            [
                "data=csv",
                "data.path=/none/a.csv",
                "data.target=y",
                "data.encode=null",
                "data.fill=null",
            ],
            "c3ac962866d6",
        ),
        (["data=npz", "data.path=/none/a.npz"], "c15cad968b14"),
        (["data=image_folder", "data.path=/none"], "db50c9abe423"),
        (["data=arrays"], "d1e3a74d6ec8"),
        (["data=diabetes"], "b440438b6468"),
        (["data=digits", "model=cnn"], "32891e13a74e"),
        (["data=digits", "optimizer=adamw", "scheduler=cosine", "model.noise=0.1"], "30921d21a5b5"),
    ],
)
def test_a_new_key_changes_no_hash_of_before(overrides: list[str], expected: str) -> None:
    """Otherwise no run from before the key resumes. A new key belongs into YOUNGER."""
    assert compose(*overrides).hash() == expected


def test_the_hash_sees_every_key_but_the_place_of_the_data() -> None:
    base = compose()
    assert compose("data.root=/elsewhere").hash() == base.hash()
    assert compose("seed=1").hash() != base.hash()
    assert compose("optimizer.lr=0.4").hash() != base.hash()
    assert compose("trainer.class_weights=balanced").hash() != base.hash()
    assert compose("data.sampler=balanced").hash() != base.hash()
    assert compose("model.noise=0.1").hash() != base.hash()
    assert compose("augmentation.shift=1", "augmentation.anneal=0.1").hash() != base.hash()


def test_a_configuration_from_before_a_key_keeps_its_hash() -> None:
    config = compose("data=digits")
    old = config.to_primitives()
    del old["trainer"]["class_weights"], old["data"]["sampler"], old["checkpoint"]["keep"]
    del old["model"]["noise"], old["augmentation"]["anneal"]
    assert check(old) == config
    assert not {"class_weights", "sampler", "noise", "anneal"} & {
        key for part in config.identity_values().values() if isinstance(part, dict) for key in part
    }
