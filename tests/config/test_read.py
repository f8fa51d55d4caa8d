"""Configurations in files."""

from pathlib import Path

import pytest
import yaml

from src.config.compose import compose
from src.config.read import read_config
from src.system.errors import InputError


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
