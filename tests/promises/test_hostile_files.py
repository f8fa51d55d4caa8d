"""Files of strangers: damaged, mutated and harmful ones.

Opening any file succeeds or raises one of the project's own errors, within a limit of memory and
time. By default a few hundred examples are tried; `make torture` tries a hundred thousand.
"""

import csv
import hashlib
import io
import json
import logging
import os
import pickle
import resource
import shutil
import signal
import unicodedata
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kindling.config.compose import compose
from kindling.config.faults import read_config
from kindling.data.sources.published import read_idx, read_idx_set
from kindling.data.tables.columns import Columns, NumberColumn
from kindling.data.tables.reading import read_table
from kindling.inference.committees.making import make_committee
from kindling.inference.committees.members import read_request
from kindling.inference.inputs import read_inputs
from kindling.inference.prediction import Guess, Prediction, to_csv
from kindling.records import checkpoint
from kindling.records.bundle import MANIFEST, open_bundle, write_bundle
from kindling.records.checkpoint import CheckpointPair
from kindling.records.config_files import create_run_folder
from kindling.records.confirm_record import Chosen, Record, read_record, write_record
from kindling.records.folder import HISTORY_LIMIT, Run, csv_text
from kindling.records.loading import open_trained
from kindling.records.sweep_folder import Sweep
from kindling.reports import tables
from kindling.reports.collect import collect
from kindling.reports.confirmation import describe_confirmation, read_confirmation, to_primitives
from kindling.reports.page import write_report
from kindling.sweeps.command_line import check_command_line
from kindling.sweeps.confirmation.command import check_command_line as confirm_command
from kindling.sweeps.search.command import CheckedSearch
from kindling.sweeps.search.command import check_command_line as search_command
from kindling.sweeps.search.study import open_study
from kindling.system.colour import cleaned
from kindling.system.errors import InputError
from kindling.system.files import YAML_LIMIT, read_bounded, read_yaml
from kindling.system.process import LogLines
from kindling.system.units import MIB
from kindling.training.fit import fit
from kindling.training.result import logging_to
from kindling.training.resume import check_state
from tests.helpers.commands import SMALL, Command
from tests.helpers.faults import own_error
from tests.helpers.mutations import (
    MANY,
    MUTATIONS,
    Mutation,
    examples,
    mutated,
    pictures,
    sealed,
    signed,
    unsigned,
)
from tests.helpers.screen import terminal
from tests.helpers.tasks import HISTORY

GIB = 2**30


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A small run whose files are mutated, each in a copy."""
    folder = tmp_path_factory.mktemp("base") / "run"
    return fit(compose(*SMALL, "data=toy", "model.hidden_sizes=[3]"), folder)


@pytest.fixture(scope="module")
def committee(base: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A committee whose files are mutated, each in a copy."""
    folder = tmp_path_factory.mktemp("committee")
    other = fit(compose(*SMALL, "data=toy", "model.hidden_sizes=[4,2]"), folder / "other")
    return make_committee(read_request([base.folder, other.folder], folder=folder / "run"))


