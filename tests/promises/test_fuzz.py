"""What `make fuzz` does, once: right content of each kind is read, other content is refused."""

from contextlib import suppress
from pathlib import Path

import pytest

from kindling.system import files
from kindling.system.errors import InputError
from tests.fuzz import KINDS, readers, seeds


def test_each_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "SETTLED", 10**18)
    right, use = seeds(tmp_path / "seeds"), readers(tmp_path / "used")
    assert {*right} == {*use} == {*KINDS}
    for kind in ("overrides", "config", "history", "result", *KINDS):
        with suppress(InputError):  # files of a run are read together
            use[kind](right[kind])
    for kind in KINDS:
        use[kind](right[kind])
        with pytest.raises(InputError):
            use[kind](b"\xff[\n")
        use[kind](right[kind])
