"""TensorBoard, MLflow and W&B hold what history.csv holds, each epoch once, whatever happened."""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal
from urllib.parse import quote

import matplotlib as mpl
import numpy as np
import pytest
from lightning.pytorch import LightningModule
from mlflow import MlflowClient
from mlflow.entities import Run as MlflowRun
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2
from wandb.proto import wandb_internal_pb2

from benchmarks.crashes import fingerprint
from kindling.config.compose import compose
from kindling.config.schema import Config
from kindling.data.sources.catalogue import open_source
from kindling.inference.evaluation import evaluate_path
from kindling.ranks import processes as ranks
from kindling.records.folder import Run
from kindling.records.loading import open_trained
from kindling.sweeps.command_line import check_command_line
from kindling.system.errors import InputError
from kindling.training.fit import fit
from kindling.training.history import History
from kindling.training.loggers import base, tensorboard
from kindling.training.loggers.base import Loggers, hyperparameters
from tests.helpers.commands import ROOT, SMALL, Train
from tests.helpers.steps import STEPS
from tests.helpers.sweeps import until
from tests.helpers.tasks import HISTORY

mpl.use("agg")

ALL = "logger=[tensorboard,mlflow,wandb]"
DROPPED = ("model.dropout=0.3", "model.hidden_sizes=[16,8]")  # training draws from the streams

Metrics = dict[str, list[tuple[int, float]]]


# --- reading back: metric → (step, value), in the order in which they were written ---


def from_history(run: Run) -> Metrics:
    found: Metrics = {}
    for row in run.history:
        for name, value in row.items():
            if name != "step" and value is not None:
                found.setdefault(name, []).append((int(row["step"] or 0), float(value)))
    return found


def events_of(run: Run) -> Any:
    events = EventAccumulator(str(run.folder / "tensorboard"))
    events.Reload()
    return events


