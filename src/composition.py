"""From a command line to checked configurations: every fault at once, before torch is imported.

Hydra stops at its first fault, advises `+` for a misspelt key and checks no value. So the
overrides are looked at first, each by itself; what is left is composed point by point and
checked against src/config.py.
"""

import copy
import functools
import itertools
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra._internal.config_loader_impl import get_overrides_dirname
from hydra._internal.utils import get_args_parser
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, flag_override
from omegaconf.errors import OmegaConfBaseException

from src import config as schema
from src.config import CONF, Config
from src.data.paths import path_faults
from src.errors import InputError
from src.extras import missing_loggers
from src.files import read_yaml
from src.process import place

if TYPE_CHECKING:
    from src.run import Run


LAUNCHERS = ("basic", "fused", "joblib")
LAUNCHER_KEYS = (
    "hydra/launcher",
    "hydra.launcher.max_trials",
    "hydra.launcher.halving",
    "hydra.launcher.n_jobs",
)


@dataclass(frozen=True)
class Command:
    """A checked command line; sweep_dir is None for a single run and for `--help` and its kin.

    `resumes` is a folder to go on in and its configuration: Hydra, which would compose another
    one and write it there, is left out. `points` are all that the command trains, in Hydra's
    order, without those that a sweeper chooses as it goes.
    """

    argv: list[str]
    sweep_dir: Path | None = None
    resumes: tuple[Path, Config] | None = None
    points: Sequence[Config] = ()

    @property
    def launches_ranks(self) -> bool:
        """Whether a run of it starts more processes; `auto` devices of a GPU may yet be one."""
        configs = [*self.points, *([self.resumes[1]] if self.resumes else [])]
        return place().by is None and any(
            config.trainer.devices not in (1, "auto") for config in configs
        )


def compose(*overrides: str) -> Config:
    """The configuration that `python -m src.train` with these overrides would train.

    Raises InputError with every fault at once.
    """
    points, faults = _points(overrides, sweep=False)
    if not faults:
        config, faults = schema.find_faults(points[0])
        if config is not None:
            return config
    raise InputError(schema.report(faults))


def load(path: Path) -> Config:
    """A configuration as a run folder holds it. Raises InputError when the file is none."""
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise InputError(f"{path}: is not a configuration")
    try:
        return schema.check(values)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def values_of(composed: DictConfig) -> dict[str, Any]:
    """A composed configuration as plain values, Hydra's own node left out."""
    nodes = {str(key): composed[key] for key in composed if key != "hydra"}
    return {
        key: OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
        for key, node in nodes.items()
    }


def check_command_line(argv: Sequence[str]) -> Command:
    """Checks what `python -m src.train` was given, every point of a sweep included.

    A sweep gets its folder fixed here, so that every later reader knows it. Raises InputError
    with every fault at once.
    """
    arguments = get_args_parser().parse_args(list(argv))
    asks = (arguments.help, arguments.hydra_help, arguments.info, arguments.cfg)
    if any(asks) or arguments.shell_completion or arguments.experimental_rerun:
        return Command(list(argv))
    resume = _given(arguments.overrides, "resume")
    if resume not in (None, "null", "auto"):
        assert resume is not None
        return _resume(Path(resume), arguments.overrides, arguments.multirun)
    points, faults = _points(arguments.overrides, arguments.multirun, arguments.config_dir)
    faulty: dict[str, list[str]] = {}
    for number, point in enumerate(points):
        config, point_faults = find_faults(point)
        for fault in point_faults:
            faulty.setdefault(fault, []).append(str(number))
        if config is not None and not faults and not faulty:
            check_machine(config)
    for fault, numbers in faulty.items():
        which = f"point{'s'[: len(numbers) > 1]} {', '.join(numbers)}: " if len(points) > 1 else ""
        faults.append(which + fault)
    if faults:
        raise InputError(schema.report(faults))
    configs = [schema.check(point) for point in points]
    folder = _named_folder(arguments.overrides, arguments.multirun, resume == "auto")
    if not arguments.multirun:
        if resume == "auto" and folder is not None and _run(folder).config_file.exists():
            _refuse_another(folder, configs[0])
            return Command(list(argv), resumes=(folder, configs[0]))
        return Command(list(argv), points=configs)
    if place().by is not None and _given(arguments.overrides, "hydra/launcher") is not None:
        raise InputError(
            f"hydra/launcher: with {place().by} the trials run one after the other; leave the "
            "launcher out, or start the command alone with trainer.devices=N"
        )
    if folder is not None:
        for number, config in enumerate(configs):
            _refuse_another(folder / str(number), config)
        return Command(list(argv), folder, points=configs)
    folder = timestamped("sweeps")
    return Command([*argv, f"hydra.sweep.dir={folder}"], folder, points=configs)