@contextmanager
def little_memory(share: int) -> Iterator[None]:
    """Limits the memory that the process may allocate in the body to this many bytes."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = Path("/proc/self/statm")
    if pages.exists():
        used = int(pages.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + share, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@contextmanager
def little_time(seconds: int = 120) -> Iterator[None]:
    """Raises in a body that takes more time of the processor. Other programs may run."""

    def end(number: int, frame: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@pytest.fixture(autouse=True)
def _bounded_memory() -> Iterator[None]:
    with little_memory(GIB):
        yield


# --- mutated -----------------------------------------------------------------------------------


@pytest.mark.slow
@examples(2000)
@given(mutations=MUTATIONS)
def test_mutated_checkpoints(mutations: Mutation, base: Run, tmp_path: Path) -> None:
    path = tmp_path / "mutated.ckpt"
    content = base.last_checkpoint.read_bytes()
    data = mutated(content, mutations)
    path.write_bytes(data)
    if data == content:
        assert open_trained(path).data == "toy"
    else:
        with pytest.raises(InputError, match="is damaged or not a checkpoint"):
            open_trained(path)


@pytest.mark.slow
@examples(2000)
@given(mutations=MUTATIONS)
def test_mutated_checkpoints_with_the_right_checksum(
    mutations: Mutation, base: Run, tmp_path: Path
) -> None:
    path = tmp_path / "mutated.ckpt"
    path.write_bytes(signed(mutated(unsigned(base.last_checkpoint.read_bytes()), mutations)))
    own_error(lambda: open_trained(path))


@examples(1000)
@given(mutations=MUTATIONS)
def test_mutated_pickles_in_whole_archives(mutations: Mutation, base: Run, tmp_path: Path) -> None:
    """The archive and its checksum are right; the pickle in it is mutated."""
    path = tmp_path / "mutated.ckpt"
    with zipfile.ZipFile(base.last_checkpoint) as archive:
        records = {record.filename: archive.read(record) for record in archive.infolist()}
    (name,) = (name for name in records if name.endswith("data.pkl"))
    records[name] = mutated(records[name], mutations)
    path.write_bytes(signed(zipped(records)))
    own_error(lambda: open_trained(path))


ODD = [10**400, -(2**63), 2**63, -1, 0, 1e308, 5e-324, "\ud800", "x" * 10**5, "nan", "1" * 5000]


JUNK: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(ODD),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


PLACES = st.lists(st.integers(0, 20), min_size=1, max_size=6)


def replace_one(content: dict[str, Any], path: list[int], junk: Any) -> None:
    """Replaces the value that `path` leads to in nested dictionaries and lists."""
    node: Any = content
    parent, key = node, next(iter(node))
    for number in path:
        if not isinstance(node, dict | list) or not node:
            break
        parent = node
        key = [*node][number % len(node)] if isinstance(node, dict) else number % len(node)
        node = parent[key]
    parent[key] = junk


@examples(1000)
@given(path=PLACES, junk=JUNK)
def test_checkpoints_that_say_something_else(
    path: list[int], junk: Any, base: Run, tmp_path: Path
) -> None:
    """One value somewhere in the content is replaced by another."""
    content = checkpoint.read(base.last_checkpoint)
    replace_one(content, path, junk)
    file = tmp_path / "other.ckpt"
    file.write_bytes(checkpoint.pack(content))
    own_error(lambda: open_trained(file))
    origin = checkpoint.read(base.last_checkpoint)["kindling"]
    own_error(lambda: check_state(checkpoint.read(file), file, [origin], 1, 9))


@examples(1000)
@given(path=PLACES, junk=JUNK)
def test_committees_that_say_something_else(
    path: list[int], junk: Any, committee: Run, tmp_path: Path
) -> None:
    content = checkpoint.read(committee.best_checkpoint)
    replace_one(content, path, junk)
    file = tmp_path / "other.ckpt"
    file.write_bytes(checkpoint.pack(content))
    own_error(lambda: open_trained(file))
    result = json.loads(committee.result_file.read_text())
    replace_one(result["committee"], path, junk)
    run = Run(tmp_path / "run")
    create_run_folder(run, committee.config.to_primitives())
    run.result_file.write_text(json.dumps(result))
    own_error(lambda: (collect([run.folder]), run.command))


def test_members_that_a_committee_cannot_have(committee: Run, tmp_path: Path) -> None:
    """Each is refused before memory is taken for it."""
    content = checkpoint.read(committee.best_checkpoint)
    saved, weights = content["kindling"], content["state_dict"]
    first, second = saved["members"]
    wide = compose("data=toy", "model.hidden_sizes=[1000000,1000000]").to_primitives()
    unlike = {f"model.members.7.{n}": torch.zeros(1) for n in range(3)}
    told = [
        ({"members": [first]}, weights, "members.1.layers.0.weight is a weight of no member"),
        ({"members": []}, {}, r"wrong: members\)"),
        ({"members": [first] * 257}, weights, r"wrong: members\)"),
        ({"members": [first, second, first]}, weights, "has 0 weights, the configuration 1 hidden"),
        ({"members": [second, first]}, weights, r"is \(.*\), the configuration says"),
        ({"members": [first, second | {"config": wide}]}, weights, r"the configuration says \("),
        ({"members": [first, second | {"votes": 0}]}, weights, "members.1.votes"),
        ({}, weights | unlike, r"members\.7\.0 is a weight of no member"),
        ({"members": None}, weights, "the configuration says"),
    ]
    path = tmp_path / "other.ckpt"
    for changes, state, reason in told:
        other = plain({"kindling": saved | changes, "state_dict": state})
        path.write_bytes(checkpoint.pack(other))
        with pytest.raises(InputError, match=reason):
            open_trained(path)


def plain(value: Any) -> Any:
    """Copies of all dictionaries and lists: a checkpoint must not hold one of them twice."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    "key", ["loops", "callbacks", "optimizer_states", "position", "ranks", "diverged", "state_dict"]
)
@pytest.mark.parametrize("junk", [None, {}, [], 3, "x"])
def test_a_state_that_cannot_be_restored(key: str, junk: Any, base: Run, tmp_path: Path) -> None:
    """The state is used or refused; a refusal leaves the checkpoint unchanged."""
    run = Run(tmp_path / "run")
    content = checkpoint.read(base.last_checkpoint) | {key: junk}
    checkpoint.write(content, run.last_checkpoint)
    config = compose(*SMALL, "data=toy", "model.hidden_sizes=[3]", "trainer.max_epochs=3")
    before = run.last_checkpoint.read_bytes()
    own_error(lambda: fit(config, run.folder, resume=True))
    if run.result["status"] == "failed":
        assert run.last_checkpoint.read_bytes() == before


