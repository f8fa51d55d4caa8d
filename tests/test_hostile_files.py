"""Files that strangers sent: damaged ones, mutated ones, and some that mean harm.

Whatever they hold, opening them ends in success or in one of the project's own errors. The few
hundred examples of the default run become ten thousand with `make torture`.
"""

import errno
import hashlib
import io
import json
import os
import pickle
import resource
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from src import checkpoint, composition
from src.checkpoint import Slot
from src.composition import check_command_line, compose
from src.data.sources import mnist
from src.data.sources.idx import read_idx
from src.errors import InputError
from src.files import YAML_LIMIT, read_yaml, write_durably
from src.inputs import read_inputs
from src.run import Run
from src.trained import open_trained
from src.training.fit import fit
from src.training.state import check
from tests.conftest import SMALL

MANY = os.environ.get("TORTURE") is not None
GIB = 2**30


def examples(share: int) -> Callable[[Any], Any]:
    """Settings for a share of the ten thousand, or a fortieth of it."""
    return settings(
        max_examples=share if MANY else share // 40,
        deadline=timedelta(seconds=10),
        derandomize=not MANY,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A small run whose files are mutated, each in a copy."""
    folder = tmp_path_factory.mktemp("base") / "run"
    return fit(compose(*SMALL, "data=toy", "model.hidden_sizes=[3]"), folder)


@pytest.fixture(autouse=True)
def _bounded_memory() -> Any:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # KiB


Mutation = list[tuple[str, float, bytes]]
MUTATIONS = st.lists(
    st.tuples(
        st.sampled_from(["flip", "cut", "insert", "delete", "repeat"]),
        st.floats(0, 1, exclude_max=True),
        st.binary(min_size=1, max_size=8),
    ),
    min_size=1,
    max_size=4,
)


def mutated(content: bytes, mutations: Mutation) -> bytes:
    data = bytearray(content)
    for kind, where, patch in mutations:
        at = int(where * len(data))
        if kind == "flip":
            data[at : at + len(patch)] = patch
        elif kind == "cut":
            del data[at:]
        elif kind == "insert":
            data[at:at] = patch
        elif kind == "delete":
            del data[at : at + len(patch) ** 2]
        else:
            data[at:at] = data[max(0, at - 50) : at] * patch[0]
    return bytes(data)


def signed(body: bytes) -> bytes:
    """A zip archive with the checksum that a checkpoint has."""
    comment = b"sha256=" + hashlib.sha256(body).hexdigest().encode()
    return body[:-2] + len(comment).to_bytes(2, "little") + comment


def unsigned(data: bytes) -> bytes:
    return data[:-73] + b"\0\0"


def own_error(action: Callable[[], Any]) -> None:
    """Runs it; any exception but the project's own is a failure."""
    with suppress(InputError):
        action()


# --- mutated -----------------------------------------------------------------------------------


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
        with pytest.raises(InputError, match="is damaged or no checkpoint"):
            open_trained(path)


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
    """The archive and its checksum are right; the description of the content is not."""
    path = tmp_path / "mutated.ckpt"
    with zipfile.ZipFile(base.last_checkpoint) as archive:
        records = {record.filename: archive.read(record) for record in archive.infolist()}
    (name,) = (name for name in records if name.endswith("data.pkl"))
    records[name] = mutated(records[name], mutations)
    path.write_bytes(signed(zipped(records)))
    own_error(lambda: open_trained(path))


JUNK: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@examples(1000)
@given(path=st.lists(st.integers(0, 20), min_size=1, max_size=6), junk=JUNK)
def test_checkpoints_that_say_something_else(
    path: list[int], junk: Any, base: Run, tmp_path: Path
) -> None:
    """One value somewhere in the content is replaced by another."""
    content = checkpoint.read(base.last_checkpoint)
    node, parent, key = content, content, next(iter(content))
    for number in path:
        if not isinstance(node, dict | list) or not node:
            break
        parent = node
        key = [*node][number % len(node)] if isinstance(node, dict) else number % len(node)
        node = parent[key]
    parent[key] = junk
    file = tmp_path / "other.ckpt"
    file.write_bytes(checkpoint.pack(content))
    own_error(lambda: open_trained(file))
    origin = checkpoint.read(base.last_checkpoint)["kindling"]
    own_error(lambda: check(checkpoint.read(file), file, [origin], 1, 9))


@pytest.mark.parametrize(
    "key", ["loops", "callbacks", "optimizer_states", "position", "ranks", "diverged", "state_dict"]
)
@pytest.mark.parametrize("junk", [None, {}, [], 3, "x"])
def test_a_state_that_cannot_be_restored(key: str, junk: Any, base: Run, tmp_path: Path) -> None:
    """Trained on, or refused; the checkpoint stays what it was until then."""
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
    own_error(lambda: composition.load(path))


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
    run.replace_config(base.config)
    run.result_file.write_bytes(mutated(base.result_file.read_bytes(), mutations))
    own_error(lambda: (run.result, run.ended, run.monitored))


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
def test_mutated_data_files(mutations: Mutation, tmp_path: Path) -> None:
    path = tmp_path / "labels-idx1-ubyte"
    content = b"\0\0\x08\x01\0\0\0\x64" + bytes(range(100))
    path.write_bytes(mutated(content, mutations))
    own_error(lambda: read_idx(path, None, "a set"))


def _pictures() -> list[bytes]:
    """A palette with transparency, text and EXIF in PNG and JPEG: what has parsers of its own."""
    image = Image.linear_gradient("L").resize((40, 30)).rotate(20)
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010E] = "a description"
    kinds: list[tuple[str, str, dict[str, Any]]] = [
        ("PNG", "P", {"transparency": 3, "exif": exif}),
        ("PNG", "LA", {}),
        ("PNG", "I;16", {}),
        ("JPEG", "RGB", {"exif": exif, "progressive": True}),
        ("JPEG", "CMYK", {}),
    ]
    contents = []
    for kind, mode, options in kinds:
        file = io.BytesIO()
        image.convert(mode).save(file, kind, **options)
        contents.append(file.getvalue())
    return contents


