"""A group of trials that any process can train."""

import logging
import pickle
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from kindling.config.compose import compose
from kindling.records.config_files import create_run_folder
from kindling.records.folder import Run
from kindling.sweeps.tasks import GroupTask, train_group
from kindling.system.files import lock_or_fail
from kindling.training.fit import fit
from tests.helpers.commands import SMALL
from tests.helpers.runs import parsed_configs
from tests.helpers.weights import same


def task(folder: Path) -> GroupTask:
    configs = tuple(compose(*SMALL, f"seed={seed}") for seed in (0, 1))
    folders = (folder / "0", folder / "1")
    for each in folders:
        each.mkdir()
    return GroupTask(folder, (0, 1), configs, folders, folder / ".stacks" / "x")


def test_a_task_can_be_sent_to_another_process(tmp_path: Path) -> None:
    sent = task(tmp_path)
    received = pickle.loads(pickle.dumps(sent))
    assert received == sent
    assert (received.ended, received.epoch, received.name) == (False, 0, "trials 0, 1")
    train_group(received)
    assert (sent.ended, sent.epoch) == (True, 2)
    alone = fit(compose(*SMALL, "seed=1"), tmp_path / "alone")
    assert Run(tmp_path / "1").result["test/acc"] == alone.result["test/acc"]
    assert same(Run(tmp_path / "1"), alone)
    assert (tmp_path / "results.csv").read_text().count("finished") == 2


def test_another_process_need_not_parse_the_configurations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It still reads the files: where one has changed, its trial is refused."""
    sent = task(tmp_path)
    for config, run in zip(sent.configs, sent.runs, strict=True):
        create_run_folder(run, config.to_primitives())
    known = {run.config_file.read_bytes(): run.config for run in sent.runs}
    configs = tuple(known.values())
    packed = pickle.dumps(replace(sent, configs=configs).with_memory())

    parsed = parsed_configs(monkeypatch)  # as in another process
    train_group(pickle.loads(packed))
    assert sent.ended
    assert not parsed

    changed = sent.runs[1].config_file
    changed.write_text(changed.read_text().replace("seed: 1", "seed: 2"))
    assert not sent.ended
    assert parsed == [changed]


def test_a_task_that_has_ended_is_left_alone(tmp_path: Path) -> None:
    done = task(tmp_path)
    train_group(done)
    files = [file for folder in done.folders for file in folder.rglob("*") if file.is_file()]
    before = {file: file.stat().st_mtime_ns for file in files}
    train_group(done)
    assert {file: file.stat().st_mtime_ns for file in before} == before


def test_a_task_waits_for_the_process_that_trains_it(tmp_path: Path) -> None:
    waiting, freed = task(tmp_path), threading.Event()

    def hold() -> None:
        with lock_or_fail(waiting.state_folder / ".lock"):
            held.set()
            time.sleep(0.5)
            assert not waiting.ended
            freed.set()

    held = threading.Event()
    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    train_group(waiting, patience=60)
    holder.join()
    assert freed.is_set()
    assert waiting.ended


def test_a_task_of_another_process_is_no_success(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    held = task(tmp_path)
    with lock_or_fail(held.state_folder / ".lock"), caplog.at_level(logging.ERROR):
        train_group(held, patience=0)
    assert "trials 0, 1" in caplog.text
    assert "wait until it ends, or stop it" in caplog.text
    assert not held.ended
    assert not held.runs[0].result_file.exists()
