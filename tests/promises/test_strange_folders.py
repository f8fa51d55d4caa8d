"""Folders that strangers sent, or that a slip of the keyboard names: nothing outside is written,
nothing hangs, and Hydra gets nothing that was not looked at."""

import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kindling.config.compose import compose
from kindling.config.faults import known_keys
from kindling.config.overrides import parse
from kindling.config.schema import GROUPS
from kindling.inference.inputs import read_inputs
from kindling.records.bundle import write_bundle
from kindling.records.folder import Run
from kindling.records.loading import open_trained
from kindling.records.sweep_folder import Sweep
from kindling.reports.page import write_report
from kindling.sweeps.command_line import check_command_line
from kindling.sweeps.resume_folder import LAUNCHER_KEYS
from kindling.system.errors import InputError
from kindling.system.files import (
    HARD_LINKS_ALLOWED,
    append_text,
    lock_or_fail,
    open_regular,
    read_bounded,
    replacing,
    require_contained,
    wait_for_lock,
    write_durably,
)
from kindling.training.fit import fit
from tests.helpers.commands import SMALL, Command
from tests.helpers.data_files import write_pictures

TINY = (*SMALL, "data=toy", "model.hidden_sizes=[3]")
PATIENCE = 120  # seconds, for what must not wait at all


