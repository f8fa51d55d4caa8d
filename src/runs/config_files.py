"""The files in .hydra/ of a run folder, which say what the run is: written here alone, and compared
with the configuration of a run that is resumed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import yaml

from src.config.schema import Config, with_batch_size
from src.config.written import written
from src.runs.folder import Run
from src.system.errors import InputError
from src.system.files import write_durably

# The dumper of libyaml, if PyYAML has it, is many times as fast.
DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def begin(
    run: Run,
    config: Mapping[str, Any] | str,
    overrides: Sequence[str] | None = None,
    hydra: Mapping[str, Any] | None = None,
) -> None:
    """Makes a run folder with these files, unless it has its config.yaml, which is written last.
    `config` has plain values, or is YAML."""
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


def require_same(saved: Any, now: Any, refusal: str) -> None:
    """Raises InputError, with a line for each key that differs between two nested values. A resumed
    run may have more epochs (`trainer.max_epochs`). `resume` is not part of a run."""
    found = _differences(saved, now, "")
    if found:
        raise InputError("\n  ".join([refusal, *found]))


def _differences(saved: Any, now: Any, key: str) -> list[str]:
    if isinstance(saved, Mapping) and isinstance(now, Mapping):
        found = []
        for name in dict.fromkeys([*saved, *now]):
            if name != "resume":
                inner = f"{key}.{name}" if key else str(name)
                found += _differences(saved.get(name), now.get(name), inner)
        return found
    if key.endswith("trainer.max_epochs") and isinstance(saved, int) and now >= saved:
        return []
    if key.endswith("data.batch_size") and now == "auto":
        return []  # the saved number is used again
    return [] if saved == now else [f"{key}: it was {written(saved)}, now {written(now)}"]
