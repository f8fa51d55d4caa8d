"""A stranger's configuration chooses no place to write to."""

import os
import sqlite3
import types
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
import yaml
from pydantic import BaseModel

from kindling.config import schema
from kindling.config.compose import compose
from kindling.data.paths import has_data
from kindling.records import checkpoint
from kindling.records.bundle import open_bundle, write_bundle
from kindling.records.config_files import create_run_folder
from kindling.records.folder import SEARCH, Run
from kindling.records.foreign import WRITTEN, require_own_paths
from kindling.sweeps.command_line import check_command_line
from kindling.sweeps.confirmation import command as confirm_command
from kindling.sweeps.search import command as search_command
from kindling.system.errors import InputError
from tests.helpers.commands import SMALL
from tests.helpers.confirmations import pretended_sweep
from tests.helpers.runs import ended
from tests.helpers.tasks import HISTORY

# Every key with a free text: paths that are written to, paths that are only read, and other texts.
READ = ("data.path", "data.val_path", "start_from", "resume")
TEXTS = ("augmentation.own", "callbacks", "data.categories", "data.digest", "data.numbers",
         "data.target", "data.drop", "data.empty", "data.group", "data.weights",
         "freeze", "logger.own", "logger.project", "model.class_name", "name", "tags",
         "trainer.max_time")  # fmt: skip


def texts(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """The keys of a section that may have any text as a value."""
    for name, field in model.model_fields.items():
        yield from _texts(field.annotation, f"{prefix}{name}")


def _texts(kind: Any, key: str) -> Iterator[str]:
    if kind is str:
        yield key
    elif isinstance(kind, type) and issubclass(kind, BaseModel):
        yield from texts(kind, f"{key}.")
    elif get_origin(kind) in (Union, types.UnionType, list, dict, Annotated):
        for part in get_args(kind):
            yield from _texts(part, key)


def test_every_text_of_a_configuration_is_known_here() -> None:
    """A new key with a text must be put into one of these lists; a path that is written to into
    WRITTEN, which kindling/records/foreign.py checks."""
    assert {*texts(schema.Config)} == {*WRITTEN, *READ, *TEXTS}


OUTSIDE = {"logger.mlflow_file": "../taken/all.db", "data.root": "../taken"}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "taken").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("kindling.sweeps.resume_folder.missing_loggers", lambda _: [])
    monkeypatch.setattr("kindling.sweeps.confirmation.command.missing_loggers", lambda _: [])


def overrides(key: str) -> list[str]:
    """Of a configuration in which the key matters."""
    data = "data=digits" if key != "data.root" else "data=fashion_mnist"
    logger = ["logger.mlflow=true"] if key != "data.root" else []
    return [data, *SMALL[1:], *logger, f"{key}={OUTSIDE[key]}"]


def run_with(key: str) -> Path:
    run = Run(Path("runs/a"))
    create_run_folder(run, compose(*overrides(key)).to_primitives(), overrides(key))
    return run.folder


def sweep_with(key: str) -> Path:
    folder = Path("sweeps/a")
    folder.mkdir(parents=True)
    record = {"hydra": {"overrides": {"hydra": [], "task": [*overrides(key), "seed=1,2"]}}}
    (folder / "multirun.yaml").write_text(yaml.safe_dump(record))
    return folder


def search_with(key: str) -> Path:
    folder = Path("searches/a")
    folder.mkdir(parents=True)
    typed = [*overrides(key), "search.trials=2", "optimizer.lr=interval(0.1,0.2)"]
    (folder / SEARCH).write_text(yaml.safe_dump(typed))
    return folder


def resumed(folder: Path, *typed: str) -> object:
    return check_command_line([f"resume={folder}", *typed])


def searched(folder: Path, *typed: str) -> object:
    return search_command.check_command_line([f"resume={folder}", *typed])