@pytest.fixture(autouse=True)
def _nothing_hangs() -> Iterator[None]:
    def end(*_: Any) -> None:
        raise AssertionError("it waits for a pipe")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(PATIENCE)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fit(compose(*TINY), tmp_path_factory.mktemp("base") / "run")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """What is the user's: a file, and a folder with files of the names that a run has."""
    folder = tmp_path / "outside"
    (folder / "folder" / "checkpoints").mkdir(parents=True)
    (folder / "file").write_text("mine")
    for name in ("config.yaml", "last.ckpt", ".lock", "curves.svg", "train.log"):
        (folder / "folder" / name).write_text("mine")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def plant(kind: str, path: Path, outside: Path) -> None:
    """In place of what is there."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    match kind:
        case "link":
            path.symlink_to(outside / "file")
        case "link to a folder":
            path.symlink_to(outside / "folder")
        case "link to nothing":
            path.symlink_to(outside / "new")
        case "hard link":
            path.hardlink_to(outside / "file")
        case "pipe":
            os.mkfifo(path)


KINDS = ("link", "link to a folder", "link to nothing", "hard link", "pipe")
OF_A_RUN = (
    ".hydra", ".hydra/config.yaml", ".hydra/overrides.yaml", ".identity", "history.csv",
    ".history.csv.part", "result.json", ".result.json.part", "train.log", "checkpoints",
    "checkpoints/.lock", "checkpoints/last.ckpt", "checkpoints/best.ckpt",
    "checkpoints/previous.ckpt", "checkpoints/.last.ckpt.part", "tensorboard", "wandb", "mlflow.db",
)  # fmt: skip
OF_A_SWEEP = (
    ".lock", ".stacks", "results.csv", ".results.csv.part", ".multirun.yaml.part", "0", "0/.hydra",
    "0/.hydra/config.yaml", "0/checkpoints", "0/checkpoints/.lock", "0/train.log", "report.html",
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OF_A_RUN)
def test_a_run_folder_that_leads_out_is_not_written_into(
    name: str, kind: str, base: Run, outside: Path, tmp_path: Path
) -> None:
    run = Run(tmp_path / "run")
    shutil.copytree(base.folder, run.folder)
    plant(kind, run.folder / name, outside)
    before = contents(outside)
    more = compose(*TINY, "trainer.max_epochs=3")
    harmless = kind == "hard link" and name.endswith(HARD_LINKS_ALLOWED)
    for action in (
        lambda: check_command_line([f"resume={run.folder}", "trainer.max_epochs=3"]),
        lambda: check_command_line([*TINY, "resume=auto", f"hydra.run.dir={run.folder}"]),
        lambda: fit(more, run.folder, resume=True),
        lambda: write_bundle([run.folder], tmp_path / "run.zip"),
    ):
        with suppress(InputError) if harmless else pytest.raises(InputError):
            action()
    with suppress(InputError):
        open_trained(run.folder)
    assert contents(outside) == before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", ["report.html", ".report.html.part", "report", "history.csv", "result.json"]
)
def test_a_report_writes_into_its_folder_alone(
    name: str, kind: str, base: Run, outside: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(base.folder, folder)
    plant(kind, folder / name, outside)
    before = contents(outside)
    for force in (False, True):
        with suppress(InputError):
            write_report([folder], force=force, models=False)
    assert contents(outside) == before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OF_A_SWEEP)
def test_a_sweep_that_leads_out_is_not_written_into(
    name: str, kind: str, outside: Path, tmp_path: Path
) -> None:
    sweep = tmp_path / "sweep"
    sweep.mkdir()
    record = {"hydra": {"overrides": {"hydra": [], "task": ["seed=1,2", "data=toy"]}}}
    (sweep / "multirun.yaml").write_text(yaml.safe_dump(record))
    plant(kind, sweep / name, outside)
    before = contents(outside)
    harmless = kind == "hard link" and name.endswith(HARD_LINKS_ALLOWED)
    typed = ["-m", "seed=1,2", "resume=auto", f"hydra.sweep.dir={sweep}"]
    for argv in ([f"resume={sweep}"], typed):
        with suppress(InputError) if harmless else pytest.raises(InputError):
            check_command_line(argv)
    if name == ".lock":
        with pytest.raises(InputError):
            Sweep(sweep).write_results()
    assert contents(outside) == before


def test_links_and_names_within_a_folder_are_its_own(base: Run, tmp_path: Path) -> None:
    """W&B links to its newest run and its logs; a run killed between two checkpoints has one under
    two names."""
    folder = tmp_path / "run"
    shutil.copytree(base.folder, folder)
    (folder / "wandb" / "run-1").mkdir(parents=True)
    (folder / "wandb" / "latest-run").symlink_to("run-1")
    (folder / "wandb" / "run-1" / "debug-core.log").symlink_to(tmp_path / "cache.log")
    (folder / "linked.csv").symlink_to("history.csv")
    (folder / "checkpoints" / "previous.ckpt").unlink(missing_ok=True)
    (folder / "checkpoints" / "previous.ckpt").hardlink_to(folder / "checkpoints" / "last.ckpt")
    (tmp_path / "linked").symlink_to(folder)
    require_contained(folder)
    require_contained(tmp_path / "linked")
    require_contained(tmp_path / "absent")
    assert fit(compose(*TINY, "trainer.max_epochs=3"), folder, resume=True).ended


def _replaced(path: Path) -> None:
    with replacing(path) as part:
        assert part.read_bytes() == b""
        part.write_text("new")


def _locked(path: Path) -> None:
    with lock_or_fail(path):
        pass


def _waited_for(path: Path) -> None:
    with wait_for_lock(path):
        pass


WRITERS: dict[str, Callable[[Path], None]] = {
    "write": lambda path: write_durably(path, "new"),
    "replace": _replaced,
    "append": lambda path: append_text(path, "new\n"),
    "lock": _locked,
    "wait": _waited_for,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["file", ".file.part"])
@pytest.mark.parametrize("writer", WRITERS)
def test_no_writer_goes_through_a_link_or_waits(
    writer: str, where: str, kind: str, outside: Path, tmp_path: Path
) -> None:
    """A replaced file takes the place of a link; what is written in place refuses it."""
    folder = tmp_path / "folder"
    folder.mkdir()
    plant(kind, folder / where, outside)
    before = contents(outside)
    wrote = False
    with suppress(InputError):
        WRITERS[writer](folder / "file")
        wrote = True
    assert contents(outside) == before
    in_place = writer in ("append", "lock", "wait")
    assert wrote == (where != "file" or not (in_place or kind in ("pipe", "link to a folder")))
    assert where == "file" or in_place or not os.path.lexists(folder / where)


@pytest.fixture
def strange_files(tmp_path: Path) -> Iterator[dict[str, Path]]:
    folder = tmp_path / "strange"
    folder.mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "device").symlink_to("/dev/zero")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "socket"))
    yield {
        "a named pipe": folder / "pipe", "a device": folder / "device",
        "a socket": folder / "socket", "a folder": folder,
    }  # fmt: skip
    listener.close()


def test_regular_files_alone_are_read(strange_files: dict[str, Path], tmp_path: Path) -> None:
    for kind, path in strange_files.items():
        for read in (open_regular, lambda path: read_bounded(path, 10)):
            with pytest.raises(InputError, match=f"is {kind}, must be a file"):
                read(path)
        for data in ("csv", "npz"):
            target = ["data.target=y"] if data == "csv" else []
            with pytest.raises(InputError, match=r"data\.path="):
                check_command_line([f"data={data}", f"data.path={path}", *target])
        for suffix in ("csv", "npz", "png"):
            named = tmp_path / f"{kind}.{suffix}"
            named.symlink_to(path)
            with pytest.raises(InputError):
                read_inputs([named])
    os.mkfifo(tmp_path / "pictures.png")
    with pytest.raises(InputError):
        read_inputs([tmp_path / "pictures.png"])


def test_a_pipe_among_pictures_is_a_broken_one(tmp_path: Path) -> None:
    write_pictures(tmp_path, {"a": 4, "b": 4})
    os.mkfifo(tmp_path / "a" / "z.png")
    overrides = (*SMALL, "data=image_folder", f"data.path={tmp_path}", "model.hidden_sizes=[3]")
    with pytest.raises(InputError, match=r"z\.png: is a named pipe, must be a file"):
        fit(compose(*overrides), tmp_path / ".run")


def test_what_a_file_has_is_what_reading_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not what it may have at most."""
    import tracemalloc

    (tmp_path / "small").write_bytes(b"small")
    tracemalloc.start()
    assert read_bounded(tmp_path / "small", 2**34) == b"small"
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
    with pytest.raises(InputError, match="more than 4 bytes"):
        read_bounded(tmp_path / "small", 4)


