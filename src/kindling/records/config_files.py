"""Writes the files in .hydra/ of a run folder: configuration and overrides. When a run is resumed,
compares the saved configuration with the given one. No other module writes these files, except for
Hydra when its callbacks, or launchers and sweepers of others, run the jobs."""

import functools
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from kindling.config import registry
from kindling.config.faults import EXTENSIONS, remember_config
from kindling.config.schema import OLD_TASK, UNTRAINED, YOUNGER, Config, with_batch_size
from kindling.config.written import same_classes, shortened
from kindling.records.folder import Run
from kindling.system.errors import InputError
from kindling.system.files import make_folder, write_durably, write_first

# If PyYAML was built with libyaml, the dumper of libyaml is many times as fast.
DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
DIVIDED = 2  # levels of a configuration whose entries are converted one by one


def create_run_folder(
    run: Run, config: Mapping[str, Any], overrides: Sequence[str] | None = None
) -> None:
    """Creates the run folder with its files in .hydra/, unless it has them already."""
    if not run.config_file.exists():
        write_first(new_files(run, config, overrides))


def new_files(
    run: Run,
    config: Mapping[str, Any],
    overrides: Sequence[str] | None = None,
    hydra: str | None = None,
    text: str | None = None,
) -> dict[Path, str]:
    """The files to write into .hydra/ of a run, in this order, for `write_first`: config.yaml is
    the last, so where it exists the others do too. `config` has plain values; `text` is its YAML if
    that is known, `hydra` that of Hydra's section."""
    files = {} if overrides is None else {run.overrides_file: yaml_text(overrides)}
    if hydra is not None:
        files[run.config_file.with_name("hydra.yaml")] = hydra
    if origins := registry.origins(config):
        files[run.config_file.with_name(EXTENSIONS)] = yaml_text(origins)
    return files | {run.config_file: yaml_text(config) if text is None else text}


def yaml_text(values: Any, dumper: Any = DUMPER) -> str:
    try:
        return str(yaml.dump(values, Dumper=dumper, sort_keys=False, allow_unicode=True))
    except UnicodeEncodeError:  # a path with bytes that are not UTF-8
        return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def job_files(
    folder: Path, values: Mapping[str, Any], section: Mapping[str, Any], checked: Config
) -> dict[Path, str]:
    """The files to write into the run folder of a job, from plain values: Hydra's section of its
    configuration, and the others, from which `checked` was made."""
    text = hydra_yaml(values)
    remember_config(text.encode(), values, checked)
    overrides = section["overrides"]["task"]
    return new_files(Run(folder), values, overrides, hydra_yaml({"hydra": section}), text)


class _Dumper(DUMPER):  # type: ignore[misc]
    """Writes the same text as OmegaConf.to_yaml, but with libyaml."""


def _text_node(dumper: Any, text: str) -> Any:
    """A text, in quotes if OmegaConf would read another value."""
    try:
        float(text)
        quoted = True
    except ValueError:
        quoted = text in ("y", "Y", "n", "N")  # PyYAML quotes the other words
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="'" if quoted else None)


_Dumper.add_representer(str, _text_node)


def hydra_yaml(values: Mapping[str, Any], *parents: str) -> str:
    """The text of a section within its parents, as Hydra writes it, without the lines of the
    parents."""
    return "".join(_text(pickle.dumps((name, value, parents))) for name, value in values.items())


@functools.lru_cache(1024)  # the jobs of a sweep have most sections and entries in common
def _text(pickled: bytes) -> str:
    name, value, parents = pickle.loads(pickled)
    if isinstance(value, Mapping) and value and len(parents) < DIVIDED:
        head = _text(pickle.dumps((name, 0, parents)))
        return head.rpartition(":")[0] + ":\n" + hydra_yaml(value, *parents, name)
    section = {name: value}
    for parent in reversed(parents):
        section = {parent: section}
    return yaml_text(section, _Dumper).split("\n", len(parents))[-1]


