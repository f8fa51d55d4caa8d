"""Names and tags of runs and sweeps."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kindling.config.compose import compose
from kindling.records import checkpoint
from kindling.records.config_files import create_run_folder
from kindling.records.folder import Run
from kindling.records.labels import FILE, Labels, read_labels, write_labels
from kindling.system.errors import InputError
from kindling.training.fit import fit
from tests.helpers.commands import SMALL
from tests.helpers.runs import ended


def test_labels_that_were_typed_at_the_start(tmp_path: Path) -> None:
    """Of a sweep, those of its first trial."""
    config = compose(*SMALL, "name=wide", "tags=[mnist,2]")
    create_run_folder(Run(tmp_path / "sweep" / "0"), config.to_primitives())
    (tmp_path / "sweep" / "multirun.yaml").write_text("")
    for folder in (tmp_path / "sweep", tmp_path / "sweep" / "0"):
        assert read_labels(folder) == Labels(name="wide", tags=["mnist", "2"])
    ended(tmp_path / "run", 0.5)
    assert read_labels(tmp_path / "run") == Labels()
    assert read_labels(tmp_path / "nothing") == Labels()


def test_a_run_of_an_older_version_has_none(tmp_path: Path) -> None:
    run = ended(tmp_path, 0.5)
    lines = run.config_file.read_text().splitlines()
    kept = [line for line in lines if not line.startswith(("name:", "tags:"))]
    assert len(kept) == len(lines) - 2
    run.config_file.write_text("\n".join(kept))
    assert read_labels(tmp_path) == Labels()
    assert run.config.name is None


def test_labels_change_later(tmp_path: Path) -> None:
    ended(tmp_path, 0.5, "name=first", "tags=[a,b]")
    assert write_labels(tmp_path, None, ("c", "a"), ("b",)) == read_labels(tmp_path)
    assert read_labels(tmp_path) == Labels(name="first", tags=["a", "c"])
    again = write_labels(tmp_path, None, ("c", "a"), ("b",))  # b has been removed before
    assert again == Labels(name="first", tags=["a", "c"])
    write_labels(tmp_path, name="second")
    assert str(read_labels(tmp_path)) == "name second, tags a, c"
    write_labels(tmp_path, name="", remove=("a", "c"))
    assert str(read_labels(tmp_path)) == "name –, tags –"
    assert Run(tmp_path).config.name == "first"  # as it was typed


def test_two_commands_at_once_lose_no_tag(tmp_path: Path) -> None:
    ended(tmp_path, 0.5)
    with ThreadPoolExecutor(8) as threads:
        for number in range(16):
            threads.submit(write_labels, tmp_path, None, [f"t{number}"])
    assert {*read_labels(tmp_path).tags} == {f"t{number}" for number in range(16)}
    assert not [*tmp_path.glob(".*.part")]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"name": "latest"}, "must not be latest"),
        ({"name": "auto"}, "must not be auto"),
        ({"name": "a/b"}, "1 to 64 letters"),
        ({"name": "-x"}, "1 to 64 letters"),
        ({"name": "x" * 65}, "1 to 64 letters"),
        ({"add": ("",)}, "1 to 64 letters"),
        ({"add": tuple(f"t{n}" for n in range(33))}, "at most 32"),
    ],
)
def test_wrong_labels(change: dict[str, Any], told: str, tmp_path: Path) -> None:
    ended(tmp_path, 0.5, "tags=a")
    with pytest.raises(InputError, match=told):
        write_labels(tmp_path, **change)
    assert not (tmp_path / FILE).exists()


def test_a_note(tmp_path: Path) -> None:
    """Any text. It stays when other labels change."""
    ended(tmp_path, 0.5, "name=first")
    note = "two\nlines, 'quotes' and \x1b[31m"
    write_labels(tmp_path, note=note)
    write_labels(tmp_path, add=("a",))
    assert read_labels(tmp_path) == Labels(name="first", tags=["a"], note=note)
    assert str(read_labels(tmp_path)).endswith(
        "tags a, note two\N{REPLACEMENT CHARACTER}lines, 'quotes' and \N{REPLACEMENT CHARACTER}[31m"
    )
    write_labels(tmp_path, note="x" * 2000)
    with pytest.raises(InputError, match="at most 2000 characters"):
        write_labels(tmp_path, note="x" * 2001)
    write_labels(
        tmp_path,
        note="\N{GRINNING FACE}" * 2000,
        add=tuple("x" * 62 + f"{n:02}" for n in range(31)),
    )
    assert len(read_labels(tmp_path).tags) == 32
    write_labels(tmp_path, note="")
    assert "note" not in (tmp_path / FILE).read_text()


def test_only_runs_and_sweeps_are_labelled(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is neither a run nor a sweep"):
        write_labels(tmp_path, name="x")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"name": "a/b"}', '{"x": 1}', '{"tags": ["latest"]}',
                "a" * 20_000, "\xff", '{"name": null, "tags": {}}'],
)  # fmt: skip
def test_damaged_labels_name_their_file(content: str, tmp_path: Path) -> None:
    ended(tmp_path, 0.5)
    (tmp_path / FILE).write_text(content, encoding="latin-1")
    with pytest.raises(InputError, match=FILE):
        read_labels(tmp_path)


def test_labels_change_nothing_of_the_training(tmp_path: Path) -> None:
    """Neither the identity of the run nor one byte of its checkpoints."""
    plain, labelled = compose(*SMALL), compose(*SMALL, "name=x", "tags=[a]")
    assert plain.hash() == labelled.hash()
    runs = [fit(config, tmp_path / str(n)) for n, config in enumerate((plain, labelled))]
    best = [checkpoint.read(run.best_checkpoint) for run in runs]
    assert best[0]["kindling"] == best[1]["kindling"]
    assert "name" not in runs[1].overrides
    assert fit(plain, runs[1].folder, resume=True).result["status"] == "finished"