PICTURES = _pictures()


@examples(1000)
@given(number=st.integers(0, len(PICTURES) - 1), mutations=MUTATIONS, seal=st.booleans())
def test_mutated_pictures(number: int, mutations: Mutation, seal: bool, tmp_path: Path) -> None:
    path = tmp_path / "mutated.png"
    data = mutated(PICTURES[number], mutations)
    path.write_bytes(_with_checksums(data) if seal else data)
    own_error(lambda: read_inputs([path]))


def _with_checksums(data: bytes) -> bytes:
    """The chunks of a PNG, each with the checksum that its content has now."""
    if not data.startswith(PICTURES[0][:8]):
        return data
    parts, at = [data[:8]], 8
    while at + 12 <= len(data):
        size = int.from_bytes(data[at : at + 4])
        chunk = data[at + 4 : at + 8 + size]
        parts += [data[at : at + 4], chunk, zlib.crc32(chunk).to_bytes(4)]
        at += 12 + size
    return b"".join(parts)


@examples(500)
@given(mutations=MUTATIONS, packed=st.booleans(), inside=st.booleans())
def test_mutated_arrays(mutations: Mutation, packed: bool, inside: bool, tmp_path: Path) -> None:
    """Of the archive, or of an array within a whole one."""
    path, file = tmp_path / "mutated.npz", io.BytesIO()
    np.save(file, np.linspace(0, 1, 24).reshape(2, 3, 4))
    x = mutated(file.getvalue(), mutations) if inside else file.getvalue()
    compression = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    archive = zipped({"x.npy": x}, compression)
    path.write_bytes(archive if inside else mutated(archive, mutations))
    own_error(lambda: read_inputs([path]))


# --- meaning harm ------------------------------------------------------------------------------


class Harm:
    """What creates a file when it is unpickled without care."""

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
    slot = Slot(tmp_path / "run" / "checkpoints")
    slot.folder.mkdir(parents=True)
    slot.last.write_bytes(checkpoint.pack({"kindling": Harm(target)}))
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
        mnist(tmp_path)
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
    with pytest.raises(InputError, match="it has aliases"):
        read_yaml(aliased)
    aliased.write_bytes(b"a" * (YAML_LIMIT + 1))
    with pytest.raises(InputError, match="has more than 262,144 bytes"):
        read_yaml(aliased)
    aliased.write_text("[" * 100_000)
    with pytest.raises(InputError, match="cannot be read as YAML"):
        read_yaml(aliased)
    run = Run(tmp_path)
    run.result_file.write_text("[" * 100_000)
    with pytest.raises(InputError, match="is not JSON"):
        _ = run.result


def test_a_tensor_larger_than_its_record(base: Run, tmp_path: Path) -> None:
    """A count of elements beyond the bytes that there are must not read on past their end."""
    body = io.BytesIO()
    torch.save({"a": torch.arange(10.0)}, body)
    with zipfile.ZipFile(body) as archive:
        records = {record.filename: archive.read(record) for record in archive.infolist()}
    (name,) = (name for name in records if name.endswith("data.pkl"))
    assert records[name].count(b"K\x0a") == 2
    records[name] = records[name].replace(b"K\x0a", b"K\xc8")
    path = tmp_path / "long.ckpt"
    path.write_bytes(signed(zipped(records)))
    with pytest.raises(InputError, match="is damaged or no checkpoint"):
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
        check(checkpoint.read(path), path, [saved], 1, 9)


# --- written durably ---------------------------------------------------------------------------


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_durably(path, "old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_durably(path, "new")
    assert caught.value.filename == str(path)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_at_every_instant_one_of_the_two_checkpoints_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looked at before and after every call that changes the folder."""
    slot = Slot(tmp_path / "checkpoints")
    seen: list[set[int]] = []

    def watched(name: str) -> None:
        call = getattr(os, name)

        def wrapped(*given: Any, **named: Any) -> Any:
            for act in (lambda: None, lambda: call(*given, **named)):
                act()
                found = slot.read()
                seen.append({found[0]["n"]} if found else set())

        monkeypatch.setattr(os, name, wrapped)

    for name in ("fsync", "link", "replace"):
        watched(name)
    for number in range(3):
        slot.write({"n": number, "big": torch.from_numpy(np.zeros(1000))})
    flat = [next(iter(found), -1) for found in seen]
    assert flat == sorted(flat)
    assert set(flat) == {-1, 0, 1, 2}
    monkeypatch.undo()
    assert slot.previous.exists()
    assert checkpoint.read(slot.previous)["n"] == 1


def test_json_of_a_result_has_no_nan(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.write_result({"a": float("nan"), "b": {"c": float("inf")}})
    assert json.loads(run.result_file.read_text()) == {"a": None, "b": {"c": None}}
