"""What the tests share: small runs on the embedded digits, and the real MNIST where it is."""

import functools
import logging
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import src  # noqa: F401  # messages name a command as python -m src.NAME
from tests.helpers.commands import PYTHONPATH, SMALL, Command, Train, run_command

os.environ["PYTHONPATH"] = PYTHONPATH
# Of these small products the second thread saves nothing, and where other programs want the core
# too, each waits for the other: one test took a hundred times as long.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
from hypothesis import HealthCheck, settings
from lightning.fabric.utilities import registry

from kindling.config.compose import compose
from kindling.data.sources.published import MNIST_FILES
from kindling.records.folder import Run
from kindling.system import machine
from kindling.system.resources import cpu_count
from kindling.system.warm import asked
from kindling.training.fit import fit
from tests.helpers.browser import launched
from tests.helpers.once import made_once
from tests.helpers.sweeps import until
from tests.helpers.warm import Warm, prepared, shared

if TYPE_CHECKING:
    from playwright.sync_api import Browser


# A busy machine is no fault of an example.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
# A third of what a small run takes: each Trainer asks all packages for callbacks, each result git.
REGISTRY: Any = registry
REGISTRY.entry_points = functools.cache(REGISTRY.entry_points)
machine.commit = functools.cache(machine.commit)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--accelerator", choices=["cuda", "cpu"], default="cuda",
        help="where the tests marked gpu train; cpu: a rehearsal of all that needs no GPU",
    )  # fmt: skip
    parser.addoption(
        "--warm", action="store_true", help="every command goes through a warm process",
    )  # fmt: skip
    parser.addoption(
        "--until", type=float, metavar="TIME",
        help="seconds since 1970 after which no test begins; another time has other files first",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    os.environ["KINDLING_WARM"] = "on" if config.getoption("--warm") else "off"
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it
    for name in ("NO_COLOR", "FORCE_COLOR"):  # services that run tests may set them
        os.environ.pop(name, None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    until = config.getoption("--until")
    if until is not None:
        place = random.Random(until)  # the same order in all workers
        order = {path: place.random() for path in sorted({item.path for item in items})}
        items.sort(key=lambda item: order[item.path])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    until = item.config.getoption("--until")
    if until is not None and time.time() > until:
        pytest.skip("this share of the tests has had its time")


def pytest_xdist_auto_num_workers() -> int:
    """Of `-n auto`: with a worker for each core a quarter of the time was spent waiting, for ranks
    to meet, for a disk, for a process that was told to end."""
    return cpu_count() + 1


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """train(*overrides): a finished run of two epochs on the digits, unless told otherwise."""
    count = 0

    def run(*overrides: str) -> Run:
        nonlocal count
        count += 1
        return fit(compose(*SMALL, *overrides), tmp_path / f"run{count}")

    return run


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run, which no test writes into."""
    return Run(made_once(tmp_path_factory, "finished", partial(fit, compose(*SMALL))))


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    yield prepared()
    prepared().stop()
    shared().stop()


@pytest.fixture(scope="session", autouse=True)
def _warm_process(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """With --warm, a warm process for the commands of all tests that are started as users do."""
    if not pytestconfig.getoption("--warm"):
        yield
        return
    folder = tmp_path_factory.mktemp("runtime")
    os.environ["XDG_RUNTIME_DIR"] = str(folder)
    run_command(folder, "src.warm", "--for", "2h").check_returncode()
    until(lambda: asked(b"s"))
    yield
    state = asked(b"q")
    assert state is not None
    # Some tests have environments of their own, for which commands start for themselves.
    assert state["commands"] or state["refused"]


@pytest.fixture
def command(tmp_path: Path, warm: Warm, pytestconfig: pytest.Config) -> Command:
    """command(module, *arguments): `python -m` in an empty folder, the libraries at hand."""
    process = pytestconfig.getoption("--warm")

    def run(module: str, *arguments: str, **more: Any) -> "subprocess.CompletedProcess[str]":
        if process and not {"stdout", "limit"} & more.keys():
            return run_command(tmp_path, module, *arguments, **more)
        runner = shared() if more.keys() - {"stdout", "limit"} else warm
        return runner(tmp_path, module, *arguments, **more)

    return run


@pytest.fixture
def cold_command(tmp_path: Path) -> Command:
    """The same in a process of its own, exactly as a user's."""
    return partial(run_command, tmp_path)


@pytest.fixture(scope="session")
def mnist_root() -> Path:
    """The folder that DATA_ROOT names, or a skip where it has no MNIST."""
    root = Path(os.environ.get("DATA_ROOT", "data")).absolute()
    if not all((root / "MNIST" / "raw" / name).exists() for name in MNIST_FILES):
        pytest.skip("the real MNIST is absent: set DATA_ROOT to the folder that has MNIST/raw")
    return root


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    with launched() as found:
        yield found


@pytest.fixture(scope="session")
def default_run(mnist_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """`python -m src.train` on the real MNIST; nobody writes into it."""
    config = compose(f"data.root={mnist_root}", "trainer=cpu")
    return Run(made_once(tmp_path_factory, "default", partial(fit, config)))


@pytest.fixture(autouse=True)
def _quiet_loggers() -> Iterator[None]:
    """Lightning's loggers keep what a run sets; each test begins with the same."""
    names = ("lightning.pytorch", "lightning.fabric", "src")
    levels = {name: logging.getLogger(name).level for name in names}
    yield
    for name, level in levels.items():
        logger = logging.getLogger(name)
        if logger.level != level:  # a new level empties the caches of all loggers
            logger.setLevel(level)