def find_faults(point: dict[str, Any]) -> tuple[Config | None, list[str]]:
    """Those of the schema, and what this machine has not: packages, the user's own data."""
    config, faults = schema.find_faults(point)
    if config is not None:
        faults += missing_loggers(config.logger.chosen)
    data = schema.find_data(point)  # which may be right where other sections are wrong
    if data is not None:
        faults += path_faults(data)
    return config, faults


def timestamped(base: str) -> Path:
    """A folder of its own for a run or sweep that begins now: base/<date>/<time to the µs>."""
    now = datetime.now()
    return Path(base, f"{now:%Y-%m-%d}", f"{now:%H-%M-%S.%f}")


def _given(overrides: Sequence[str], key: str) -> str | None:
    """The value that a key was given on the command line, if any."""
    given = [text.partition("=")[2] for text in overrides if text.startswith(f"{key}=")]
    return given[-1].strip("'\"") if given else None


def _named_folder(overrides: Sequence[str], sweep: bool, resume: bool) -> Path | None:
    """The folder that the command line names, if any.

    Raises InputError when it is in use and not to be gone on with, and when there is none to go
    on with.
    """
    key = "hydra.sweep.dir" if sweep else "hydra.run.dir"
    given = _given(overrides, key)
    if given is None or "${" in given:
        if resume:
            raise InputError(
                f"resume=auto needs a folder that is the same each time; type {key}=FOLDER too"
            )
        return None
    folder = Path(given)
    if resume or place().rank:  # rank 0 looks, before it writes there itself
        return folder
    for name in ("history.csv", "result.json", "results.csv", "multirun.yaml"):
        if (folder / name).exists():
            raise InputError(
                f"{key}={folder}: holds a {'sweep' if sweep else 'run'} already ({name}), which "
                f"would be overwritten; name another folder, or type resume={folder} to go on "
                "with it"
            )
    return folder


def _run(folder: Path) -> "Run":
    from src.run import Run  # it reads its configuration through this module

    return Run(folder)


def _refuse_another(folder: Path, config: Config) -> None:
    """Raises InputError when the folder holds a run of another configuration."""
    if not _run(folder).config_file.exists():
        return
    before = _run(folder).config
    found = schema.differences(before.to_primitives(), config.to_primitives())
    if found:
        raise InputError("\n  ".join([f"{folder}: holds another run", *found]))


