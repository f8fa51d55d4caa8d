"""What extensions bring: models, data sets, losses, optimizers, schedules, measures, callbacks,
loggers, augmentations, executors, commands, configurations and readers of pictures.

An installed package names a module under the entry point group `kindling.extensions`. The module
registers what it brings when it is imported, and does not import torch: what needs torch is named
in a text, "package.module:name", and is imported when it is used. A configuration can choose what
is registered, by its name, and nothing else.
"""

import functools
import math
import re
import traceback
from collections.abc import Collection, Mapping
from contextvars import ContextVar
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Union, get_args

from kindling.config.executors import EXECUTORS, ExecutorEntry
from kindling.config.measures import (
    CLASSIFICATION,
    LOGGED,
    LOSSES,
    MEASURES,
    OUTPUTS,
    REGRESSION,
    SCORES,
    Measure,
    Outputs,
)
from kindling.config.section import (
    WHOLE,
    DataSection,
    LightningDataSection,
    ModelSection,
    OptimizerSection,
    SchedulerSection,
    Section,
    names_of,
)
from kindling.config.written import Values
from kindling.system.errors import InputError, first_line
from kindling.system.extras import LOGGERS

GROUP = "kindling.extensions"
# The extension in the same wheel. A checkout that is not installed has no entry points.
OWN = "kindling_digits.extension"

ORIGIN = re.compile(r"[A-Za-z0-9._-]{1,100} [A-Za-z0-9._+!-]{1,50}")  # a package and its version
CHOSEN = re.compile(r"[a-z._]{1,30}=[\w/.-]{1,100}")  # model=NAME
MOST_NAMED = 20
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
RESERVED = ("null", "true", "false", "nan", "inf", "auto")  # what Hydra or a key reads otherwise

SECTIONS: dict[str, list[type[Section]]] = {}  # by the group of the configuration
# By kind and name: where the code lies.
PLACES: dict[tuple[str, str], str] = {("pictures", WHOLE): "kindling.inference.pictures"}
ORIGINS: dict[str, str] = {}  # by what a configuration says, "model=mine": package and version
DATA_FOLDERS: dict[str, str] = {}  # by data.name, of what is downloaded
CONFIG_FOLDERS: list[Path] = []
LIGHTNING: set[str] = set()  # model=NAME of LightningModules, data=NAME of LightningDataModules

_origin = ContextVar("origin", default="")  # the package and version that registers now


def register_model(section: type[ModelSection], build: str, cost: str | None = None) -> None:
    """A family of models, `model=NAME`; NAME is the one value of `section.name`.

    `build` names a function (section, shape of a sample, outputs) that returns a torch module from
    features (N, *shape) to logits (N, outputs). `cost`, with the same arguments, returns the
    MemoryCost of models/closed_form.py; without it, a model is built and tried."""
    _register_section("model", section, build)
    if cost is not None:
        PLACES["cost", _name(section)] = cost


def register_lightning_module(
    section: type[ModelSection], build: str, monitors: Mapping[str, str] | None = None
) -> None:
    """A LightningModule, `model=NAME`, which Lightning trains with all its hooks.

    `build` names a function (section, shape of a sample, outputs) that returns the module; with a
    LightningDataModule, shape and outputs are None. `monitors` has "min" or "max" for each name
    that the module logs, that checkpoint.monitor may have, and that does not tell this itself, as
    `val_loss` and `val/acc_best` do."""
    _register_section("model", section, build)
    LIGHTNING.add(f"model={_name(section)}")
    for name, mode in (monitors or {}).items():
        measure = Measure(name, highest=math.inf, higher_is_better=mode == "max")
        if mode not in ("min", "max") or LOGGED.get(name, measure) != measure:
            raise _refused(
                f"the monitor {name} as {mode!r:.80}; it must be min or max, and the same for all "
                "modules"
            )
        LOGGED[name] = measure


def register_lightning_datamodule(section: type[LightningDataSection], build: str) -> None:
    """A LightningDataModule, `data=NAME`, for LightningModules. `build` names a function (section)
    that returns the data module."""
    _register_section("data", section, build)
    LIGHTNING.add(f"data={_name(section)}")


def is_lightning(group: str, name: object) -> bool:
    """Whether a choice of `model` or `data` is a LightningModule or a LightningDataModule."""
    return f"{group}={name}" in LIGHTNING


def register_data(section: type[DataSection], module: str, folder: str | None = None) -> None:
    """A data set, `data=NAME`. The module has the functions that data/sources/catalogue.py lists.
    `folder` is where the data are downloaded, below data.root."""
    _register_section("data", section, module)
    if folder is not None:
        DATA_FOLDERS[_name(section)] = folder