def from_tensorboard(run: Run) -> Metrics:
    events = events_of(run)
    return {
        name: [(event.step, event.value) for event in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }


def mlflow_run(file: Path, run: Run) -> tuple[MlflowClient, MlflowRun]:
    client = MlflowClient(f"sqlite:///{quote(str(file))}")
    (experiment,) = [e for e in client.search_experiments() if e.name == "kindling"]
    runs = client.search_runs([experiment.experiment_id])
    (found,) = [each for each in runs if each.data.tags["kindling.id"] == run.identity()]
    return client, found


def from_mlflow(file: Path, run: Run) -> Metrics:
    client, found = mlflow_run(file, run)
    histories = {
        name: client.get_metric_history(found.info.run_id, name) for name in found.data.metrics
    }
    return {
        name: [(metric.step, metric.value) for metric in metrics]
        for name, metrics in histories.items()
    }


def wandb_records(run: Run) -> list[Any]:
    """Of the only run of W&B that there is. W&B's process writes them after `finish` returned."""
    (path,) = run.folder.glob("wandb/offline-run-*/run-*.wandb")
    until(lambda: any(r.WhichOneof("record_type") == "exit" for r in _records(path.read_bytes())))
    return _records(path.read_bytes())


def _records(data: bytes) -> list[Any]:
    """W&B's file is a log as LevelDB's: blocks of 32 KiB of records of checksum, length and kind,
    the whole ones and the last parts being 1 and 4."""
    assert data[:4] == b":W&B"
    at, content, found = 7, b"", []
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        if left < 7 or kind == 0:
            at += left
            continue
        content += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()  # type: ignore[attr-defined]
            record.ParseFromString(content)
            found.append(record)
            content = b""
    return found


def _items(items: Any) -> dict[str, Any]:
    return {item.key or item.nested_key[0]: json.loads(item.value_json) for item in items}


def from_wandb(run: Run) -> Metrics:
    found: Metrics = {}
    for record in wandb_records(run):
        if record.WhichOneof("record_type") != "history":
            continue
        row = _items(record.history.item)
        for name, value in row.items():
            if name != "step" and not name.startswith("_"):
                found.setdefault(name, []).append((row["step"], value))
    return found


def in_32_bits(metrics: Metrics) -> Metrics:
    return {
        name: [(step, float(np.float32(value))) for step, value in values]
        for name, values in metrics.items()
    }


# --- a run with all of them ---


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database for all runs of this file, in a folder whose name a URI would take for more."""
    return tmp_path_factory.mktemp("a b?c#d%20") / "all.db"


@pytest.fixture(scope="module")
def reached() -> Iterator[list[Any]]:
    """Every address outside this machine that this process asks for."""
    found: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        connect = socket.socket.connect

        def noted(self: socket.socket, address: Any) -> None:
            if self.family != socket.AF_UNIX:
                found.append(address)
            connect(self, address)

        patch.setattr(socket.socket, "connect", noted)
        yield found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, database: Path, reached: list[Any]) -> Run:
    folder = tmp_path_factory.mktemp("runs") / "today" / "noon"
    overrides = (ALL, f"logger.mlflow_file='{database}'", "checkpoint.monitor=val/f1")
    return fit(compose(*SMALL, *DROPPED, *overrides), folder)


@pytest.mark.slow
def test_each_holds_the_history_under_its_names(run: Run, database: Path) -> None:
    expected = from_history(run)
    assert set(expected) == {*HISTORY, "val/f1"} - {"step"}
    assert [step for step, _ in expected["val/acc"]] == [0, 12, 24]
    assert from_wandb(run) == expected
    names: tuple[Literal["test/loss", "test/acc", "test/f1"], ...] = (
        "test/loss", "test/acc", "test/f1",
    )  # fmt: skip
    tested: Metrics = {name: [(24, run.result[name] or 0)] for name in names}
    assert from_mlflow(database, run) == expected | tested
    assert from_tensorboard(run) == in_32_bits(expected | tested)
    summaries = [
        _items(record.summary.update)
        for record in wandb_records(run)
        if record.WhichOneof("record_type") == "summary"
    ]
    last = {name: value for summary in summaries for name, value in summary.items()}
    assert [last[name] for name in names] == [run.result[name] for name in names]


@pytest.mark.slow
def test_each_holds_the_hyperparameters(run: Run, database: Path) -> None:
    expected = {
        "seed": 0, "model.hidden_sizes": "[16,8]", "model.dropout": 0.3, "optimizer.lr": 0.5,
        "trainer.max_epochs": 2, "data.name": "digits", "data.used": "digits",
    }  # fmt: skip
    content = events_of(run).summary_metadata["_hparams_/session_start_info"].plugin_data.content
    session = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    shown = {key: getattr(value, value.WhichOneof("kind") or "") for key, value in session.items()}
    assert {key: shown[key] for key in expected} == expected
    assert not {"data.root", "resume", "logger.project"} & shown.keys()
    _, found = mlflow_run(database, run)
    texts = found.data.params | {"trainer.max_epochs": found.data.tags["trainer.max_epochs"]}
    assert {key: texts[key] for key in expected} == {k: str(v) for k, v in expected.items()}
    assert (found.info.run_name, found.info.status) == ("today/noon", "FINISHED")
    (begun,) = [r.run for r in wandb_records(run) if r.WhichOneof("record_type") == "run"]
    kept = _items(begun.config.update)
    assert {key: kept[key] for key in expected} == expected
    assert (begun.project, begun.display_name) == ("kindling", "today/noon")


def test_tensorboard_shows_hyperparameters_with_metrics_and_the_confusion(run: Run) -> None:
    events = events_of(run)
    content = events.summary_metadata["_hparams_/experiment"].plugin_data.content
    experiment = plugin_data_pb2.HParamsPluginData.FromString(content).experiment
    assert {"val/acc", "test/acc"} <= {info.name.tag for info in experiment.metric_infos}
    assert "_hparams_/session_end_info" in events.summary_metadata
    (picture,) = events.Images("test/confusion")
    assert picture.step == 24
    pixels = Image.open(BytesIO(picture.encoded_image_string)).convert("RGB")
    assert len(pixels.getcolors(maxcolors=10**6) or []) > 50  # it is drawn upon
    assert 1 < pixels.width / pixels.height < 1.2


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("precision", ["32", "bf16-mixed"])
def test_the_confusion_matrix_is_that_of_the_best_weights(
    step: str, precision: str, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (step, precision) == ("native", "bf16-mixed"):
        pytest.skip("the engine has no 16-bit products")
    seen: list[base.Tested] = []
    monkeypatch.setattr(tensorboard.Logger, "log_test", lambda _, tested: seen.append(tested))
    run = train("logger=tensorboard", f"trainer.step={step}", f"trainer.precision={precision}")
    (tested,) = seen
    found = evaluate_path(run.folder, None)
    assert tested.confusion is not None
    assert (tested.confusion == found.confusion.numpy()).all()
    assert tested.labels == found.labels
    assert tested.confusion.trace() / tested.confusion.sum() == run.result["test/acc"]


def test_the_confusion_matrix_has_the_samples_of_all_ranks(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[base.Tested] = []
    monkeypatch.setattr(tensorboard.Logger, "log_test", lambda _, tested: seen.append(tested))
    one = train("logger=tensorboard")
    # Two ranks that have tested the same samples.
    monkeypatch.setattr("kindling.ranks.processes.gather", lambda value: [value, value])
    train("logger=tensorboard")
    first, second = (each.confusion for each in seen)
    assert first is not None
    assert second is not None
    assert (second == 2 * first).all()
    assert first.sum() == len(open_source(one.config.data).test)


def test_a_run_that_diverges_at_once_shows_no_confusion_matrix(train: Train) -> None:
    run = train("logger=tensorboard", "optimizer.lr=1e9", "trainer.max_epochs=1")
    assert (run.result["status"], run.result["test/acc"]) == ("diverged", None)
    assert "test/confusion" not in events_of(run).Tags()["images"]


def test_training_is_the_same_without_them(run: Run, train: Train) -> None:
    quiet = fingerprint(train(*DROPPED, "checkpoint.monitor=val/f1"))
    loud = fingerprint(run)
    named = {"best", "result"}  # the configuration that stands there names the loggers
    assert {part for part in quiet if quiet[part] != loud[part]} == named
    assert len(quiet) == 7


def test_nothing_is_reached_but_this_machine(run: Run, reached: list[Any]) -> None:
    assert reached == []
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert os.environ["WANDB_ERROR_REPORTING"] == "false"
    (begun,) = [r.run for r in wandb_records(run) if r.WhichOneof("record_type") == "run"]
    assert begun.telemetry.feature.offline
    kinds = {record.WhichOneof("record_type") for record in wandb_records(run)}
    assert "environment" not in kinds  # for which a cloud's metadata server is asked


@pytest.mark.slow
def test_a_run_is_one_folder_and_a_file_may_be_shared(
    run: Run, database: Path, tmp_path: Path, train: Train
) -> None:
    alone = train("logger=mlflow", "logger.project=mine", "trainer.max_epochs=1")
    client = MlflowClient(f"sqlite:///{alone.folder / 'mlflow.db'}")
    assert {experiment.name for experiment in client.search_experiments()} == {"Default", "mine"}
    other = train("logger=mlflow", f"logger.mlflow_file='{database}'", "seed=1")
    for each in (run, other):
        values = from_mlflow(database, each)
        assert {name: values[name] for name in from_history(each)} == from_history(each)
    assert not (other.folder / "mlflow.db").exists()
    assert not (ROOT / "mlruns").exists()


def test_hyperparameters_are_flat() -> None:
    flat = hyperparameters(compose("data=synthetic", "data.shape=[3,4]", "trainer.max_epochs=7"))
    assert (flat["data.shape"], flat["trainer.max_epochs"], flat["seed"]) == ("[3,4]", 7, 0)
    assert "trainer.gradient_clip_val" not in flat  # it is null
    assert all(isinstance(value, bool | int | float | str) for value in flat.values())


# --- killed, and gone on with ---

DIE = """
import os, signal
from pathlib import Path
from kindling.config.compose import compose
from kindling.training.checkpoints import Checkpoints
from kindling.training.fit import fit

def die(self, trainer, module):
    if trainer.current_epoch == 2:  # every logger has the third epoch, no checkpoint has
        os.kill(os.getpid(), signal.SIGKILL)
    kept(self, trainer, module)

kept, Checkpoints.on_train_epoch_end = Checkpoints.on_train_epoch_end, die
fit(compose(*{overrides}), Path({folder!r}))
"""


@pytest.mark.slow
def test_every_epoch_stands_once_after_a_kill(database: Path, tmp_path: Path) -> None:
    overrides = (*SMALL, ALL, f"logger.mlflow_file='{database}'", "trainer.max_epochs=4")
    run = Run(tmp_path / "run")
    script = DIE.format(overrides=overrides, folder=str(run.folder))
    environment = {key: os.environ[key] for key in os.environ if key != "WANDB_SERVICE"}  # its own
    died = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment, check=False)
    assert died.returncode == -signal.SIGKILL
    assert [row["epoch"] for row in run.history] == [0, 1, 2, 3]
    _, before = mlflow_run(database, run)
    assert (before.info.status, before.data.metrics["epoch"]) == ("RUNNING", 3)
    mine = run.folder / "tensorboard" / "events.out.tfevents.1.mine"
    mine.write_bytes(b"")

    fit(compose(*overrides), run.folder, resume=True)
    _each_epoch_once(run, database, [0, 1, 2, 3, 4])
    more = compose(*overrides, "trainer.max_epochs=5")
    fit(more, run.folder, resume=True)
    _each_epoch_once(run, database, [0, 1, 2, 3, 4, 5])
    _, after = mlflow_run(database, run)
    assert after.info.run_id == before.info.run_id
    assert (after.info.status, after.data.tags["trainer.max_epochs"]) == ("FINISHED", "5")
    assert mine.exists()


def _each_epoch_once(run: Run, database: Path, epochs: list[int]) -> None:
    expected = from_history(run)
    assert [value for _, value in expected["epoch"]] == epochs
    assert from_wandb(run) == expected
    del expected["seconds"]  # MLflow keeps those of the epoch that was lost
    shown, kept = from_tensorboard(run), from_mlflow(database, run)
    assert {name: shown[name] for name in expected} == in_32_bits(expected)
    assert {name: kept[name] for name in expected} == expected


@pytest.mark.slow
def test_a_stopped_run_is_told_apart(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = compose(*SMALL, "logger=[mlflow,wandb]", f"logger.mlflow_file='{database}'")

    def status_after(raised: BaseException, name: str) -> tuple[str, int]:
        def fails(self: Any, *arguments: Any) -> None:
            raise raised

        monkeypatch.setattr(History, "on_train_epoch_end", fails)
        run = Run(tmp_path / name)
        with pytest.raises((type(raised), SystemExit)):  # which Lightning makes of Ctrl-C
            fit(config, run.folder)
        (ended,) = [r for r in wandb_records(run) if r.WhichOneof("record_type") == "exit"]
        return mlflow_run(database, run)[1].info.status, ended.exit.exit_code

    assert status_after(KeyboardInterrupt(), "stopped") == ("KILLED", 1)
    assert status_after(ValueError("wrong"), "failed") == ("FAILED", 1)


# --- what goes wrong ---


def test_a_logger_that_fails_ends_no_run(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Any, metrics: Any, step: int) -> None:
        raise OSError("the disk is tired")

    monkeypatch.setattr(tensorboard.Logger, "log_metrics", fails)
    run = train("logger=tensorboard")
    assert (run.result["status"], run.result["epochs"]) == ("finished", 2)
    assert run.log_file.read_text().count("logger=tensorboard cannot write (the disk is") == 1


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("tensorboard", "sqlalchemy", "wandb"):
        monkeypatch.setitem(sys.modules, package, None)


def test_what_is_not_installed_is_named_at_once(absent: None, run: Run, tmp_path: Path) -> None:
    lines = [
        'logger=tensorboard: needs tensorboard; type pip install -e ".[tensorboard]"',
        'logger=mlflow: needs sqlalchemy; type pip install -e ".[mlflow]"',
        'logger=wandb: needs wandb; type pip install -e ".[wandb]"',
    ]
    with pytest.raises(InputError) as caught:
        check_command_line([ALL])
    assert [line.strip() for line in str(caught.value).splitlines()[1:]] == lines
    with pytest.raises(InputError, match=r"trials 1, 3: logger=wandb: needs wandb"):
        check_command_line(["-m", "seed=1,2", "logger=none,wandb"])
    with pytest.raises(InputError, match="cannot continue here\n  logger=tensorboard: needs"):
        check_command_line([f"resume={run.folder}"])
    with pytest.raises(InputError, match="logger=wandb: needs wandb"):
        fit(compose(*SMALL, "logger=wandb"), tmp_path / "run")
    assert not Run(tmp_path / "run").history_file.exists()
    assert open_trained(run.folder).data == "digits"  # to look at a run, none of them is needed


@pytest.mark.parametrize("kind", ["damaged", "folder"])
def test_a_database_that_is_none_is_told_before_training(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "runs.db"
    if kind == "folder":
        file.mkdir()
    else:
        file.write_bytes(b"no database" * 1000)
    with pytest.raises(InputError) as caught:
        fit(compose(*SMALL, "logger=mlflow", f"logger.mlflow_file={file}"), tmp_path / "run")
    assert str(caught.value).startswith(f"logger.mlflow_file={file}: MLflow cannot use it (")
    assert "\n" not in str(caught.value)
    assert not Run(tmp_path / "run").history_file.exists()
    assert file.is_dir() or file.read_bytes() == b"no database" * 1000


def faults(*argv: str) -> str:
    with pytest.raises(InputError) as caught:
        check_command_line(argv)
    return str(caught.value)


def test_several_are_chosen_as_a_list(tmp_path: Path) -> None:
    def chosen(config: Config) -> list[str]:
        return config.logger.chosen

    assert chosen(compose()) == chosen(compose("logger=none")) == chosen(compose("logger=[]")) == []
    assert chosen(compose("logger=[wandb,tensorboard]")) == ["tensorboard", "wandb"]
    assert chosen(compose("logger=mlflow", "logger.wandb=true")) == ["mlflow", "wandb"]
    command = check_command_line(["-m", "logger=tensorboard,[mlflow,wandb]"])
    assert [chosen(point) for point in command.points] == [["tensorboard"], ["mlflow", "wandb"]]
    assert "logger=mlfow: must be one of mlflow, none, tensorboard, wandb; did you" in faults(
        "logger=[tensorboard,mlfow]"
    )
    assert "several values need a sweep" in faults("logger=tensorboard,mlflow")
    assert "type logger=mlflow too" in faults("logger.mlflow_file=all.db")
    assert "none of / \\ # ? % :, for example logger.project=kindling" in faults(
        "logger=wandb", "logger.project=a/b"
    )


@pytest.mark.parametrize("loaded", [False, True])
def test_a_library_that_takes_long_is_announced(
    loaded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Before it is imported, and never again."""
    config = compose(*SMALL, "logger=mlflow")
    mine = Loggers(config, Run(tmp_path), History([], HISTORY), open_source(config.data))
    told: list[list[str]] = []

    def opener(*_: object) -> Any:
        told.append(caplog.messages)

    monkeypatch.setattr(base, "import_module", lambda _: SimpleNamespace(Logger=opener))
    if not loaded:
        monkeypatch.delitem(sys.modules, "mlflow")
    trainer: Any = SimpleNamespace(is_global_zero=True)
    with caplog.at_level("INFO"):
        mine.on_fit_start(trainer, LightningModule())
    line = "logger=mlflow: mlflow is imported, which may take half a minute"
    assert told == [[] if loaded else [line]]


def test_every_rank_hears_of_rank_0s_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """Else the others would wait for it for half an hour."""
    config = compose(*SMALL, "logger=tensorboard")
    other = Loggers(config, Run(tmp_path), History([run], HISTORY), open_source(config.data))
    monkeypatch.setattr(ranks, "gather", lambda own: [{"fault": "the file is none"}, own])
    trainer: Any = SimpleNamespace(is_global_zero=False)
    with pytest.raises(InputError, match="the file is none"):
        other.on_fit_start(trainer, LightningModule())
    assert not other.loggers
