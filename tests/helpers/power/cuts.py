"""The states of a folder after a power cut, from a record of all calls that changed the folder.

A disk keeps what was synced. Of what was not, it may keep any part: the content of a file belongs
to the file's own sync, its name to the sync of the folder (man 2 fsync). The model follows Pillai
et al., All File Systems Are Not Created Equal, OSDI 2014.
"""

import os
import random
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).parent / "recorder.c"
SECTOR = 512  # bytes, which a disk writes as a whole


@dataclass(frozen=True)
class Call:
    """`kind`: c(reate), t(runcate), w(rite), s(ync), r(ename), u(nlink), d: rmdir, m(kdir), l(ink),
    y: symlink, -: a call that failed; others change nothing. Paths are relative to the root."""

    kind: str
    path: str
    other: str = ""
    place: int = 0
    data: bytes = b""

    def __str__(self) -> str:
        more = f" -> {self.other}" if self.other else ""
        return f"{self.kind} {self.path}{more}" + (f" {len(self.data)}" if self.data else "")


def compile_recorder(folder: Path) -> Path:
    library = folder / "recorder.so"
    options = ("-shared", "-fPIC", "-O1", "-w", "-o", str(library), str(SOURCE), "-ldl", "-pthread")
    subprocess.run(["cc", *options], check=True)
    return library


def log_of(root: Path) -> Path:
    """Where the calls below `root` are recorded."""
    return root.with_name(f"{root.name}.calls")


def calls_of(root: Path) -> list[Call]:
    """Those that were recorded."""
    return read_calls(log_of(root), root)


def read_calls(log: Path, root: Path) -> list[Call]:
    return [*_read(log.read_bytes(), str(root))]


def _read(content: bytes, root: str) -> Iterator[Call]:
    position = 0
    while position < len(content):
        end = content.index(b"\n", position)
        kind, *numbers = content[position:end].decode().split()
        path, other, place, size = map(int, numbers)
        parts = []
        position = end + 1
        for length in (path, other, size):
            parts.append(content[position : position + length])
            position += length
        names = [os.fsdecode(part) for part in parts[:2]]
        if kind != "y":
            names = [name and os.path.relpath(os.path.normpath(name), root) for name in names]
        else:
            names[0] = os.path.relpath(os.path.normpath(names[0]), root)
        yield Call(kind, names[0], names[1], place, parts[2])


@dataclass
class Node:
    """A folder (`entries`), a link (`target`) or a file: its content, and what of it is durable.
    `pending` are the writes since the last sync."""

    entries: "dict[str, Node] | None" = None
    target: str | None = None
    live: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    pending: list[tuple[int, bytes]] = field(default_factory=list)


@dataclass
class Naming:
    """A change of names: in each folder, the names and what they mean after the change, or None."""

    changes: list[tuple[Node, str, Node | None]]
    durable: bool = False


class Disk:
    """Live state, and the changes that a cut may undo."""

    def __init__(self, start: Path | None = None) -> None:
        self.root = Node(entries={})
        self.namings: list[Naming] = []
        self.live: dict[int, dict[str, Node]] = {}
        if start is not None:
            self.root = _durable(start)

    def _folder(self, path: str) -> Node:
        node = self.root
        for part in Path(path).parts:
            node = self._names(node)[part]
            assert node.entries is not None, path
        return node

    def _names(self, folder: Node) -> dict[str, Node]:
        """The live names of a folder."""
        if id(folder) not in self.live:
            assert folder.entries is not None
            self.live[id(folder)] = dict(folder.entries)
        return self.live[id(folder)]

    def _at(self, path: str) -> tuple[Node, str]:
        head, tail = os.path.split(path)
        return self._folder(head), tail

    def _found(self, path: str) -> Node:
        if path == ".":
            return self.root
        folder, name = self._at(path)
        return self._names(folder)[name]

    def _name(self, *changes: tuple[Node, str, Node | None]) -> None:
        for folder, name, node in changes:
            names = self._names(folder)
            names.pop(name, None)
            if node is not None:
                names[name] = node
        self.namings.append(Naming([*changes]))

    def apply(self, call: Call) -> None:  # noqa: PLR0912, a case for each kind of call
        match call.kind:
            case "c":
                self._name((*self._at(call.path), Node()))
            case "m":
                self._name((*self._at(call.path), Node(entries={})))
            case "y":
                self._name((*self._at(call.path), Node(target=call.other)))
            case "u" | "d":
                self._name((*self._at(call.path), None))
            case "l":
                self._name((*self._at(call.other), self._found(call.path)))
            case "r":
                self._rename(call)
            case "w" | "t":
                # A file that has no name any more cannot be found after a cut.
                if call.path.endswith(" (deleted)"):
                    return
                node = self._found(call.path)
                if call.kind == "t":
                    del node.live[call.place :]
                    node.live.extend(bytes(call.place - len(node.live)))
                    node.pending.append((-1 - call.place, b""))
                    return
                node.live.extend(bytes(max(0, call.place - len(node.live))))
                node.live[call.place : call.place + len(call.data)] = call.data
                node.pending.append((call.place, call.data))
            case "s":
                if call.path.endswith(" (deleted)"):
                    return
                node = self._found(call.path)
                if node.entries is None:
                    node.durable, node.pending = bytes(node.live), []
                for naming in self.namings:
                    naming.durable |= any(folder is node for folder, *_ in naming.changes)

    def _rename(self, call: Call) -> None:
        if not call.path:  # from elsewhere
            self._name((*self._at(call.other), Node()))
            return
        old, name = self._at(call.path)
        gone = (old, name, None)
        if not call.other:
            self._name(gone)
            return
        self._name(gone, (*self._at(call.other), self._names(old)[name]))


