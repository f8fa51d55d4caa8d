"""What a benchmark's command line may say; checked before torch is imported."""

from collections.abc import Sequence
from typing import Literal, get_args

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError
from yaml import YAMLError

from src.config.schema import PositiveInt, Section, options
from src.system.errors import InputError, first_line

Suite = Literal[
    "loops", "sweep", "search", "checkpoints", "report", "busy", "devices", "precision",
    "batch_size", "hidden_size", "dataset_size", "transfer", "augmentation", "ranks", "graph",
    "gpu_check",
]  # fmt: skip
USAGE = (
    f"type python -m src.benchmark suite={'|'.join(get_args(Suite))} [rounds=5] "
    "[data=mnist_or_digits]"
)


class Settings(Section):
    suite: Suite
    rounds: PositiveInt = 5
    data: str = "mnist_or_digits"
    full: bool = False  # sweep: 256 trials too
    commands: bool = True  # sweep: whole commands too, minutes each


def read_settings(argv: Sequence[str]) -> Settings:
    """key=value arguments. Raises InputError with every fault and the usage."""
    try:
        values = OmegaConf.to_container(OmegaConf.from_dotlist(list(argv)), resolve=True)
        settings = Settings.model_validate(values)
    except ValidationError as error:
        faults = [f"{detail['loc'][0]}: {detail['msg']}" for detail in error.errors()]
        raise InputError(f"{'; '.join(faults)}; {USAGE}") from None
    except (YAMLError, OmegaConfBaseException) as error:
        given = " ".join(argv)
        raise InputError(f"{given}: cannot be read ({first_line(error)}); {USAGE}") from None
    if settings.data not in options("data"):
        raise InputError(f"data={settings.data}: must be one of {', '.join(options('data'))}")
    return settings