def _resume(folder: Path, overrides: Sequence[str], multirun: bool) -> Command:
    """`resume=FOLDER`, of a run or a sweep, which goes on with its own configuration.

    Raises InputError when the folder is neither, and for every other key that differs from it.
    """
    from src.run import is_search, is_sweep, resume_command

    others = [text for text in overrides if not text.startswith("resume=")]
    if is_search(folder):
        raise InputError(f"resume={folder}: is a search; type {resume_command(folder)}")
    if is_sweep(folder):
        if others:
            raise InputError(
                f"resume={folder}: a sweep goes on as it was; leave out {' '.join(others)}"
            )
        return check_command_line(_sweep_command(folder))
    run = _run(folder)
    if multirun and run.config_file.exists():
        raise InputError(f"resume={folder}: is one run, not a sweep; leave out -m")
    if not run.config_file.exists():
        raise InputError(
            f"resume={folder}: is no folder of a run or sweep; it has neither .hydra/config.yaml "
            "nor multirun.yaml"
        )
    if is_sweep(folder.parent) and not run.ended:
        raise InputError(
            f"resume={folder}: is a trial of a sweep that has not ended; type "
            f"{resume_command(folder.parent)}"
        )
    config = run.config
    if others:
        config = _grown(folder, config, others)
    absent = missing_loggers(config.logger.chosen) + path_faults(config.data)
    if absent:
        raise InputError("\n  ".join([f"resume={folder}: cannot go on here", *absent]))
    check_machine(config)
    return Command([], resumes=(folder, config))


def _grown(folder: Path, config: Config, overrides: Sequence[str]) -> Config:
    """The configuration of a run with what the command line says of it, which may only be more
    epochs. What it does not say stays as it is, whatever the defaults are now."""
    said = compose(*overrides).to_primitives()
    unsaid = compose().to_primitives()
    values = config.to_primitives()
    for text in overrides:
        key, _, choice = text.lstrip("+").partition("=")
        if key in schema.GROUPS and values.get(key, {}).get("name") != said.get(key, {}).get(
            "name"
        ):
            raise InputError(f"resume={folder}: its {key} is not {choice}; leave out {text}")
    typed = {text.lstrip("+").partition("=")[0] for text in overrides}
    for section, before in values.items():
        if not isinstance(before, dict):
            if section in typed or said[section] != unsaid[section]:
                values[section] = said[section]
            continue
        for key in before.keys() & said[section].keys():
            changed = said[section][key] != unsaid[section].get(key)
            if changed or f"{section}.{key}" in typed:
                before[key] = said[section][key]
    found = schema.differences(config.to_primitives(), values)
    if found:
        raise InputError(
            "\n  ".join([f"resume={folder}: trainer.max_epochs alone may grow", *found])
        )
    return schema.check(values)


def _sweep_command(folder: Path) -> list[str]:
    """The command that made a sweep, from Hydra's record of it, to go on in its folder.

    Of Hydra's own keys only the launchers that are known pass: a record may come from a stranger,
    and Hydra imports what its configuration names.
    """
    record = read_yaml(folder / "multirun.yaml")
    try:
        given = record["hydra"]["overrides"]
        task, own = given["task"], given["hydra"]
        for texts in (task, own):
            if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                raise TypeError
    except (KeyError, TypeError):
        raise InputError(f"{folder / 'multirun.yaml'}: is not Hydra's record of a sweep") from None
    keys = [text.lstrip("+~").partition("=")[0] for text in task]
    strange = [key for key in keys if key.startswith("hydra") or "@" in key]
    launcher = [text for text in own if text.split("=")[0] in LAUNCHER_KEYS]
    named = _given(launcher, "hydra/launcher")
    if strange or named not in (None, *LAUNCHERS):
        raise InputError(
            f"{folder / 'multirun.yaml'}: names {', '.join(strange) or named}, which a sweep of "
            "this project does not"
        )
    task = [text for text in task if not text.startswith("resume=")]
    return ["-m", *task, "resume=auto", *launcher, f"hydra.sweep.dir={folder}"]