# --- what reaches Hydra ------------------------------------------------------------------------

KEYS = st.sampled_from(
    [
        "seed", "data", "model", "experiment", "optimizer.lr", "trainer.max_epochs", "resume",
        "hydra", "hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir", "hydra.mode",
        "hydra.searchpath", "hydra.callbacks.a._target_", "hydra/launcher", "hydra/sweeper",
        "hydra.launcher._target_", "hydra.launcher.max_trials", "hydra/launcher@hydra.launcher",
        "data@hydra", "data@hydra.launcher", "model@_global_", "unknown", "optimizer", "",
        "--experimental-rerun", "--config-dir", "--config-name", "--config-path", "--resolve",
        "--cfg", "-cn", "-m", "--", "@hydra", "hydra.job.chdir",
    ]
)  # fmt: skip
VALUES = st.sampled_from(
    [
        "1", "1,2", "job", "os.mkdir", "/tmp", "fused", "evil", "toy", "mlp", "null", "'1'", '"a"',
        "[file:///tmp]", "{run:{dir:/tmp}}", "{_target_:os.mkdir}", "${oc.env:HOME}", "${seed}",
        "range(0,1000000000)", "choice(a,b)", "???", "it's", "a b", "x=y", "\t", "\0", "[" * 30,
        "1" * 5000, "glob(*)", "zip(1,2)", "zip(mlp)", "zip(1,zip(2))", "[zip(1)]", "zip(range(9))",
    ]
)  # fmt: skip
SPELT = st.builds(
    lambda before, key, equals, value: f"{before}{key}{equals}{value}",
    st.sampled_from(["", "", "+", "++", "~", " ", "+++", "'", "--"]),
    KEYS,
    st.sampled_from(["=", "=", "=", "", " = ", ":="]),
    VALUES | st.text(max_size=5),
)
FUZZ = settings(
    max_examples=4000 if os.environ.get("TORTURE") else 100,
    derandomize=not os.environ.get("TORTURE"),
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@pytest.mark.slow
@FUZZ
@given(task=st.lists(SPELT, max_size=3), own=st.lists(SPELT, max_size=3))
def test_a_record_hands_on_overrides_of_known_keys_alone(
    task: list[str], own: list[str], tmp_path: Path
) -> None:
    record = {"hydra": {"overrides": {"task": task, "hydra": own}}}
    (tmp_path / "multirun.yaml").write_text(yaml.safe_dump(record))
    try:
        argv = check_command_line([f"resume={tmp_path}"]).argv
    except InputError:
        return
    assert argv[0] == "--multirun"
    assert argv[-1] == f"hydra.sweep.dir={tmp_path}"
    for text in argv[1:-1]:
        override = parse(text, [])
        assert override is not None
        assert override.package is None
        if text != "hydra/sweeper=zip":
            assert override.key_or_group in (*known_keys(), *GROUPS, *LAUNCHER_KEYS)
    launchers = [text for text in argv if "hydra/launcher=" in text]
    assert all(text.rpartition("=")[2].strip("'\" ") in ("fused", "basic", "joblib")
               for text in launchers)  # fmt: skip


SPELLINGS = (
    "hydra.{mode}.dir={folder}", "+hydra.{mode}.dir={folder}", "++hydra.{mode}.dir={folder}",
    "hydra.{mode}.dir='{folder}'", '++hydra.{mode}.dir="{folder}"', "hydra.{mode}.dir= {folder} ",
    "hydra.{mode}={{dir:{folder}}}", "++hydra.{mode}={{dir:'{folder}'}}",
    "hydra={{{mode}:{{dir:{folder}}}}}", "++hydra={{{mode}:{{dir:{folder}}}}}",
    "hydra.{mode}.dir=${{oc.env:FOLDER}}", "hydra.{mode}.dir={folder}/${{seed}}/..",
    "hydra.{mode}.dir=${{hydra.sweep.subdir}}", "hydra.{mode}.dir=${{logger.project}}",
    "hydra.{mode}.dir=${{oc.decode:${{oc.env:FOLDER}}}}", "hydra.mode=MULTIRUN",
    "hydra.output_subdir={folder}/.hydra", "hydra.sweep.subdir={folder}", "hydra.job.chdir=true",
)  # fmt: skip


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("mode", ["run", "sweep"])
def test_a_folder_in_use_is_refused_however_it_is_spelt(
    spelling: str, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "kept"
    (folder / ".hydra").mkdir(parents=True)
    (folder / ".hydra" / "config.yaml").write_text("mine")
    monkeypatch.setenv("FOLDER", str(folder))
    text = spelling.format(mode=mode, folder=folder)
    extra = [f"hydra.sweep.subdir={folder}"] if "sweep.subdir}" in text else []
    if "logger.project" in text:
        monkeypatch.chdir(tmp_path)
        extra = ["logger.project=kept"]
    if text == "hydra.mode=MULTIRUN" and mode == "sweep":
        text = "hydra.mode=RUN"
    with pytest.raises(InputError):
        check_command_line([*(["-m"] if mode == "sweep" else []), text, *extra])


@pytest.mark.parametrize("name", ["it's", 'a"b', "a,b", "a b", "[a]", "null", "1", "a=b", "ü", "{"])
def test_a_folder_may_have_any_name(name: str, base: Run, tmp_path: Path) -> None:
    """Also one that Hydra's grammar reads as something else."""
    run = tmp_path / "runs" / name
    shutil.copytree(base.folder, run)
    found = check_command_line([f"resume={run}", "trainer.max_epochs=3"])
    assert found.resumes is not None
    assert found.resumes[0] == run
    sweep = tmp_path / "sweeps" / name
    sweep.mkdir(parents=True)
    record = {"hydra": {"overrides": {"hydra": [], "task": ["seed=1,2", "data=toy"]}}}
    (sweep / "multirun.yaml").write_text(yaml.safe_dump(record))
    command = check_command_line([f"resume={sweep}"])
    assert command.sweep_dir == sweep
    told = parse(command.argv[-1], [])
    assert told is not None
    assert told.value() == str(sweep)


def test_a_folder_is_fixed_before_hydra_is_asked() -> None:
    argv = check_command_line(
        ["hydra.run.dir=${hydra:job.name}/${seed}/${hydra.job.override_dirname}", "seed=3"]
    ).argv
    assert (
        argv[-1] == "hydra.run.dir=train/3/seed=3" or argv[-1] == "hydra.run.dir='train/3/seed=3'"
    )
    sweep = check_command_line(["-m", "seed=1,2", "hydra.sweep.dir=all/${model.name}"])
    assert sweep.sweep_dir == Path("all/mlp")
    assert sweep.argv[-1] == "hydra.sweep.dir=all/mlp"


@pytest.mark.parametrize(
    ("argv", "answer"),
    [
        (["--experimental-rerun=x.pickle"], "--experimental-rerun: the file is a pickle"),
        (["--experimental-r", "x.pickle"], "--experimental-rerun: the file is a pickle"),
        (["--config-name=other"], "--config-name: conf/train.yaml is the one configuration"),
        (["--config-path=/tmp"], "--config-path: conf/train.yaml is the one configuration"),
        (["--config-dir=/nowhere"], "--config-dir=/nowhere: there is no such folder"),
        (["--resolve", "seed=1"], "--resolve: goes with --cfg"),
        (["-m", "--cfg", "job"], "--multirun, --cfg: exclude each other"),
        (["--cfg", "job", "optimizer.lr=-1"], "optimizer.lr=-1: must be greater than 0"),
        (["--cfg", "job", "--resolve", "model.hiden=1"], "model.hiden=1: unknown key"),
        (["hydra.searchpath=[file:///tmp]"], "type --config-dir=FOLDER"),
        (["+optimizer.lr=1"], "+optimizer.lr=1: the key is there already; type optimizer.lr=1"),
        (["+model=mlp"], "a group is chosen by model=CHOICE"),
        (["-m", "hydra.sweep.dir=a,b"], "have one value for a whole sweep"),
        (["-m", "seed=range(0,1000000000)"], "a sweep of more than 10,000 trials"),
        (["-m", "seed=range(0,1000)", "data.split_seed=range(0,1000)"], "more than 10,000 trials"),
        (["seed=" + "1" * 5000], "must be a whole number"),
        ([f"model.hidden_sizes=[{'1,' * 20_000}1]"], "at most 10,000 are read"),
        (
            ["-m", "hydra/launcher=fused", "hydra.launcher.max_trials=0"],
            "max_trials=0: must be greater",
        ),
        (["-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=1000000"], "at most 256"),
    ],
)
def test_flags_and_spellings_never_skip_the_checks(argv: list[str], answer: str) -> None:
    with pytest.raises(InputError) as caught:
        check_command_line(argv)
    assert answer in str(caught.value)


@pytest.mark.slow
def test_a_folder_of_ones_own_choices(command: Command, tmp_path: Path) -> None:
    """--config-dir, of a run, of a sweep, and of the command that goes on with it."""
    mine = tmp_path / "mine"
    (mine / "experiment").mkdir(parents=True)
    text = "# @package _global_\noptimizer:\n  lr: 0.125\n"
    (mine / "experiment" / "small.yaml").write_text(text)
    own = (f"--config-dir={mine}", "experiment=small", *TINY)
    swept = check_command_line([*own, "seed=1,2", "-m"])  # the flag may come last
    assert [config.optimizer.lr for config in swept.points] == [0.125, 0.125]
    record = {"hydra": {"overrides": {"hydra": [], "task": list(own[1:])}}}
    (mine / "multirun.yaml").write_text(yaml.safe_dump(record))
    again = check_command_line([f"resume={mine}", own[0]])
    assert again.points[0].optimizer.lr == 0.125
    with pytest.raises(InputError, match="experiment=small: must be one of"):
        check_command_line([f"resume={mine}"])
    done = command("src.train", *own, "hydra.run.dir='it\\'s'", "seed=1")
    assert done.returncode == 0, done.stderr
    run = Run(tmp_path / "it's")
    assert run.config.optimizer.lr == 0.125
    before = contents(run.folder)
    refused = command("src.train", "++hydra.run.dir='it\\'s'", "seed=7")
    assert refused.returncode == 2
    assert "hydra.run.dir=it's: holds a run already" in refused.stderr
    assert contents(run.folder) == before