def claim(run: Run, config: Config, decide_batch_size: Callable[[], int]) -> Config:
    """Writes the configuration into the run's folder, and returns it. In place of
    data.batch_size=auto, it has the number in the folder, or else that of `decide_batch_size`.
    A run that has ended, and is to train on, keeps its own until the first step, see `History`.
    Raises InputError when the folder holds another run or a committee, or cannot be trained on."""
    make_folder(run.folder)
    run.require_single()
    saved = require_same_config(run, config)
    if saved is not None and saved.trainer.max_epochs < config.trainer.max_epochs:
        run.require_state("train it in a new folder")
    if config.data.batch_size == "auto":
        size = saved.data.batch_size if saved else "auto"
        config = with_batch_size(config, decide_batch_size() if size == "auto" else int(size))
    if saved is None:  # Hydra and sweeps have written the files of their runs before
        create_run_folder(run, config.to_primitives(), _overrides(run, config))
        require_same_config(run, config)  # another process may have been first
    elif run.ended_as(config) or not run.ended:
        adopt(run, config)
    return config


def adopt(run: Run, config: Config) -> None:
    """Writes the configuration into the folder of a run that has another, `resume` apart."""
    saved = run.config
    if saved.to_primitives() | {"resume": config.resume} != config.to_primitives():
        write_durably(run.overrides_file, yaml_text(_overrides(run, config, saved)))
        write_durably(run.config_file, yaml_text(config.to_primitives()))


def _overrides(run: Run, config: Config, saved: Config | None = None) -> list[str]:
    """The overrides of a run, which had those in its folder when its configuration was `saved`."""
    from kindling.config.compose import changed_overrides, overrides_of  # imports Hydra

    if saved is None or not run.overrides_file.exists():
        return overrides_of(config)
    return changed_overrides(run.override_texts(), saved, config)


def require_same_config(run: Run, config: Config) -> Config | None:
    """The configuration in the folder, or None. Raises InputError when it differs from `config`."""
    if not run.config_file.exists():
        return None
    refusal = f"{run.folder}: holds a run with other settings; type its values, or another folder"
    saved = run.config
    require_same(saved.to_primitives(), config.to_primitives(), refusal)
    return saved


def require_same(saved: Any, now: Any, refusal: str) -> None:
    """Raises InputError with `refusal` and a line for each key that differs between two nested
    values. A resumed run may have more epochs, and `auto` as batch size. Ignores UNTRAINED and
    `checkpoint.keep`, which do not change the training."""
    if saved != now and (lines := _differences(saved, now, "")):
        raise InputError("\n  ".join([refusal, *lines]))


def require_same_digest(file: Path, path: str | None, saved: object, now: object) -> None:
    """Raises InputError if the user's own data, of data.path, have changed since the training that
    wrote the checkpoint."""
    if saved != now:
        data = "its data" if path is None else f"data.path={path}"
        raise InputError(
            f"{file}: the content of {data} has changed since it was trained; "
            "train a new model, or restore the former content"
        )


def _differences(saved: Any, now: Any, key: str) -> list[str]:
    if isinstance(saved, Mapping) and isinstance(now, Mapping):
        lines = []
        for name in dict.fromkeys([*saved, *now]):
            inner = f"{key}.{name}" if key else str(name)
            if inner.removeprefix("config.") not in (*UNTRAINED, "checkpoint.keep"):
                lines += _differences(saved.get(name), now.get(name), inner)
        return lines
    if key.endswith("trainer.max_epochs") and isinstance(saved, int) and now >= saved:
        return []
    if key.endswith("data.batch_size") and now == "auto":
        return []  # the saved number is used again
    if key == "labels" and isinstance(saved, list) and same_classes(saved, now):
        return []
    absent: dict[str, Any] = {f"config.{part}.{name}": value for part, name, value in YOUNGER}
    absent["config.task"] = OLD_TASK.model_dump()
    if saved is None and now in ([], absent.get(key)):  # a key that is younger than the run
        return []
    return [] if saved == now else [f"{key}: it was {shortened(saved)}, now {shortened(now)}"]