def _durable(path: Path) -> Node:
    """What is on the disk before a command."""
    if path.is_symlink():
        return Node(target=str(path.readlink()))
    if path.is_dir():
        return Node(entries={each.name: _durable(each) for each in path.iterdir()})
    content = path.read_bytes()
    return Node(live=bytearray(content), durable=content)


Tree = Mapping[str, bytes | None]  # the content of each file, None for a folder
Content = Callable[[Node], bytes]


def nothing(node: Node) -> bytes:
    return node.durable


def everything(node: Node) -> bytes:
    return bytes(node.live)


def zeros(node: Node) -> bytes:
    """The size without the data: blocks that were allocated and never written."""
    return node.durable + bytes(max(0, len(node.live) - len(node.durable)))


def torn(node: Node) -> bytes:
    """The first half of what was written since the last sync, to a sector."""
    found, total = bytearray(node.durable), sum(len(data) for _, data in node.pending)
    left = total // 2 // SECTOR * SECTOR
    for place, data in node.pending:
        if place < 0:
            del found[-1 - place :]
            continue
        some = data[:left]
        found.extend(bytes(max(0, place - len(found))))
        found[place : place + len(some)] = some
        left -= len(some)
    return bytes(found)


def tree(disk: Disk, namings: Sequence[Naming], content: Content) -> Tree:
    """The files after these changes of names. A change within a folder that is not there is lost
    with the folder."""
    names: dict[int, dict[str, Node]] = {}

    def of(folder: Node) -> dict[str, Node]:
        assert folder.entries is not None
        return names.setdefault(id(folder), dict(folder.entries))

    for naming in namings:
        for folder, name, node in naming.changes:
            of(folder).pop(name, None)
            if node is not None:
                of(folder)[name] = node
    found: dict[str, bytes | None] = {}

    def walk(folder: Node, path: str) -> None:
        for name, node in sorted(of(folder).items()):
            where = f"{path}/{name}" if path else name
            if node.entries is not None:
                found[where] = None
                walk(node, where)
            elif node.target is None:
                found[where] = content(node)

    walk(disk.root, "")
    return found


def after(calls: Sequence[Call], start: Path | None = None) -> Tree:
    """The files when all calls were made and nothing was cut."""
    disk = Disk(start)
    for call in calls:
        disk.apply(call)
    return tree(disk, disk.namings, everything)


@dataclass(frozen=True)
class Cut:
    """A state, and how it came about: after so many calls, by which rule."""

    calls: int
    rule: str
    tree: Tree


# Of a file system that keeps the order of names, as journals do: the last of them may be lost. Each
# rule: whether names that were not synced are there, and the content of files that were not synced.
ORDERED: dict[str, tuple[bool, Content]] = {
    "killed": (True, everything),
    "synced": (False, nothing),
    "named": (True, nothing),
    "zeros": (True, zeros),
    "torn": (True, torn),
    "written": (False, everything),
}


def cuts(calls: Sequence[Call], start: Path | None = None, *, any_order: int = 0) -> list[Cut]:
    """All different states after a cut before the first call, or after any call. `any_order` more
    at each call, drawn at random, are of a file system that keeps names and contents in any order.
    """
    disk, found, seen = Disk(start), list[Cut](), set[frozenset[tuple[str, bytes | None]]]()

    def add(number: int, rule: str, state: Tree) -> None:
        key = frozenset(state.items())
        if key not in seen:
            seen.add(key)
            found.append(Cut(number, rule, state))

    for number, call in enumerate([None, *calls]):
        if call is not None:
            disk.apply(call)
        for rule, state in _in_order(disk):
            add(number, rule, state)
        for seed in range(any_order):
            draw = random.Random(f"{number} {seed}")
            kept = [each for each in disk.namings if each.durable or draw.random() < 0.5]
            chosen = draw.choice([nothing, everything, zeros, torn])
            add(number, f"any order {seed}", tree(disk, kept, chosen))
    return found


def _in_order(disk: Disk) -> Iterator[tuple[str, Tree]]:
    last = max((n + 1 for n, each in enumerate(disk.namings) if each.durable), default=0)
    for rule, (named, content) in ORDERED.items():
        yield rule, tree(disk, disk.namings if named else disk.namings[:last], content)


def ends(calls: Sequence[Call], start: Path | None = None) -> list[Cut]:
    """The states after a cut when all calls were made, in the order of names."""
    disk = Disk(start)
    for call in calls:
        disk.apply(call)
    return [Cut(len(calls), rule, state) for rule, state in _in_order(disk)]


def build(state: Tree, root: Path) -> None:
    """Makes `root` what the disk holds."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    for path, content in state.items():
        target = root / path
        if content is None:
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    for path in sorted(state, key=len, reverse=True):
        # A folder that was to be removed has its own inode in its name, which is another one here.
        name = re.fullmatch(r"(\.discarded-)[1-9][0-9]*(-.*)", Path(path).name)
        if name:
            folder = root / path
            folder.rename(folder.with_name(f"{name[1]}{folder.stat().st_ino}{name[2]}"))