def check_machine(config: Config) -> None:
    """Whether the processes that there are suit the configuration; and torch is asked, but only
    where it names an accelerator that may be absent."""
    trainer, started = config.trainer, place()
    if started.by is None and trainer.num_nodes > 1:
        raise InputError(
            f"trainer.num_nodes={trainer.num_nodes}: every node starts processes of its own; type "
            f"torchrun --nnodes={trainer.num_nodes} --nproc-per-node={trainer.devices} ... "
            "-m src.train ... on each of them, or srun"
        )
    if started.by is not None:
        nodes = started.ranks // started.ranks_per_node
        devices = trainer.devices if trainer.devices != "auto" else started.ranks_per_node
        if (devices, trainer.num_nodes, trainer.max_restarts) != (started.ranks_per_node, nodes, 0):
            raise InputError(
                f"trainer.devices={trainer.devices} trainer.num_nodes={trainer.num_nodes} "
                f"trainer.max_restarts={trainer.max_restarts}: {started.by} has started "
                f"{started.ranks_per_node} process(es) on each of {nodes} node(s), and restarts "
                f"them itself; type trainer.devices={started.ranks_per_node} "
                f"trainer.num_nodes={nodes} trainer.strategy=ddp"
            )
    if config.trainer.accelerator in ("cuda", "mps"):
        from src.training.machine import resolve

        resolve(config.trainer)


def _points(
    overrides: Sequence[str], sweep: bool, config_dir: str | None = None
) -> tuple[list[dict[str, Any]], list[str]]:
    """The values of every point, from the overrides that are right, and the others' faults."""
    right: list[Override] = []
    faults: list[str] = []
    for text in overrides:
        override = parse(text, faults)
        if override is None:
            continue
        if override.is_sweep_override() and not sweep:
            faults.append(f"{text}: several values need a sweep; type -m too")
            continue
        fault = override_fault(override)
        if fault:
            faults.append(fault)
        else:
            right.append(override)
    # In the order of Hydra's sweeper, so that a point's number is its trial's.
    points, found = compose_points(itertools.product(*map(_texts, right)), config_dir)
    return points, faults + found


def parse(text: str, faults: list[str]) -> Override | None:
    """An override, or None and one more fault."""
    try:
        return OverridesParser.create().parse_override(text)
    except HydraException as error:
        faults.append(f"{text}: cannot be read ({str(error).splitlines()[0]})")
        return None


def compose_points(
    combinations: Iterable[Sequence[str]], config_dir: str | None = None
) -> tuple[list[dict[str, Any]], list[str]]:
    """The values of each combination of overrides that Hydra composes, and the others' faults.

    Only the choices of groups are composed once more for each of their combinations; plain values
    are set on a copy, which costs a thousandth of it.
    """
    searchpath = [f"hydra.searchpath=[file://{Path(config_dir).resolve()}]"] if config_dir else []
    points, faults = [], []
    failed: set[tuple[str, ...]] = set()
    for texts in combinations:
        chosen = tuple(text for text in texts if not _is_value(_key_of(text)))
        if chosen in failed:
            continue
        try:
            base = _base((*searchpath, *chosen))
        except (HydraException, OmegaConfBaseException) as error:
            failed.add(chosen)
            faults.append(" ".join(str(error).split()))
            continue
        try:
            points.append(_assign(base, [text for text in texts if text not in chosen]))
        except (HydraException, OmegaConfBaseException) as error:
            faults.append(str(error).splitlines()[0])
    return points, faults


