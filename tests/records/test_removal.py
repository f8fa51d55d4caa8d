"""Removing runs: never those that train, never anything else."""

import io
import os
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from kindling.records.groups import GroupProgress, write_progress
from kindling.records.removal import LEFT, bytes_of, leftovers, remove_all, useless, why_in_use
from kindling.system.errors import InputError
from kindling.system.files import discarded_name, lock_or_fail
from kindling.system.units import size
from tests.helpers.runs import ended


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def sweep(*statuses: str) -> Path:
    folder = Path("sweeps/2026-01-02/10-00-00.0")
    for number, status in enumerate(statuses):
        run = ended(folder / str(number), 0.5, status=status)
        if status == "failed":
            run.remove_checkpoints(but_best=False)
    (folder / "multirun.yaml").write_text("")
    return folder


def test_a_run_is_removed_with_the_folder_of_its_date(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, second = (ended(Path(f"runs/2026-01-02/{n}"), 0.5).folder for n in "ab")
    told = remove_all({first: "failed"}, ask=False)
    assert capsys.readouterr().out.split() == [
        str(first),
        *size(bytes_of(second)).split(),
        "failed",
    ]
    assert told == f"removed: 1 folder, {size(bytes_of(second))}"
    assert [path.name for path in Path("runs/2026-01-02").iterdir()] == ["b"]
    remove_all({second: ""}, ask=False)
    assert not list(Path("runs").iterdir())


def test_no_other_folder_is_removed() -> None:
    run = ended(Path("runs/mine/a"), 0.5)
    Path("other").mkdir()
    Path("link").symlink_to(run.folder)
    faults = {"other": "is neither", "link": "is a link", "nix": "there is no such folder"}
    with pytest.raises(InputError) as caught:
        remove_all({Path(name): "" for name in [*faults, "runs/mine/a"]}, ask=False)
    lines = str(caught.value).splitlines()
    assert lines[0] == "nothing was removed"
    assert [f"{name}: {fault}" in line for line, (name, fault) in
            zip(lines[1:], faults.items(), strict=True)] == [True] * 3  # fmt: skip
    assert run.result_file.exists()
    remove_all({run.folder: ""}, ask=False)
    assert Path("runs/mine").is_dir()


def test_what_a_link_leads_to_stays() -> None:
    run = ended(Path("runs/a"), 0.5)
    Path("precious").mkdir()
    Path("precious/file").write_text("mine")
    (run.folder / "link").symlink_to(Path("precious").absolute())
    remove_all({run.folder: ""}, ask=False)
    assert Path("precious/file").read_text() == "mine"


@contextmanager
def progress_of(folder: Path, host: str, age: float) -> Iterator[None]:
    write_progress(
        folder,
        GroupProgress(
            host=host, process=7, device="cpu", trials=[], training=1, epoch=1, epochs=9,
            monitor="val/acc", best=None, seconds=1.0, epoch_seconds=1.0, written=time.time() - age,
        ),
    )  # fmt: skip
    yield


@pytest.mark.parametrize("place", ["0/checkpoints", ".stacks/abc", "."])
def test_what_trains_is_never_removed(place: str) -> None:
    """Whichever lock of a sweep is held."""
    folder = sweep("failed", "failed")
    with lock_or_fail(folder / place / ".lock"):
        assert f"process {os.getpid()} of" in str(why_in_use(folder))
        with pytest.raises(InputError, match=f"process {os.getpid()} of .* trains there"):
            remove_all({folder: ""}, ask=False)
        assert useless() == {}
    assert why_in_use(folder) is None
    assert useless() == {folder: "failed"}


def test_a_training_that_begins_while_a_run_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the lock before the folder has another name: the folder gets its name back."""
    folder = ended(Path("runs/2026-01-02/a"), 0.5).folder
    with ExitStack() as stack:

        def late(path: Path) -> Path:
            stack.enter_context(lock_or_fail(path / "checkpoints" / ".lock"))
            return discarded_name(path)

        monkeypatch.setattr("kindling.records.removal.discarded_name", late)
        with pytest.raises(InputError, match=f"^{folder}: process {os.getpid()} .* trains there"):
            remove_all({folder: ""}, ask=False)
    assert [path.name for path in folder.parent.iterdir()] == ["a"]
    assert (folder / "checkpoints" / "best.ckpt").exists()


@pytest.mark.parametrize(
    ("host", "age", "used"),
    [("other", 1.0, True), ("other", 1e4, False), (os.uname().nodename, 1.0, False)],
)
def test_a_run_on_another_machine(host: str, age: float, used: bool) -> None:
    """Its news count, because its lock may not be seen here. Of this machine the lock decides."""
    run = ended(Path("runs/a"), 0.5)
    with progress_of(run.checkpoints, host, age):
        assert why_in_use(run.folder) == ("process 7 of other" if used else None)


def test_a_lock_that_nobody_holds_and_what_is_no_lock() -> None:
    run = ended(Path("runs/a"), 0.5)
    (run.checkpoints / ".lock").write_text("process 1 of here")
    os.mkfifo(run.folder / ".a.lock")
    (run.folder / ".b.lock").symlink_to("/dev/zero")
    assert why_in_use(run.folder) is None


def test_a_question(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run = ended(Path("runs/a"), 0.5)

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for answer, stays in (("n\n", True), ("\n", True), ("yes\n", False)):
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        told = remove_all({run.folder: "failed"}, ask=True)
        assert run.folder.exists() == stays
        assert told.startswith("nothing was" if stays else "removed: 1 folder")
    out = capsys.readouterr().out
    assert "runs/a" in out
    assert "failed" in out
    assert "? [y/N]" in out


def test_without_a_terminal_to_ask_on(monkeypatch: pytest.MonkeyPatch) -> None:
    run = ended(Path("runs/a"), 0.5)
    monkeypatch.setattr("sys.stdin", io.StringIO("yes\n"))
    with pytest.raises(InputError, match="type --yes"):
        remove_all({run.folder: ""}, ask=True)
    assert run.folder.exists()


def old(folder: Path) -> Path:
    os.utime(folder / ".hydra/config.yaml", (1e9, 1e9))
    return folder


def test_useless_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """Failed, or without anything to go on with. Not what somebody may still use or repair."""
    failed = ended(Path("runs/failed"), None, status="failed")
    failed.remove_checkpoints(but_best=False)
    old(ended(Path("runs/failed later"), 0.5, status="failed").folder)  # it can go on
    for status in ("finished", "interrupted", "diverged"):
        old(ended(Path(f"runs/{status}"), 0.5, status=status).folder)
    damaged = ended(Path("runs/damaged"), 0.5)
    damaged.result_file.write_text("{")
    unreadable = ended(Path("runs/unreadable"), None, status="failed")
    unreadable.remove_checkpoints(but_best=False)
    unreadable.result_file.write_text("{")
    killed, starting, empty = (ended(Path(f"runs/{n}"), None) for n in ("killed", "start", "empty"))
    for run in (killed, starting, empty):
        run.result_file.unlink()
    for run in (starting, empty):
        run.remove_checkpoints(but_best=False)
    old(empty.folder)
    old(killed.folder)
    assert useless() == {failed.folder: "failed", empty.folder: "empty"}
    (told,) = capsys.readouterr().out.splitlines()
    assert told.startswith(f"not removed: {unreadable.result_file}: is not the result of a run (")


def test_useless_sweeps() -> None:
    folder = sweep("failed", "finished")
    assert useless() == {}
    ended(folder / "1", None, status="failed").remove_checkpoints(but_best=False)
    assert useless() == {folder: "failed"}
    (folder / ".stacks" / "ab").mkdir(parents=True)
    assert useless() == {folder: "failed"}
    (folder / ".stacks" / "ab" / "last.ckpt").write_text("")  # the stack can go on
    assert useless() == {}
    (folder / ".stacks" / "ab" / "last.ckpt").unlink()
    (folder / "0" / "result.json").unlink()
    Path("searches/lr").mkdir(parents=True)
    Path("searches/lr/search.yaml").write_text("[]")
    os.utime("searches/lr/search.yaml", (1e9, 1e9))
    assert useless() == {Path("searches/lr"): "empty"}
    Path("searches/lr/.stacks").mkdir()  # planned groups, which may wait on a cluster
    assert useless() == {}


def test_killed_while_it_removes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run is whole or gone; the next command lists the rest and removes it."""
    run = ended(Path("runs/2026-01-02/a"), 0.5)
    trial = ended(Path("sweeps/2026-01-02/b/0"), 0.5).folder
    (trial.parent / "multirun.yaml").write_text("")
    real = shutil.rmtree

    def killed(path: Path) -> None:
        next(Path(path).glob("*.json")).unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed)
    for folder in (run.folder, trial):
        with pytest.raises(KeyboardInterrupt):
            remove_all({folder: ""}, ask=False)
        assert not folder.exists()
    monkeypatch.setattr(shutil, "rmtree", real)
    first, second = leftovers()
    assert (first.parent, second.parent) == (run.folder.parent, trial.parent)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    with pytest.raises(InputError, match=r"2 folders, .*: type --yes"):
        remove_all({}, ask=True)
    assert leftovers() == [first, second]
    capsys.readouterr()
    assert remove_all({}, ask=False).startswith("removed: 2 folders, ")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [str(first), str(second)]
    assert all(line.endswith(LEFT) for line in lines)
    assert leftovers() == []
    assert remove_all({}, ask=True) == "nothing to remove"


