"""What must hold of the files after a power cut, whatever command is typed next."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from kindling.system.files import DISCARDED
from tests.helpers.power.cuts import (
    Call,
    Disk,
    Naming,
    Tree,
    after,
    everything,
    nothing,
    torn,
    tree,
)

# Written in place, or for other processes alone: they may be torn, or gone.
IN_PLACE = (".log", ".lock", ".part", "-journal", ".db", "history.csv", "progress.json")
BEFORE_CONFIG = ("overrides.yaml", "hydra.yaml")  # written in place before config.yaml has its name


def broken_laws(calls: Sequence[Call], start: Path) -> set[str]:
    """The laws that a state after a cut breaks, on a file system that keeps names in any order."""
    found, disk, whole = set[str](), Disk(start), _whole(calls, start)
    before, end = after([], start), after(calls, start)
    for call in calls:
        disk.apply(call)
        for state in _states(disk):
            found.update(_broken(state, whole))
            found.update(
                f"{Path(path).name}: a part of a folder that was to be removed"
                for path in before.keys() - state.keys()
                if any(folder in state for folder in _removed(path, end))
            )
    sure = tree(disk, [each for each in disk.namings if each.durable], nothing)
    return found | {
        f"{Path(path).name}: not durable at the end"
        for path, content in end.items()
        if _replaced(path) and content != sure.get(path, b"absent")
    }


def _removed(path: str, end: Tree) -> list[str]:
    """The folders around a path, without the current one, that are gone at the end."""
    return [str(each) for each in [*Path(path).parents][:-1] if str(each) not in end]


def _replaced(path: str) -> bool:
    return not path.endswith(IN_PLACE) and DISCARDED not in path


def _whole(calls: Sequence[Call], start: Path) -> Mapping[str, set[bytes | None]]:
    """The contents that each file had when it got its name, and before and after the command. Of a
    history: those that it had when a result was written beside it."""
    disk, found = Disk(start), defaultdict[str, set[bytes | None]](set)

    def note(state: Tree, paths: Iterator[str]) -> None:
        for path in paths:
            found[path].add(state.get(path))

    def live() -> Tree:
        return tree(disk, disk.namings, everything)

    note(before := live(), iter(before))
    for call in calls:
        disk.apply(call)
        if call.kind == "r" and call.other:
            names = [call.other]
            if Path(call.other).name == "result.json":
                names.append(str(Path(call.other).with_name("history.csv")))
            state = live()
            inside = (path for path in state if path.startswith(f"{call.other}/"))
            note(state, iter([*names, *inside]))
    note(after := live(), iter(after))
    return found


def _states(disk: Disk) -> Iterator[Tree]:
    """With the names that are durable, and of the others all, none, one, or all but one."""
    sure = [each for each in disk.namings if each.durable]
    rest = [each for each in disk.namings if not each.durable and _matters(each)]
    kept: list[list[Naming]] = [sure, disk.namings]
    for one in rest:
        kept += [[each for each in disk.namings if each.durable or each is one]]
        kept += [[each for each in disk.namings if each is not one]]
    for namings in kept:
        yield tree(disk, namings, nothing)
        yield tree(disk, namings, torn)


def _matters(naming: Naming) -> bool:
    return any(not name.endswith(IN_PLACE) for _, name, _ in naming.changes)


def _broken(state: Tree, whole: Mapping[str, set[bytes | None]]) -> Iterator[str]:
    for path, content in state.items():
        name, folder = Path(path).name, str(Path(path).parent)
        if Path(folder).name.startswith(f"{DISCARDED}0-"):
            yield f"{DISCARDED}0: is not empty, and no command would remove it"
        if name == "result.json" and DISCARDED not in path:
            history = f"{folder}/history.csv"
            if history in whole and state.get(history) not in whole[history]:
                yield "result.json: without its history"
        if content is None or not _replaced(path):
            continue
        if name in BEFORE_CONFIG and f"{folder}/config.yaml" not in state:
            continue
        if content not in whole[path]:
            yield f"{name}: neither the old nor the new one"
    for path in state:
        if Path(path).name == "config.yaml" and Path(path).parent.name == ".hydra":
            others = (str(Path(path).with_name(name)) for name in BEFORE_CONFIG)
            if _replaced(path) and any(each in whole and each not in state for each in others):
                yield "config.yaml: without what was typed"
