"""The files in .hydra/ of a run folder, which say what the run is. They are written only here."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import yaml

from src.config.schema import Config, with_batch_size
from src.runs.folder import Run
from src.runs.same_run import require_same
from src.system.files import write_durably

# The dumper of libyaml, if PyYAML has it, is many times as fast.
DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def begin(
    run: Run,
    config: Mapping[str, Any] | str,
    overrides: Sequence[str] | None = None,
    hydra: Mapping[str, Any] | None = None,
) -> None:
    """Makes a run folder: config.yaml, and overrides.yaml and hydra.yaml where they are given.

    `config` has plain values, or is YAML. A folder that has its config.yaml is left as it is:
    config.yaml is written last, each file durably.
    """
    if run.config_file.exists():
        return
    run.config_file.parent.mkdir(parents=True, exist_ok=True)
    if overrides is not None:
        write_durably(run.overrides_file, _yaml(overrides))
    if hydra is not None:
        write_durably(run.config_file.with_name("hydra.yaml"), _yaml(hydra))
    write_durably(run.config_file, config if isinstance(config, str) else _yaml(config))


def _yaml(values: Any) -> str:
    try:
        return str(yaml.dump(values, Dumper=DUMPER, sort_keys=False, allow_unicode=True))
    except UnicodeEncodeError:  # a path with bytes that are not UTF-8
        return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def claim(run: Run, config: Config, decide_batch_size: Callable[[], int]) -> Config:
    """Writes the configuration into the run's folder. Returns it with a number in place of
    data.batch_size=auto, saved or new. Raises InputError when the folder holds another run."""
    run.folder.mkdir(parents=True, exist_ok=True)
    before = require_same_config(run, config)
    if config.data.batch_size == "auto":
        decided = before is not None and before.data.batch_size != "auto"
        size = before.data.batch if before is not None and decided else decide_batch_size()
        config = with_batch_size(config, size)
    if before is None:
        begin(run, config.to_primitives())
    elif before.model_copy(update={"resume": config.resume}) != config:
        write_durably(run.config_file, _yaml(config.to_primitives()))
    return config


def require_same_config(run: Run, config: Config) -> Config | None:
    """The configuration that the folder holds, or None. Raises InputError for another run's."""
    if not run.config_file.exists():
        return None
    before = run.config
    refusal = f"{run.folder}: holds another run"
    require_same(before.to_primitives(), config.to_primitives(), refusal)
    return before