@examples(1500)
@given(mutations=MUTATIONS)
def test_mutated_configurations(mutations: Mutation, base: Run, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(mutated(base.config_file.read_bytes(), mutations))
    own_error(lambda: read_config(path))


@examples(1000)
@given(mutations=MUTATIONS)
def test_mutated_histories(mutations: Mutation, base: Run, tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.history_file.write_bytes(mutated(base.history_file.read_bytes(), mutations))
    own_error(lambda: run.history)


@examples(500)
@given(mutations=MUTATIONS)
def test_mutated_results(mutations: Mutation, base: Run, tmp_path: Path) -> None:
    run = Run(tmp_path)
    create_run_folder(run, base.config.to_primitives())
    run.result_file.write_bytes(mutated(base.result_file.read_bytes(), mutations))
    own_error(lambda: (run.result, run.ended, run.monitored))


@examples(1000)
@given(path=PLACES, junk=JUNK)
def test_results_that_say_something_else(
    path: list[int], junk: Any, base: Run, tmp_path: Path
) -> None:
    """Evaluation, tables and reports read the same checked result."""
    run = Run(tmp_path / "0")
    create_run_folder(run, base.config.to_primitives())
    result = json.loads(base.result_file.read_text())
    replace_one(result, path, junk)
    run.result_file.write_text(json.dumps(result))
    sweep = Sweep(tmp_path)
    own_error(lambda: (run.ended, run.monitored))
    own_error(sweep.write_results)
    own_error(lambda: (sweep.table(), sweep.failures()))
    own_error(lambda: write_page(tmp_path))


STRANGE: dict[str, list[Any]] = {  # overrides and metrics that no training writes
    "data.fold": ["0", "1", "²", "9" * 5000, "null", "[]"],
    "data.folds": ["2", "9" * 5000, "²", "null", ""],
    "optimizer.lr": ["0.1", "1e999", "nan", "[0.1", "9" * 5000],
    "acc": [None, 0.0, 5e-324, 0.5, 0.6, 1.0],
    "loss": [None, 0.0, 0.5, 1e99, -1e99, 1e100, 1e308, -1e308],
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(500 if MANY else 6))
def test_sweeps_of_strange_trials(seed: int, base: Run, tmp_path: Path) -> None:
    """Their table, page and pictures."""
    random = Random(seed)
    (tmp_path / "multirun.yaml").write_text("{}\n")
    for number in range(random.randint(2, 5)):
        run = Run(tmp_path / str(number))
        typed = [f"{key}={random.choice(odd)}" for key, odd in STRANGE.items() if "." in key]
        create_run_folder(run, base.config.to_primitives(), typed)
        best = {f"val/{name}": random.choice(STRANGE[name]) for name in ("acc", "loss")}
        monitor = random.choice(["val/acc", "val/acc", "val/loss"])
        result = {"status": "finished", "monitor": monitor, "best": best}
        run.result_file.write_text(json.dumps(result))
    Sweep(tmp_path).table()
    write_report([tmp_path], models=False)


def write_page(folder: Path) -> None:
    """The texts of a report, without its figures."""
    found = collect([folder])
    tables.run_table("runs", found.parts["runs"])
    tables.key_figures(found.runs[0], None)
    tables.environments(found.runs)


@examples(500)
@given(mutations=MUTATIONS)
def test_mutated_records_of_sweeps(mutations: Mutation, tmp_path: Path) -> None:
    record = {
        "hydra": {
            "overrides": {
                "hydra": ["hydra.mode=MULTIRUN", "hydra/launcher=fused"],
                "task": ["optimizer.lr=0.1,0.2", "data=toy"],
            }
        }
    }
    data = mutated(yaml.safe_dump(record).encode(), mutations)
    (tmp_path / "multirun.yaml").write_bytes(data)
    own_error(lambda: check_command_line([f"resume={tmp_path}"]))


@examples(500)
@given(mutations=MUTATIONS)
def test_mutated_records_of_confirmations(
    mutations: Mutation, to_confirm: Path, tmp_path: Path
) -> None:
    data = mutated((to_confirm / "confirm.yaml").read_bytes(), mutations)
    (tmp_path / "confirm.yaml").write_bytes(data)
    own_error(lambda: confirm_command(tmp_path))


@examples(500)
@given(path=PLACES, junk=JUNK)
def test_confirmed_results_that_say_something_else(
    path: list[int], junk: Any, to_confirm: Path, base: Run
) -> None:
    result = json.loads(base.result_file.read_text())
    replace_one(result, path, junk)
    (to_confirm / "1" / "result.json").write_text(json.dumps(result))

    def read() -> None:
        found = read_confirmation(to_confirm, read_record(to_confirm))
        describe_confirmation(found)
        json.dumps(to_primitives(found), allow_nan=False)

    own_error(read)


@pytest.fixture(scope="module")
def to_confirm(base: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A confirmation of one setting with two seeds on two folds. Both have the same result."""
    folder = tmp_path_factory.mktemp("to_confirm")
    data = base.config.data.model_copy(update={"folds": 2, "fold": 0})
    config = base.config.model_copy(update={"data": data})
    chosen = Chosen(config=config, overrides={"data": "toy"}, promised=0.5, trials=[0])
    record = Record(sweep="s", found=1, keys=[], seeds=[1, 2], settings=[chosen], folds=2)
    write_record(folder, record)
    for name in ("0", "1"):
        shutil.copytree(base.folder, folder / name)
    return folder


@examples(500)
@given(mutations=MUTATIONS)
def test_mutated_data_files(mutations: Mutation, tmp_path: Path) -> None:
    path = tmp_path / "labels-idx1-ubyte"
    content = b"\0\0\x08\x01\0\0\0\x64" + bytes(range(100))
    path.write_bytes(mutated(content, mutations))
    own_error(lambda: read_idx(path, None, "a set"))


PICTURES = pictures()


@examples(1000)
@given(number=st.integers(0, len(PICTURES) - 1), mutations=MUTATIONS, seal=st.booleans())
def test_mutated_pictures(number: int, mutations: Mutation, seal: bool, tmp_path: Path) -> None:
    path = tmp_path / "mutated.png"
    data = mutated(PICTURES[number], mutations)
    path.write_bytes(sealed(data) if seal else data)
    own_error(lambda: read_inputs([path]))


@examples(500)
@given(mutations=MUTATIONS, packed=st.booleans(), inside=st.booleans())
def test_mutated_arrays(mutations: Mutation, packed: bool, inside: bool, tmp_path: Path) -> None:
    """Mutates the archive, or an array within a whole archive."""
    path, file = tmp_path / "mutated.npz", io.BytesIO()
    np.save(file, np.linspace(0, 1, 24).reshape(2, 3, 4))
    x = mutated(file.getvalue(), mutations) if inside else file.getvalue()
    compression = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    archive = zipped({"x.npy": x}, compression)
    path.write_bytes(archive if inside else mutated(archive, mutations))
    own_error(lambda: read_inputs([path]))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> CheckedSearch:
    """A search with one batch proposed and one trial reported."""
    folder = tmp_path_factory.mktemp("search") / "s"
    space = ("optimizer.lr=interval(0.1,1)", "search.trials=2", "search.batch=2")
    command = search_command([*SMALL, *space, f"search.folder={folder}"])
    found = open_study(command)
    found.tell(found.ask(0, 2).trials[0], 0.5, diverged=False)
    return command


@examples(120)
@given(mutations=MUTATIONS)
def test_mutated_studies(mutations: Mutation, study: CheckedSearch) -> None:
    file = study.folder / "study.db"
    content = file.read_bytes()
    file.write_bytes(mutated(content, mutations))
    try:
        own_error(lambda: open_study(study).best())
    finally:
        file.write_bytes(content)


# --- harmful -----------------------------------------------------------------------------------


class Harm:
    """An object that creates a file when it is unpickled without checks."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.target),))


def zipped(records: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", compression) as file:
        for name, content in records.items():
            file.writestr(name, content)
    return archive.getvalue()


def test_arrays_cannot_run_code(tmp_path: Path) -> None:
    path, made = tmp_path / "harm.npz", tmp_path / "made"
    np.savez(path, x=np.array([Harm(made)], dtype=object))
    with pytest.raises(InputError, match="Object arrays cannot be loaded"):
        read_inputs([path])
    assert not made.exists()
    np.load(path, allow_pickle=True)["x"]
    assert made.exists()  # so it would have


def test_a_checkpoint_cannot_run_code(base: Run, tmp_path: Path) -> None:
    target, path = tmp_path / "harmed", tmp_path / "evil.ckpt"
    path.write_bytes(checkpoint.pack({"kindling": Harm(target)}))
    with pytest.raises(InputError, match=r"it names posix mkdir, and only tensors are allowed"):
        open_trained(path)
    path.write_bytes(pickle.dumps(Harm(target)))
    with pytest.raises(InputError, match="it has no checksum"):
        open_trained(path)
    pair = CheckpointPair(tmp_path / "run" / "checkpoints")
    pair.folder.mkdir(parents=True)
    pair.last.write_bytes(checkpoint.pack({"kindling": Harm(target)}))
    with pytest.raises(InputError, match="no checkpoint is left"):
        fit(compose(*SMALL, "data=toy"), tmp_path / "run", resume=True)
    assert not target.exists()


def test_a_configuration_cannot_run_code(base: Run, tmp_path: Path) -> None:
    target, path = tmp_path / "harmed", tmp_path / ".hydra" / "config.yaml"
    path.parent.mkdir()
    tagged = f"!!python/object/apply:os.mkdir [{target}]\n"
    instantiated = {"optimizer": {"_target_": "os.mkdir", "path": str(target)}}
    for content in (tagged, yaml.safe_dump(base.config.to_primitives() | instantiated)):
        path.write_text(content)
        with pytest.raises(InputError, match=r"config\.yaml"):
            check_command_line([f"resume={tmp_path}"])
    assert not target.exists()


@pytest.mark.parametrize(
    "overrides",
    [
        {"hydra": ["hydra/launcher=evil"], "task": ["seed=1,2"]},
        {
            "hydra": ["hydra.launcher._target_=os.mkdir"],
            "task": ["hydra.sweeper._target_=os.mkdir"],
        },
        {"hydra": [], "task": ["+hydra.callbacks.a._target_=os.mkdir", "seed=1,2"]},
        {"hydra": [], "task": ["data@hydra=toy"]},
        {"hydra": [], "task": "seed=1"},
        {"hydra": [{}], "task": []},
        [],
    ],
)
def test_a_record_of_a_sweep_cannot_choose_what_runs(overrides: Any, tmp_path: Path) -> None:
    record = {"hydra": {"overrides": overrides}}
    (tmp_path / "multirun.yaml").write_text(yaml.safe_dump(record))
    with pytest.raises(InputError, match=r"multirun\.yaml"):
        check_command_line([f"resume={tmp_path}"])


def test_hydras_own_keys_of_a_record_are_left_behind(tmp_path: Path) -> None:
    given = {
        "hydra": [
            "hydra.mode=MULTIRUN",
            "hydra.launcher._target_=os.mkdir",
            "hydra/launcher=fused",
        ],
        "task": ["seed=1,2", "data=toy"],
    }
    (tmp_path / "multirun.yaml").write_text(yaml.safe_dump({"hydra": {"overrides": given}}))
    command = check_command_line([f"resume={tmp_path}"])
    assert command.argv == [
        "--multirun", "seed=1,2", "data=toy", "resume=auto", "hydra/launcher=fused",
        f"hydra.sweep.dir={tmp_path}",
    ]  # fmt: skip


def test_a_data_file_cannot_run_code(tmp_path: Path) -> None:
    raw, target = tmp_path / "MNIST" / "raw", tmp_path / "harmed"
    raw.mkdir(parents=True)
    (raw / "train-images-idx3-ubyte").write_bytes(pickle.dumps(Harm(target)))
    with pytest.raises(InputError, match="is not MNIST's file"):
        read_idx_set("mnist", tmp_path)
    assert not target.exists()


def test_bombs_are_refused_before_they_are_opened(base: Run, tmp_path: Path) -> None:
    path = tmp_path / "bomb.ckpt"
    bomb = zipped({"archive/data.pkl": bytes(200 * 2**20)}, zipfile.ZIP_DEFLATED)
    path.write_bytes(signed(bomb))
    with pytest.raises(InputError, match="it is compressed"):
        open_trained(path)
    laughs = "a: &a [x,x,x,x,x,x,x,x]\n" + "".join(
        f"{b}: &{b} [*{a},*{a},*{a},*{a},*{a},*{a},*{a},*{a}]\n"
        for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    aliased = tmp_path / "config.yaml"
    aliased.write_text(laughs)
    with pytest.raises(InputError, match=r"it has the alias \*a"):
        read_yaml(aliased)
    aliased.write_bytes(b"a" * (YAML_LIMIT + 1))
    with pytest.raises(InputError, match="has more than 262,144 bytes"):
        read_yaml(aliased)
    for depth in (500, 100_000):  # libyaml 0.2.6 allows no more than 1,000 itself
        aliased.write_text("[" * depth)
        with pytest.raises(InputError, match=r"nested more than 20 levels deep|flow level"):
            read_yaml(aliased)
    run = Run(tmp_path)
    run.result_file.write_text("[" * 100_000)
    with pytest.raises(InputError, match="Invalid JSON"):
        _ = run.result


def test_a_file_is_read_into_as_much_memory_as_it_has(base: Run, tmp_path: Path) -> None:
    with little_memory(64 * MIB):
        assert checkpoint.read(base.last_checkpoint)["kindling"]["data"] == "toy"
    sparse = tmp_path / "sparse"
    with sparse.open("wb") as file:
        file.truncate(HISTORY_LIMIT + 1)
    with little_memory(MIB), pytest.raises(InputError, match="has more than 201,326,592 bytes"):
        read_bounded(sparse, HISTORY_LIMIT)


def pickled(content: Any) -> bytes:
    return checkpoint_of_pickle(pickle.dumps(content, 2))


def checkpoint_of_pickle(data: bytes) -> bytes:
    records = {"data.pkl": data, "version": b"3\n", "byteorder": b"little"}
    return signed(zipped({f"archive/{name}": content for name, content in records.items()}))


LAYERS = st.lists(
    st.tuples(st.sampled_from([list, tuple, dict, OrderedDict]), st.integers(2, 3)),
    min_size=20,
    max_size=60,
)


@examples(1000)
@given(layers=LAYERS)
def test_few_values_that_unfold_to_many(
    layers: list[tuple[type, int]], base: Run, tmp_path: Path
) -> None:
    """Each layer holds the one before several times: walking them visits 2 to the 60 values."""
    value: Any = 0
    for kind, times in layers:
        if kind in (list, tuple):
            value = kind([value] * times)
        else:
            value = kind((str(number), value) for number in range(times))
    path = tmp_path / "bomb.ckpt"
    path.write_bytes(pickled(checkpoint.read(base.last_checkpoint)["kindling"] | {"x": value}))
    with little_time():
        own_error(lambda: open_trained(path))
        path.write_bytes(pickled({"kindling": value, "state_dict": value}))
        with pytest.raises(InputError, match="is damaged or not a checkpoint"):
            open_trained(path)


def _text(value: str) -> bytes:
    return b"X" + len(value.encode()).to_bytes(4, "little") + value.encode()


HIDING = OrderedDict(a=1)


HIDING.values = "no method"  # type: ignore[assignment,method-assign]


HEAD = b"\x80\x02}" + _text("kindling")


PICKLES = {
    "nested lists": HEAD + b"]" * 10**6 + b"a" * (10**6 - 1) + b"s.",
    "a nested tuple as a key": b"\x80\x02})" + b"\x85" * 10**6 + b"K\x01s.",
    "a dictionary within itself": b"\x80\x02}q\x00" + _text("kindling") + b"h\x00s.",
    "tuples that share tuples as a key": b"\x80\x02})q\x00" + b"".join(
        b"h" + bytes([n]) + b"h" + bytes([n]) + b"\x86q" + bytes([n + 1]) for n in range(60)
    ) + b"K\x01s.",
    "a list that grows after it was named": b"\x80\x02}(" + b"".join(
        b"]q" + bytes([n]) for n in range(60)
    ) + b"".join(b"h" + bytes([n]) + b"h" + bytes([n + 1]) + b"a" for n in range(59)) + b"t.",
    "a value on the stack twice": HEAD + b"]22\x86s.",
    "a number of a thousand digits": pickle.dumps({"kindling": 10**400}, 2),
    "half a pair of surrogates": HEAD + b"X\x03\x00\x00\x00\xed\xa0\x80s.",
    "an attribute that hides a method": pickle.dumps({"state_dict": HIDING}, 2),
    "bytes": pickle.dumps({"kindling": b"x"}, 3),
    "frames": pickle.dumps({"kindling": ["x" * 10] * 10}, 4),
    "a set": pickle.dumps({"kindling": {1, 2}}, 2),
    "nothing": b"",
    "no end": b"\x80\x02}",
    "nothing on the stack": b"\x80\x02\x85\x86\x87.",
}  # fmt: skip


@pytest.mark.parametrize("kind", PICKLES)
def test_pickles_that_torch_never_writes(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "bomb.ckpt"
    path.write_bytes(checkpoint_of_pickle(PICKLES[kind]))
    with little_time(), pytest.raises(InputError, match="is damaged or not a checkpoint"):
        open_trained(path)


def test_tensors_that_name_an_element_many_times(base: Run, tmp_path: Path) -> None:
    path, content = tmp_path / "bomb.ckpt", checkpoint.read(base.best_checkpoint)
    content["state_dict"]["model.layers.0.weight"] = torch.zeros(1).expand(10**6, 10**6)
    path.write_bytes(checkpoint.pack(content))
    with pytest.raises(InputError, match="its tensors are larger than the file"):
        open_trained(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("stacked", [7]), ("stacked", [-1]), ("stacked", [0, 0]), ("stacked", []),
        ("diverged", {1: 3}), ("diverged", {0: 0}), ("stopped", {-1: "early_stopping"}),
        ("position", {"epoch": -1, "batch": 0}), ("position", {"epoch": 10**9, "batch": 0}),
        ("position", {"epoch": 0, "batch": 10}), ("position", {"epoch": 0, "batch": -1}),
        ("average", [{}, {}]), ("average", {}), ("ranks", []), ("loops", {"fit_loop": {"a": -1}}),
        ("callbacks", {"History": {"seconds": 0.0, "ended": [], "rows": [[[1]]]}}),
        ("state_dict", None), ("state_dict", {"a": 1}),
    ],
)  # fmt: skip
def test_a_state_out_of_range(key: str, value: Any, base: Run, tmp_path: Path) -> None:
    content = checkpoint.read(base.last_checkpoint)
    metadata = [content["kindling"]]
    assert check_state(content, tmp_path, metadata, 1, 9).stacked == [0]
    with pytest.raises(InputError):
        check_state(content | {key: value}, tmp_path, metadata, 1, 9)


@pytest.mark.parametrize("key", ["kindling", "state_dict"])
def test_a_checkpoint_without_a_part(key: str, base: Run, tmp_path: Path) -> None:
    content = checkpoint.read(base.best_checkpoint)
    del content[key]
    path = tmp_path / "part.ckpt"
    path.write_bytes(checkpoint.pack(content))
    with pytest.raises(InputError, match=key):
        open_trained(path)


TAGS = "bool int float timestamp binary set omap pairs null str seq map merge value python/none"


SCALARS = [
    *(f"!!{tag} foo" for tag in TAGS.split()),
    *("! x", "!a x", "=", "<<: 1", "<<", "? [a]", "{a: 1}: b", "2001-99-99", "2001-01-01"),
    *("1:99:99", "0x", "0b1", "1e400", ".nan", "-.inf", "9" * 5000, "9" * 400, "1_000", "~"),
    *("&a b", "*a", "%a", "@", "`", "\x00", "\x85", "'", '"\\ud800"', '"\\U0010ffff"'),
    *("- - - - a", "|9\n a", "null: null"),
]  # fmt: skip


@pytest.mark.parametrize("key", ["seed", "trainer.max_epochs", "model.hidden_sizes", "model", ""])
def test_odd_scalars_in_a_configuration(key: str, base: Run, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    values = base.config.to_primitives()
    first, _, last = key.partition(".")
    section = values[first] if last else values
    section[last or first] = "PLACE"
    text = yaml.safe_dump(values) if key else "PLACE"
    for scalar in SCALARS:
        path.write_bytes(text.replace("PLACE", scalar).encode())
        own_error(lambda: read_config(path))


def test_a_configuration_of_very_many_unknown_keys(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("".join(f"k{number}: 1\n" for number in range(20_000)))
    with little_time(), pytest.raises(InputError, match="and 19,960 more"):
        read_config(path)


@pytest.mark.parametrize(
    "line",
    ["0,0,,,,,,,", "0,0,,,,,", "-1,0,,,,,,", "1,-1,,,,,,", f"{10**400},0,,,,,,", "1.5,0,,,,,,",
     "0,0,a,,,,,", "0,0,'1',,,,,", "٣,0,,,,,,", "0,0," + "1" * 10**7 + ",,,,,", "," * 10**7,
     '"0,0,,,,,,\n' * 3, "\0"],
    ids=lambda line: line[:12],
)  # fmt: skip
def test_lines_that_are_no_row_of_a_history(line: str, tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.history_file.write_text(f"{','.join(HISTORY)}\n{line}\n")
    with little_time(), pytest.raises(InputError, match="line 2 is not a row of a history"):
        _ = run.history


def test_a_result_is_read_as_it_was_written(base: Run) -> None:
    assert base.result == json.loads(base.result_file.read_text())


@pytest.fixture(scope="module")
def bundle(base: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "run.zip"
    write_bundle([base.folder], path)
    return path


def opened(path: Path, folder: Path) -> None:
    """Opens a bundle and reads what `reproduce` reads before training."""
    found = open_bundle(path, folder)
    assert found.run.history
    assert open_trained(found.run.folder).data == "toy"


@examples(500)
@given(mutations=MUTATIONS)
def test_mutated_bundles(mutations: Mutation, bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / "mutated.zip"
    path.write_bytes(mutated(bundle.read_bytes(), mutations))
    own_error(lambda: opened(path, tmp_path / "opened"))


@examples(500)
@given(number=st.integers(0, 9), mutations=MUTATIONS)
def test_mutated_files_in_whole_bundles(
    number: int, mutations: Mutation, bundle: Path, tmp_path: Path
) -> None:
    """The archive and its checksums are right; one file is mutated."""
    with zipfile.ZipFile(bundle) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    name = [*contents][number % len(contents)]
    contents[name] = mutated(contents[name], mutations)
    if name != MANIFEST:
        manifest = json.loads(contents[MANIFEST])
        manifest["sha256"][name] = hashlib.sha256(contents[name]).hexdigest()
        contents[MANIFEST] = json.dumps(manifest).encode()
    path = tmp_path / "mutated.zip"
    path.write_bytes(zipped(contents))
    own_error(lambda: opened(path, tmp_path / "opened"))


@pytest.mark.parametrize(
    ("name", "size", "kind", "reason"),
    [
        ("history.csv", 160 * MIB, zipfile.ZIP_DEFLATED, "unpacks to more than 20 times its size"),
        ("checkpoints/best.ckpt", 200 * MIB, zipfile.ZIP_DEFLATED, "unpacks to more than"),
        ("result.json", MIB + 1, zipfile.ZIP_DEFLATED, "result.json has more than 1,048,576 bytes"),
        ("history.csv", 9, zipfile.ZIP_LZMA, "history.csv is compressed as no bundle is"),
        ("history.csv", 9, zipfile.ZIP_BZIP2, "history.csv is compressed as no bundle is"),
    ],
)
def test_bundles_that_unpack_to_too_much(
    name: str, size: int, kind: int, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "bomb.zip"
    with (
        zipfile.ZipFile(path, "w", kind, compresslevel=1) as archive,
        archive.open(name, "w") as file,
    ):
        for first in range(0, size, MIB):
            file.write(bytes(min(MIB, size - first)))
    with little_memory(64 * MIB), pytest.raises(InputError, match=reason):
        open_bundle(path, tmp_path / "opened")


def test_arrays_that_are_packed_as_numpy_never_does(tmp_path: Path) -> None:
    file = io.BytesIO()
    np.save(file, np.zeros((2, 3)))
    for kind in (zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2):
        path = tmp_path / "x.npz"
        path.write_bytes(zipped({"x.npy": file.getvalue()}, kind))
        with pytest.raises(InputError, match="is compressed in a way that NumPy never uses"):
            read_inputs([path])


@pytest.mark.slow
def test_tables_of_very_many_columns(tmp_path: Path) -> None:
    """The work is proportional to the number of columns, not to its square."""
    path, names = tmp_path / "wide.csv", [f"c{number}" for number in range(10**5)]
    with little_time():
        path.write_text(f"{','.join(names * 2)}\n{',1' * (2 * len(names) - 1)}\n")
        assert len({*read_table(path).names}) == 2 * 10**5
        path.write_text(f"{','.join(names)}\n{'1,' * (len(names) - 1)}1\n")
        table = read_table(path)
        columns = [NumberColumn(name=name, fill=None, mean=0.0, deviation=1.0) for name in names]
        assert Columns(columns=[*columns]).features(table).shape == (1, 10**5)
        with pytest.raises(InputError, match=r"100,000 faults(.|\n)*and 99,980 more"):
            table.require([f"strange {number}" for number in range(10**5)])


def test_a_tensor_larger_than_its_record(base: Run, tmp_path: Path) -> None:
    """A tensor that claims more elements than its record has must not be read past the end."""
    body = io.BytesIO()
    torch.save({"a": torch.arange(10.0)}, body)
    with zipfile.ZipFile(body) as archive:
        records = {record.filename: archive.read(record) for record in archive.infolist()}
    (name,) = (name for name in records if name.endswith("data.pkl"))
    assert records[name].count(b"K\x0a") == 2
    records[name] = records[name].replace(b"K\x0a", b"K\xc8")
    path = tmp_path / "long.ckpt"
    path.write_bytes(signed(zipped(records)))
    with pytest.raises(InputError, match="is damaged or not a checkpoint"):
        open_trained(path)


def test_another_model_or_version_is_told_by_its_field(base: Run, tmp_path: Path) -> None:
    path = tmp_path / "other.ckpt"
    content = checkpoint.read(base.last_checkpoint)
    saved = content["kindling"]
    path.write_bytes(checkpoint.pack(content | {"kindling": saved | {"format": 99}}))
    with pytest.raises(InputError, match=rf"kindling\.format is 99, expected {checkpoint.FORMAT}"):
        open_trained(path)
    wider = compose(*SMALL, "data=toy", "model.hidden_sizes=[4]").to_primitives()
    path.write_bytes(checkpoint.pack(content | {"kindling": saved | {"config": wider}}))
    with pytest.raises(InputError, match=r"is \(.*\), the configuration says \("):
        open_trained(path)
    with pytest.raises(InputError, match=r"config\.model\.hidden_sizes: it was \[4\], now \[3\]"):
        check_state(checkpoint.read(path), path, [saved], 1, 9)


# --- what a stranger's text does to a terminal and to a spreadsheet ------------------------------

HOSTILE = (
    "\x1b]0;title\x07", "\x1b[2J", "\x1b[1A\x1b[K", "\x1b]52;c;Y21k\x1b\\", "\x1b[31m", "\x9b31m",
    "\x90q\x9c", "\x08\x08", "\x00", "\x7f", "\u202e", "\u2066",
)  # fmt: skip


def unsafe(text: str) -> set[str]:
    """The characters that steer a terminal, by what Unicode calls them."""
    controls = {c for c in text if unicodedata.category(c) == "Cc" and c not in "\n\t"}
    turns = {c for c in text if unicodedata.bidirectional(c) in
             ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")}  # fmt: skip
    return controls | turns


@pytest.fixture(scope="module")
def hostile_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run whose texts, classes, and names of files have codes for a terminal."""
    codes = "".join(HOSTILE)
    name = codes.replace("\0", "").replace("/", "")
    folder = tmp_path_factory.mktemp("hostile")
    lines = [f"{n},{n % 7},{'a' if n % 2 else 'b'}{name}" for n in range(60)]
    table = folder / "table.csv"
    table.write_text("\n".join([f"x,y{name},class", *lines, ""]))
    path = (f"data.path={table}", "data.target=class")
    run = fit(compose("data=csv", *SMALL[1:], *path), folder / f"run{name}")
    run.overrides_file.write_text(yaml.safe_dump([f"optimizer.lr={codes}"]))
    result = json.loads(run.result_file.read_text())
    result |= {"step_reason": codes, "commit": codes, "stopped": codes}
    result["versions"] = {**result["versions"], "torch": codes, codes: codes}
    run.write_result(result)
    (run.folder / f"{name}.csv").write_text(f"x,y{name}\n1,2\n3,4\n")
    return run


@pytest.mark.parametrize(
    ("module", "arguments", "status"),
    [
        ("src.runs", ["RUN"], 0),
        ("src.runs", ["compare", "RUN", "BASE"], 0),
        ("src.runs", ["rm", "RUN/x"], 2),
        ("src.evaluate", ["RUN"], 0),
        ("src.evaluate", ["RUN", "--json"], 0),
        ("src.predict", ["RUN", "TABLE"], 0),
        ("src.predict", ["RUN", "TABLE", "--csv", "-"], 0),
        ("src.predict", ["RUN", "TABLE.csv"], 2),
        ("src.report", ["RUN", "--output", "report.html"], 0),
        ("src.train", ["resume=RUN"], 0),
        ("src.train", ["resume=RUN/x"], 2),
        ("src.train", ["data.path=x\x1b[2J"], 2),
        ("src.train", ["seed=\x1b]0;x\x07"], 2),
        ("src.confirm", ["RUN"], 2),
        ("src.reproduce", ["RUN"], 2),
    ],
)
def test_no_command_prints_codes_of_a_file(
    module: str, arguments: list[str], status: int, hostile_run: Run, base: Run, command: Command
) -> None:
    (table,) = (each for each in hostile_run.folder.glob("*.csv") if each.name != "history.csv")
    names = {"RUN": hostile_run.folder, "TABLE": table, "BASE": base.folder}
    for name, path in names.items():
        arguments = [text.replace(name, str(path)) for text in arguments]
    done = command(module, *arguments)
    assert unsafe(done.stdout + done.stderr) == set()
    assert done.returncode == status, done.stderr
    assert done.stdout + done.stderr


@pytest.mark.parametrize(
    ("module", "arguments", "status"),
    [
        ("src.runs", ["RUN"], 0),
        ("src.runs", ["compare", "RUN", "RUN"], 0),
        ("src.runs", ["rm", "RUN"], 2),
        ("src.evaluate", ["RUN"], 0),
        ("src.evaluate", ["RUN/x"], 2),
        ("src.evaluate", ["RUN", "--data", "RUN/x"], 2),
        ("src.predict", ["RUN", "RUN/x"], 2),
        ("src.export", ["RUN", "--format", "safetensors"], 0),
        ("src.train", ["resume=RUN"], 0),
        ("src.train", ["data=csv", "data.target=a", "data.path='RUN'"], 2),
        ("src.committee", ["RUN"], 2),
        ("src.confirm", ["RUN"], 2),
        ("src.reproduce", ["RUN"], 2),
    ],
)
def test_no_name_of_a_folder_begins_a_line(
    module: str, arguments: list[str], status: int, base: Run, command: Command, tmp_path: Path
) -> None:
    name = "a\nerror: b\r\x1b[31mc"
    shutil.copytree(base.folder, tmp_path / name)
    done = command(module, *(text.replace("RUN", name) for text in arguments), FORCE_COLOR="1")
    lines = done.stdout.splitlines() + done.stderr.splitlines()
    assert not [line for line in lines if line.startswith(("error: b", "\x1b[31mc"))]
    assert "a\ufffderror: b\ufffd\ufffd[31mc" in "".join(lines)
    assert done.returncode == status, done.stderr


@pytest.mark.parametrize("text", HOSTILE)
def test_a_log_has_no_codes(text: str, tmp_path: Path) -> None:
    """Neither on a terminal, which gets colours, nor in train.log."""
    record = logging.LogRecord("kindling", logging.WARNING, "", 0, f"a{text}b", None, None)
    assert unsafe(LogLines(io.StringIO()).format(record)) == set()
    with logging_to([Run(tmp_path)]):
        logging.getLogger("kindling").warning("a%sb", text)
    assert unsafe(Run(tmp_path).log_file.read_text()) == set()


@pytest.mark.parametrize("text", [text for text in HOSTILE if text != "\x1b[31m"])
def test_a_terminal_gets_colours_alone(text: str) -> None:
    with terminal() as shown:
        assert not unsafe(cleaned(f"{text}a\r{text}\x1b[31mb\x1b[0m", shown).replace("\x1b[31m", "")
                          .replace("\x1b[0m", ""))  # fmt: skip
        assert cleaned(f"\r{text}a", shown)[0] == "\r"  # a bar of progress


FORMULAS = ("=1+1", "=cmd|' /C calc'!A0", "+cmd", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\uff1d1+1",
            "-", "--x")  # fmt: skip
PLAIN = ("-0.5", "+3", "1e-5", "-1.", "nan", "-inf", "a=b", "x-1", "", "7", "'=1", "ok")


@pytest.mark.parametrize("text", [*FORMULAS, *PLAIN])
def test_a_csv_file_has_no_formula(text: str) -> None:
    """As classes of predictions, as errors of trials, and as settings in a header."""
    guess, expected = Guess(0, 1, 0.5, 0.5), text
    if text in FORMULAS:
        expected = "'" + text.replace("\r", "\ufffd")
    predictions = [Prediction(Path("p.csv"), 0, guess)]
    written = (
        to_csv(predictions, [text, "other"]),
        csv_text(["class", "setting"], [{"class": text, "setting": 1}]),
    )
    for content in written:
        (row,) = csv.DictReader(io.StringIO(content))
        assert row["class"] == expected
    header = next(csv.reader(io.StringIO(csv_text([text], []))))
    assert header == [expected]
