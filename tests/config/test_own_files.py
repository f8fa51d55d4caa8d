"""Configuration files of the user's own that are broken: a line that says where, whatever asks."""

import random
from pathlib import Path

import pytest

from kindling.config.compose import shared_composer
from kindling.sweeps.command_line import check_command_line
from kindling.system.errors import InputError
from kindling.system.installation import CONF

FIRST = "# @package _global_\n"
BROKEN = {  # the lines after the first one, and the fault
    "a tab": (b"data:\n\tbatch_size: 3", "cannot be read (line 3: a tab; indent with spaces)"),
    "a key twice": (b"seed: 1\nseed: 2", "cannot be read (line 3: the key seed is given twice)"),
    "an open list": (b"seed: 1\ntags: [1,\n",
                     "cannot be read (line 3: a bracket or a quote has no partner)"),
    "an open text": (b"name: 'abc\nseed: 1",
                     "cannot be read (line 2: a bracket or a quote has no partner)"),
    "Latin-1": (b"seed: 1\nname: caf\xe9", "cannot be read (line 3 is not UTF-8; save the file as"),
    "a zero byte": (b"seed: 1\0", "cannot be read (line 2 has the unprintable character #x0000)"),
    "two colons": (b"seed: 1\nname: a: b", "cannot be read (line 3: mapping values are not allow"),
    "a deeper key": (b"seed: 1\n  name: a", "cannot be read (line 3: mapping values are not allow"),
    "an alias": (b"name: *a", "cannot be read (line 2: found undefined alias 'a')"),
    "a sign": (b"name: @a", "cannot be read (line 2: found character '@' that cannot start"),
    "a tag": (b"name: !!python/name:os.system a", "cannot be read (line 2: could not determine"),
    "two documents": (b"seed: 1\n---\nseed: 2", "(line 3: a second document begins; leave out ---"),
    "a list": (b"- seed", "is a list, must have lines such as seed: 1"),
}  # fmt: skip
ASKED = (
    (), ("--help",), ("--summary",), ("--cfg", "job"), ("--cfg=all",), ("--info=defaults",),
    ("-m", "seed=1,2"),
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shared_composer.cache_clear()  # keeps what it has composed
    for group in ("experiment", "optimizer"):
        (tmp_path / "own" / group).mkdir(parents=True)
    return tmp_path / "own"


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_file_is_a_line(fault: str, folder: Path) -> None:
    content, told = BROKEN[fault]
    for group in ("experiment", "optimizer"):
        (folder / group / "mine.yaml").write_bytes(FIRST.encode() + content)
        for arguments in ASKED:
            with pytest.raises(InputError) as caught:
                check_command_line(["--config-dir=own", f"{group}=mine", *arguments])
            title, *lines = str(caught.value).splitlines()
            assert title == "1 fault in the configuration, nothing was started"
            assert lines[0].startswith(f"  own/{group}/mine.yaml: ")
            assert told in lines[0]
            assert len(lines) == 1


@pytest.mark.parametrize("content", ["seed: 1", "", "only text", "defaults: 3"])
def test_an_experiment_without_its_first_line(content: str, folder: Path) -> None:
    (folder / "experiment" / "mine.yaml").write_text(content)
    for arguments in ASKED:
        with pytest.raises(InputError, match=r"mine.yaml: its first line must be # @package _gl"):
            check_command_line(["--config-dir=own", "experiment=mine", *arguments])


@pytest.mark.parametrize(
    "content",
    ["defaults: 3", "defaults: [3]", "defaults: {a: 1}", "optimizer: 3", "optimizer: [1]",
     "optimizer: null", "defaults: [override /optimizer: nix]", "name: ${nix}", "hydra: 3",
     "data: {name: [1]}", "defaults:\n  - optimizer: adam\n  - optimizer: sgd"],
)  # fmt: skip
def test_files_with_odd_contents_are_no_tracebacks(content: str, folder: Path) -> None:
    (folder / "experiment" / "mine.yaml").write_text(FIRST + content)
    for arguments in ASKED:
        asked = ["--config-dir=own", "experiment=mine", *arguments]
        if "--help" in arguments or "--info=defaults" in arguments:
            # These show what is composed, without a check of the values.
            assert len(_fault(asked).splitlines()) in (0, 2)
        else:
            with pytest.raises(InputError, match="in the configuration, nothing was started\n  "):
                check_command_line(asked)


@pytest.mark.slow
def test_mutations_of_a_file(folder: Path) -> None:
    """Any file is taken, or is a fault of at most a few lines."""
    hand = random.Random(3)
    content = (CONF / "experiment" / "few_samples.yaml").read_bytes()
    for _ in range(25):
        changed = bytearray(content)
        for _ in range(hand.randint(1, 3)):
            place = hand.randrange(len(FIRST), len(changed))
            changed[place : place + hand.choice([0, 1])] = hand.choice(
                [b"\t", b"[", b"'", b":", b"\n", b"{", b"\xff", b"- ", b"*", b"", b"#", b"\0"]
            )
        (folder / "experiment" / "mine.yaml").write_bytes(changed)
        shared_composer.cache_clear()
        for arguments in ((), ("--help",)):
            asked = ["--config-dir=own", "experiment=mine", "data=digits", *arguments]
            assert len(_fault(asked).splitlines()) < 10


def _fault(arguments: list[str]) -> str:
    try:
        check_command_line(arguments)
    except InputError as error:
        return str(error)
    return ""