@functools.lru_cache(64)
def _base(chosen: tuple[str, ...]) -> DictConfig:
    """What Hydra composes of choices of groups; kept for the batches of a search, and for tests."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra_compose("train", list(chosen))


def _key_of(text: str) -> str:
    return text.lstrip("+~").partition("=")[0]


def _is_value(key: str) -> bool:
    return not key.startswith("hydra") and "/" not in key and key not in schema.GROUPS


def _texts(override: Override) -> list[str]:
    """The override itself, or one for each value that it sweeps over."""
    if not override.is_sweep_override():
        return [override.input_line or ""]
    try:
        return [
            f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()
        ]
    except HydraException:  # an interval: the sweeper chooses, and each job is checked as it starts
        return []


def _assign(base: DictConfig, texts: Sequence[str]) -> dict[str, Any]:
    config = base.copy()
    OmegaConf.set_struct(config, False)
    for override in OverridesParser.create().parse_overrides(list(texts)):
        if override.is_delete():
            section, _, key = override.key_or_group.rpartition(".")
            OmegaConf.select(config, section).pop(key, None)
        else:
            OmegaConf.update(config, override.key_or_group, override.value(), merge=True)
    return values_of(config)


def override_fault(override: Override) -> str | None:
    key, text = override.key_or_group, override.input_line or ""
    if key.startswith("hydra"):
        return None
    if key not in schema.GROUPS:
        return schema.unknown_key(key, text.lstrip("+"))
    if override.is_delete() or override.package is not None:
        return f"{text}: a group is chosen by {key}=CHOICE"
    allowed = schema.options(key)
    for given in _texts(override) if override.is_sweep_override() else [text]:
        for choice in _choices(key, given.partition("=")[2]):
            if choice not in allowed and not (choice == "null" and key == "experiment"):
                hint = schema.did_you_mean(choice, allowed)
                return f"{key}={choice}: must be one of {', '.join(allowed)}{hint}"
    return None


def _choices(group: str, text: str) -> list[str]:
    """Of the loggers several may be chosen at once: logger=[tensorboard,mlflow]."""
    if group == "logger" and text.startswith("[") and text.endswith("]"):
        return [choice.strip() for choice in text[1:-1].split(",") if choice.strip()]
    return [text]


def main_argv() -> Command:
    """Checks sys.argv and puts the checked one in its place, for Hydra to read."""
    command = check_command_line(sys.argv[1:])
    sys.argv[1:] = command.argv
    return command


# --- many points -----------------------------------------------------------------------------


class SweepLoader:
    """Hydra's config loader, composing once for all points of a sweep that differ in values.

    Hydra composes every point anew, twice: a tenth of a second each time. A point that differs
    from an earlier one in plain values alone is a copy of it with those values set, which costs a
    fifteenth; and the point that the sweeper composed to see whether it can is the one that the
    launcher gets. Everything else is the wrapped loader's.
    """

    def __init__(self, loader: ConfigLoader) -> None:
        self._loader = loader
        self._templates: dict[tuple[str, ...], DictConfig] = {}
        self._tried: dict[tuple[str, ...], DictConfig] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def load_sweep_config(
        self, master_config: DictConfig, sweep_overrides: list[str]
    ) -> DictConfig:
        tried = self._tried.pop(tuple(sweep_overrides), None)
        if tried is not None:
            return tried
        point = self._compose(master_config, sweep_overrides)
        self._tried[tuple(sweep_overrides)] = point
        return point

    def _compose(self, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        overrides = OverridesParser.create().parse_overrides(sweep_overrides)
        values = [override for override in overrides if _is_value(override.key_or_group)]
        ours = set(Config.model_fields) <= set(master_config)
        special = any(
            override.is_add() or override.is_delete() or override.is_hydra_override()
            for override in overrides
        )
        if special or not ours:
            return self._loader.load_sweep_config(master_config, sweep_overrides)
        # The keys belong to what is alike: setting them is checked when the template is composed.
        key = (
            *(override.get_key_element() for override in values),
            *(text for text in sweep_overrides if not _is_value(_key_of(text))),
        )
        if key not in self._templates:
            composed = self._loader.load_sweep_config(master_config, sweep_overrides)
            self._templates[key] = composed
        point = copy.deepcopy(self._templates[key])
        with flag_override(point, ["struct", "readonly"], False):
            for override in values:
                OmegaConf.update(point, override.key_or_group, override.value(), merge=True)
            job = point.hydra.job
            point.hydra.overrides.task = list(sweep_overrides)
            naming = job.config.override_dirname
            job.override_dirname = get_overrides_dirname(
                overrides, naming.exclude_keys, naming.item_sep, naming.kv_sep
            )
        return point