def register_optimizer(
    section: type[OptimizerSection], single: str, stacked: str | None = None
) -> None:
    """An optimizer, `optimizer=NAME`. `single` names a class as those of torch.optim, which gets
    the keys of the section that it knows. `stacked` names a subclass of StackedOptimizer
    (steps/optimizers.py); without it, the trials of a sweep train one after the other."""
    _register_section("optimizer", section, single)
    if stacked is not None:
        PLACES["stacked", _name(section)] = stacked


def register_scheduler(section: type[SchedulerSection], rate: str) -> None:
    """A schedule, `scheduler=NAME`. `rate` names a function (section, lr, epoch, epochs) that
    returns the learning rate of an epoch, counted from 0, after the warmup."""
    _register_section("scheduler", section, rate)


def register_loss(
    name: str,
    function: str,
    task: str = CLASSIFICATION,
    *,
    outputs: int = 1,
    numbers: str | None = None,
    standardised: bool = True,
) -> None:
    """A loss of a task, `task.loss=NAME`. `function` names a function of outputs (N, outputs) and
    labels that returns the loss of each sample, (N,). Labels are int64 classes (N,); of other
    tasks, float32 numbers (N, labels).

    The last three are of a regression. With several `outputs` for each number, the function gets
    (N, labels, outputs). `numbers` names a function that makes the predicted numbers (N, labels) of
    the outputs; without it, the outputs are the numbers. Labels are standardised by the training
    samples unless `standardised` is False."""
    if task not in SCORES:
        raise _refused(f"the loss {name} of task={task}, must be of {', '.join(SCORES)}")
    if name in LOSSES[task]:
        raise _refused(f"the loss {name}, which Kindling has")
    meaning = Outputs(outputs, numbers, standardised)
    if meaning != Outputs() and task != REGRESSION:
        raise _refused(
            f"the loss {name} of task={task} with outputs, numbers or standardised, which are of "
            f"{REGRESSION}"
        )
    if type(outputs) is not int or outputs < 1 or (outputs > 1 and numbers is None):
        raise _refused(
            f"the loss {name} with outputs={outputs!r:.80}; it must be a whole number from 1 on, "
            "and several outputs need numbers=, a function that makes a number of them"
        )
    _register(f"{task}.loss", name, function, f"task.loss={name}")
    if task == REGRESSION:
        OUTPUTS[name] = meaning
        if numbers is not None:
            PLACES["numbers", name] = numbers


def register_measure(name: str, measure: Measure) -> None:
    """A measure, `checkpoint.monitor=val/NAME`. `measure.tally` names a Tally, as those of
    tasks/measures.py."""
    if measure.tally is None:
        raise _refused(f"the measure {name} without a tally")
    _register("measure", name, measure.tally, f"checkpoint.monitor=val/{name}", MEASURES)
    MEASURES[name] = measure


def register_executor(name: str, entry: ExecutorEntry) -> None:
    """An executor of sweeps and searches, `hydra.launcher.executor=NAME`."""
    _register("executor", name, entry.build, present=EXECUTORS)
    EXECUTORS[name] = entry


def register_callback(name: str, build: str) -> None:
    """A callback, `callbacks=[NAME]`. `build` names a function that gets the checked configuration
    and returns a callback of Lightning."""
    _register("callback", name, build, f"callbacks={name}")


def register_logger(name: str, build: str) -> None:
    """A logger, `logger.own=[NAME]`. `build` names a subclass of RunLogger
    (training/loggers/base.py), or a function with the same arguments that returns one."""
    _register("logger", name, build, f"logger.own={name}", LOGGERS)


def register_augmentation(name: str, apply: str) -> None:
    """An augmentation, `augmentation.own=[NAME]`. `apply` names a function of the pictures of a
    batch, (N, C, H, W), and a torch.Generator of the CPU. It returns the changed pictures, in the
    same shape, and draws random numbers only from the generator."""
    _register("augmentation", name, apply, f"augmentation.own={name}")


def register_command(name: str, module: str) -> None:
    """`kindling NAME` calls `main` of the module; its docstring is the help."""
    _register("command", name, module)


def register_configs(folder: Path) -> None:
    """A folder as conf/, with a folder for each group."""
    CONFIG_FOLDERS.append(folder)


def register_pictures(name: str, module: str) -> None:
    """A module as inference/pictures.py, for data sets whose `pictures` is the name."""
    _register("pictures", name, module)


def location(kind: str, name: str) -> str | None:
    """Where the code of a name lies; None if no extension brings the name."""
    return PLACES.get((kind, name))


def resolve(kind: str, name: str) -> Any:
    """What an extension brings under this name. Raises InputError if the code is not there."""
    where = PLACES[kind, name]
    try:
        return resolve_name(where)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"{kind} {name}: {where} cannot be imported ({first_line(error)}); correct the text "
            "with which its extension registers it"
        ) from error


def names(kind: str) -> list[str]:
    return sorted(name for of, name in PLACES if of == kind)


