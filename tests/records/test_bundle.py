"""A run in a file: what goes in comes out, and a hostile file writes nothing."""

import io
import shutil
import zipfile
from pathlib import Path

import pytest

from kindling.config.compose import compose
from kindling.records.bundle import FILE_LIMITS, MANIFEST, open_bundle, write_bundle
from kindling.records.folder import Run
from kindling.system.errors import InputError
from kindling.training.fit import fit
from kindling.training.reproduction import reproduce
from tests.helpers.bundles import rewritten
from tests.helpers.commands import Train


def test_a_bundle_holds_the_files_of_its_run(bundle: Path, original: Run, tmp_path: Path) -> None:
    opened = open_bundle(bundle, tmp_path / "opened")
    for name in FILE_LIMITS:
        if (original.folder / name).exists():
            assert (opened.run.folder / name).read_bytes() == (original.folder / name).read_bytes()
    assert opened.run.result["commit"] == original.result["commit"]
    assert opened.packages["torch"] == original.result["versions"]["torch"]
    assert opened.config.data.root is None  # data come from here
    first = bundle.read_bytes()
    write_bundle([original.folder], bundle, force=True)
    assert bundle.read_bytes() == first


def test_the_data_set_of_the_original_run_is_used_again(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DATA_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    run = train("data=mnist_or_digits")
    if run.result["data"]["name"] != "digits":
        pytest.skip("MNIST was downloaded")
    write_bundle([run.folder], tmp_path / "run.zip")
    assert open_bundle(tmp_path / "run.zip", tmp_path / "opened").config.data.name == "digits"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"../evil": b"x"}, r"holds '\.\./evil', which no bundle has"),
        ({"/tmp/evil": b"x"}, r"holds '/tmp/evil'"),
        ({".hydra/../../evil": b"x"}, "which no bundle has"),
        ({"result.json": b" " * (17 * 2**20)}, "result.json has more than"),
        ({"history.csv": None}, "it lacks history.csv"),
        ({MANIFEST: b"{"}, "is not a bundle"),
        ({MANIFEST: b"[" * 100_000}, "is not a bundle"),
        ({MANIFEST: b'{"format": 2}'}, "its format is 2, expected 1"),
    ],
    ids=lambda value: str(value)[:40],  # some are of megabytes
)
def test_a_hostile_bundle_writes_nothing(
    changes: dict[str, bytes | None], reason: str, bundle: Path, tmp_path: Path
) -> None:
    before = sorted(tmp_path.rglob("*"))
    other = rewritten(bundle, changes)
    with pytest.raises(InputError, match=reason):
        open_bundle(other, tmp_path / "opened")
    assert sorted(tmp_path.rglob("*")) == sorted([*before, other])


def test_a_changed_file_is_noticed(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the checksum of history\.csv is wrong"):
        open_bundle(rewritten(bundle, {"history.csv": b"a"}, honest=False), tmp_path / "opened")
    twice = io.BytesIO(bundle.read_bytes())
    with zipfile.ZipFile(twice, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("history.csv", b"b")
    (tmp_path / "twice.zip").write_bytes(twice.getvalue())
    with pytest.raises(InputError, match=r"holds 'history\.csv' twice"):
        open_bundle(tmp_path / "twice.zip", tmp_path / "opened")
    (tmp_path / "text.zip").write_text("no zip")
    with pytest.raises(InputError, match="is not a bundle of this project"):
        open_bundle(tmp_path / "text.zip", tmp_path / "opened")
    with pytest.raises(InputError, match="there is no such file"):
        open_bundle(tmp_path / "absent.zip", tmp_path / "opened")


def test_own_data_lie_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text("a,b,kind\n" + "".join(f"{n},{n % 3},{n % 2}\n" for n in range(40)))
    run = fit(compose("data=csv", "data.path=t.csv", "data.target=kind", "trainer=cpu"), "run")
    write_bundle([run.folder], Path("run.zip"))
    (tmp_path / "new").mkdir()
    Path("t.csv").rename("new/t.csv")
    told = r"run\.zip: was trained on data\.path=t\.csv, which is not in the bundle .*; type --data"
    with pytest.raises(InputError, match=told):
        open_bundle(Path("run.zip"), tmp_path / "a")
    opened = open_bundle(Path("run.zip"), tmp_path / "b", data=Path("new/t.csv"))
    assert opened.config.data.path == "new/t.csv"  # type: ignore[union-attr]
    assert reproduce(opened, tmp_path / "again").agrees
    Path("wrong.csv").write_text("a,b,kind\n" + "".join(f"{n},0,{n % 2}\n" for n in range(40)))
    other = open_bundle(Path("run.zip"), tmp_path / "c", data=Path("wrong.csv"))
    with pytest.raises(InputError, match=r"wrong\.csv: its content is not that of the data"):
        reproduce(other, tmp_path / "never")
    assert not (tmp_path / "never").exists()


def test_own_data_for_a_shipped_data_set_are_refused(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--data x\.csv: .* was trained on data=digits; leave"):
        open_bundle(bundle, tmp_path / "a", data=Path("x.csv"))


def test_runs_that_cannot_be_bundled(bundle: Path, original: Run, tmp_path: Path) -> None:
    run = Run(shutil.copytree(original.folder, tmp_path / "run"))
    with pytest.raises(InputError, match=r"run\.zip: exists already; .*--force"):
        write_bundle([run.folder], bundle)
    with pytest.raises(InputError, match=r"there is no folder .*absent; make it first"):
        write_bundle([run.folder], tmp_path / "absent" / "run.zip")
    with pytest.raises(InputError, match="takes one run, not 2"):
        write_bundle([run.folder, run.folder], tmp_path / "two.zip")
    with pytest.raises(InputError, match="there is no such folder"):
        write_bundle([tmp_path / "absent"], tmp_path / "x.zip")
    with pytest.raises(InputError, match=r"is not a finished run, it lacks \.hydra/config\.yaml"):
        write_bundle([tmp_path], tmp_path / "x.zip")
    run.write_result(run.result | {"status": "interrupted"})
    with pytest.raises(InputError, match="is interrupted, only a finished run"):
        write_bundle([run.folder], tmp_path / "x.zip")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("checkpoints/best.ckpt", "is damaged .* \\(its checksum is wrong\\)$"),
        ("checkpoints/last.ckpt", "is damaged .* \\(its checksum is wrong\\); remove it"),
        (".hydra/config.yaml", "is not the configuration of .*result.json; .* resume="),
    ],
)
def test_a_flipped_bit_goes_into_no_bundle(
    name: str, told: str, original: Run, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(original.folder, tmp_path / "run"))
    content = bytearray((folder / name).read_bytes())
    # Another seed, which is a setting as good; or another number among the weights.
    content[content.index(b"seed: ") + 6 if name.endswith(".yaml") else len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(InputError, match=f"^{folder / name}: {told}"):
        write_bundle([folder], tmp_path / "run.zip")
    assert not (tmp_path / "run.zip").exists()
