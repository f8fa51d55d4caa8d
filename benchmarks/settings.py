"""The settings on a benchmark's command line; checked before torch is imported."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import AfterValidator, ValidationError
from yaml import YAMLError

from kindling.config.faults import did_you_mean, options
from kindling.config.section import PositiveInt, Section
from kindling.system.errors import InputError, first_line

# Suites that share a module.
SHARED = {"batch_size": "sizes", "dataset_size": "sizes", "hidden_size": "sizes"}
MODULES = {path.stem for path in (Path(__file__).parent / "suites").glob("[!_]*.py")}
SUITES = sorted(MODULES - {*SHARED.values()} | {*SHARED})
USAGE = f"type python -m src.benchmark suite={'|'.join(SUITES)} [rounds=5] [data=mnist_or_digits]"


def _known(suite: str) -> str:
    if suite not in SUITES:
        raise ValueError(f"there is no suite {suite}{did_you_mean(suite, SUITES)}")
    return suite


class Settings(Section):
    suite: Annotated[str, AfterValidator(_known)]
    rounds: PositiveInt = 5
    data: str = "mnist_or_digits"
    full: bool = False  # suite=sweep: also stacks of 256 trials
    commands: bool = True  # suite=sweep: also whole commands, which take minutes each
    accelerators: list[Literal["cpu", "cuda", "mps"]] | None = None  # to compare; null: all
    every: PositiveInt = 1  # suite=real_tables: 5 leaves out four of five tables
    parts: list[str] | None = None  # of suite=gpu_check; null: all
    out: str = "gpu_check"  # the folder for the results of suite=gpu_check
    rehearse: bool = False  # suite=gpu_check: on the CPU, where no figure means anything


def read_settings(argv: Sequence[str]) -> Settings:
    """Reads key=value arguments. Raises InputError with all faults and the usage."""
    try:
        values = OmegaConf.to_container(OmegaConf.from_dotlist(list(argv)), resolve=True)
        settings = Settings.model_validate(values)
    except ValidationError as error:
        faults = [
            f"{detail['loc'][0]}: {detail['msg'].removeprefix('Value error, ')}"
            for detail in error.errors()
        ]
        raise InputError(f"{'; '.join(faults)}; {USAGE}") from None
    except (YAMLError, OmegaConfBaseException) as error:
        given = " ".join(argv)
        raise InputError(f"{given}: cannot be read ({first_line(error)}); {USAGE}") from None
    if settings.data not in options("data"):
        raise InputError(f"data={settings.data}: must be one of {', '.join(options('data'))}")
    return settings