def test_a_new_folder_that_was_not_yet_renamed_is_removed_if_it_is_empty() -> None:
    """A process was killed before it wrote anything into the folder."""
    empty, full = Path("runs/.discarded-0-0123abcd"), Path("runs/.discarded-0-0123abce")
    empty.mkdir(parents=True)
    full.mkdir()
    (full / "mine").touch()
    assert leftovers() == [empty]


NAMES = (".removed-mybackup", ".removed-0123abcd", ".discarded-backup", ".discarded-1-0123abcd",
         "mine", ".hidden", "2026-01-02", "3", "-rf", "a\nb", ".discarded-{}-x")  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_nothing_of_the_users_own_is_ever_removed(seed: int) -> None:
    """Folders, files and links with any names, some of them nearly those of a killed removal, at
    any depth, beside what a killed removal has left."""
    draw = random.Random(seed)
    places = [Path("runs"), Path("sweeps"), Path("outside")]
    for place in places:
        place.mkdir()
    for _ in range(30):
        place = draw.choice(places)
        path = place / draw.choice(NAMES).format(place.stat().st_ino)
        if os.path.lexists(path):
            continue
        match draw.choice(["folder", "file", "link", "copy"]):
            case "folder":
                path.mkdir()
                places.append(path)
            case "file":
                path.write_text("mine")
            case "link":
                path.symlink_to(draw.choice(places).absolute())
            case "copy":  # of what a killed removal has left: no longer its own
                path.mkdir()
                shutil.copytree(path, place / discarded_name(path).name)
    before = tree()
    run = ended(Path("runs/2026/a"), 0.5).folder
    rest = run.rename(discarded_name(run))
    (rest / "link").symlink_to(Path("outside").absolute())
    (rest.parent / f".discarded-{rest.stat().st_ino}-00000000").symlink_to(rest.name)
    after = {*tree()} - {path for path in tree() if path.startswith(str(rest))}
    assert leftovers() == [rest]
    assert useless() == {}
    remove_all({}, ask=False)
    assert tree() == sorted(after)
    assert {*before} <= after


def tree() -> list[str]:
    return sorted(str(path) for path in Path().rglob("*"))