def joined(group: str, own: Any) -> Any:
    """The union of our own sections of a group and those of extensions."""
    ours = {name for section in get_args(own) for name in names_of(section)}
    for section in SECTIONS.get(group, ()):
        if (name := _name(section)) in ours:
            raise InputError(
                f"{ORIGINS[f'{group}={name}']} registers {group}={name}, which Kindling has; "
                "choose another name"
            )
    return Union[own, *SECTIONS.get(group, ())]


def origins(values: Mapping[str, Any]) -> dict[str, str]:
    """What a configuration, as plain values, has from extensions: `model=mine: package version`."""
    v = Values(values)
    chosen = [f"{group}={v[f'{group}.name']}" for group in SECTIONS]
    chosen += [f"{key}={v[key]}" for key in ("task.loss", "checkpoint.monitor")]
    for key in ("callbacks", "augmentation.own", "logger.own"):
        chosen += [f"{key}={name}" for name in v[key] or ()]
    return {each: ORIGINS[each] for each in chosen if ORIGINS.get(each)}


def absent(recorded: object) -> list[str]:
    """A line for each of the `origins` of a run that no installed package brings. A stranger may
    have written them, so the lines have no command to type."""
    pairs = [*recorded.items()] if isinstance(recorded, Mapping) else []
    return [
        f"{what} comes from the package {origin}, which is not installed; if you trust its source, "
        "install the package"
        for what, origin in pairs[:MOST_NAMED]
        if what not in ORIGINS and ORIGIN.fullmatch(str(origin)) and CHOSEN.fullmatch(str(what))
    ]


def other_versions(recorded: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """A line for each part of a run that another version of a package brings now."""
    return [
        f"{what} came from {origin}, and comes from {now[what]} now"
        for what, origin in recorded.items()
        if now.get(what, origin) != origin
    ]


def _name(section: type[Section]) -> str:
    names = names_of(section) if "name" in section.model_fields else ()
    if len(names) != 1:
        raise _refused(
            f"{section.__name__}, whose key name has not one value; write "
            f'name: Literal["{section.__name__.lower()}"]'
        )
    return str(names[0])


def _register_section(group: str, section: type[Section], where: str) -> None:
    name = _name(section)
    _register(group, name, where, f"{group}={name}")
    SECTIONS.setdefault(group, []).append(section)


def _register(
    kind: str, name: str, where: str, chosen: str = "", present: Collection[str] = ()
) -> None:
    """`present` are names that are taken: Kindling's own, if no extension registered them."""
    if not NAME.fullmatch(name) or name.lower() in RESERVED:
        raise _refused(
            f"the {kind} {name!r:.80}; a name has a letter, then letters, digits, _ and -, and is "
            f"none of {', '.join(RESERVED)}"
        )
    if (kind, name) in PLACES:
        other = f", as {ORIGINS[chosen]} does" if ORIGINS.get(chosen) else " a second time"
        raise _refused(f"the {kind} {name}{other}; choose another name")
    if name in present:
        raise _refused(f"the {kind} {name}, which Kindling has")
    PLACES[kind, name] = where
    if chosen:
        ORIGINS[chosen] = _origin.get()


def _registers() -> str:
    return _origin.get() or "an extension"


def _refused(what: str) -> InputError:
    return InputError(f"{_registers()} registers {what}")


@functools.cache
def load_extensions() -> None:
    """Imports the modules of all extensions. Raises InputError for one that cannot be imported."""
    points = {point.value: point for point in entry_points(group=GROUP)}
    if OWN not in points and find_spec(OWN.partition(".")[0]):
        points[OWN] = EntryPoint("digits", OWN, GROUP)
    for module, point in sorted(points.items(), key=lambda pair: (pair[0] != OWN, pair[0])):
        _load(module, point)


def _load(module: str, point: EntryPoint) -> None:
    package = point.dist.name if point.dist else module.partition(".")[0]
    known = point.dist if module != OWN else None
    token = _origin.set(f"{package} {known.version}" if known else "")
    try:
        import_module(module)
    except InputError as error:
        raise InputError(f"{place_of(error, module)}{error}") from None
    except (Exception, SystemExit) as error:
        raise InputError(
            f"the extension {module} of {_registers()} cannot be imported: "
            f"{place_of(error, module)}{type(error).__name__}: {first_line(error)}; correct the "
            f"file, or type pip uninstall {package}"
        ) from error
    finally:
        _origin.reset(token)


def place_of(error: BaseException, module: str) -> str:
    """The file and the line of an extension, of which `module` is a part, where an error came from,
    `FILE:LINE: `; "" if not known."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: "
    top = module.partition(".")[0]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        # A project may have an environment within its folder.
        path = Path(re.split(r"[/\\]site-packages[/\\]", frame.filename)[-1])
        if top in (*path.parts, path.stem):
            return f"{frame.filename}:{frame.lineno}: "
    return ""