@pytest.mark.parametrize("key", WRITTEN)
@pytest.mark.parametrize(
    ("make", "use"),
    [(run_with, resumed), (sweep_with, resumed), (search_with, searched)],
    ids=["run", "sweep", "search"],
)
def test_a_path_that_leads_out_is_typed_anew(
    make: Callable[[str], Path], use: Callable[..., Any], key: str
) -> None:
    folder = make(key)
    with pytest.raises(InputError) as caught:
        use(folder)
    (line,) = str(caught.value).splitlines()
    own = f"{key}={OUTSIDE[key]}"
    assert line.startswith(f"{own}: comes with {folder}, perhaps from a stranger")
    assert line.endswith(f"resume={folder} {own}")
    use(folder, own)
    with pytest.raises(InputError, match=f"{key}=elsewhere: {folder} has another; leave it out"):
        use(folder, f"{key}=elsewhere")
    assert list(Path("../taken").iterdir()) == []


@pytest.mark.parametrize("key", WRITTEN)
def test_a_confirmed_sweep(key: str) -> None:
    sweep = pretended_sweep(Path("s"), (overrides(key), 0.9), ((*overrides(key), "seed=1"), 0.8))
    with pytest.raises(InputError, match=r"comes with s, perhaps from a stranger.*null there$"):
        confirm_command.check_command_line(sweep, 1, 2)


def test_a_search_over_paths() -> None:
    folder = search_with("logger.mlflow_file")
    typed = yaml.safe_load((folder / SEARCH).read_text())
    typed[-3] = "logger.mlflow_file=choice(a.db,b.db)"
    (folder / SEARCH).write_text(yaml.safe_dump(typed))
    with pytest.raises(InputError, match=r"searches over logger\.mlflow_file"):
        searched(folder)


def test_a_repeated_bundle_has_its_own_file(tmp_path: Path) -> None:
    run = ended(Path("runs/a"), 0.5, *overrides("logger.mlflow_file")[3:])
    run.write_history([{**dict.fromkeys(HISTORY), "epoch": 0, "step": 0}])
    for path in (run.best_checkpoint, run.last_checkpoint):
        checkpoint.write({}, path)
    write_bundle([run.folder], Path("a.zip"))
    bundle = open_bundle(Path("a.zip"), tmp_path / "opened")
    assert bundle.config.logger.mlflow
    assert bundle.config.logger.mlflow_file is None
    assert bundle.config.data.root is None


@pytest.mark.parametrize("where", ["known", "unknown", "link", "no database", "pipe"])
def test_a_database_that_knows_the_run_is_the_users_own(where: str) -> None:
    """Nobody else can have put the run there, so its owner types nothing."""
    folder = run_with("logger.mlflow_file")
    file = Path(OUTSIDE["logger.mlflow_file"])
    identity = Run(folder).identity()
    if where == "link":  # to the identity of another run
        other = Run(Path("../taken/run"))
        identity = other.identity()
        (folder / ".identity").unlink()
        (folder / ".identity").symlink_to(other.identity_file.absolute())
    if where == "pipe":
        os.mkfifo(file)
    elif where == "no database":
        file.write_text("a text")
    else:
        with closing(sqlite3.connect(file)) as database:
            database.execute("CREATE TABLE tags (key TEXT, value TEXT)")
            told = identity if where != "unknown" else "0" * 32
            database.execute("INSERT INTO tags VALUES ('kindling.id', ?)", (told,))
            database.commit()
    config = Run(folder).config
    if where == "known":
        require_own_paths([config], [folder], "resume")
        return
    with pytest.raises(InputError, match="perhaps from a stranger"):
        require_own_paths([config], [folder], "resume")


def test_a_root_that_has_the_data_set_is_not_written_to() -> None:
    folder = run_with("data.root")
    there = Path("../taken/FashionMNIST/raw")
    there.mkdir(parents=True)
    assert not has_data(Run(folder).config.data)
    (there / "train-images-idx3-ubyte").touch()
    assert has_data(Run(folder).config.data)
    resumed(folder)


def test_paths_within_the_folder_pass() -> None:
    config = compose("data=digits", "logger.mlflow=true", "logger.mlflow_file=runs/a/x/all.db")
    require_own_paths([config], [Path("runs/a")])
    with pytest.raises(InputError):
        require_own_paths([config], [Path("runs/b")])
    Path("runs/a").mkdir(parents=True)
    Path("runs/a/x").symlink_to(Path("../taken").absolute())
    with pytest.raises(InputError):
        require_own_paths([config], [Path("runs/a")])
