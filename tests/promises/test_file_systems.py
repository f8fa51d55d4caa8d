"""After a power cut on a real file system, the same command ends as if nothing had happened.

Each operation runs once on a disk that records what the file system writes (tests/helpers/power/
device.py). A cut leaves what such a disk may hold; the file system then repairs itself when it is
mounted. POWER_CUTS=N tries N cuts of each operation.
"""

import json
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.operations import OPERATIONS, Done
from tests.helpers.power import device
from tests.helpers.warm import Warm


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    runner = Warm("kindling.training.fit", "kindling.reports.page")
    yield runner
    runner.stop()


def faults_on(system: str, name: str, warm: Warm, folder: Path, number: int) -> list[str]:
    """What is wrong after so many cuts. When the command has ended, each cut must leave its
    outcome; the others are drawn at random."""
    if why := device.missing(system):
        pytest.skip(why)
    operation = OPERATIONS[name]
    place, root = folder / "mounted", folder / "mounted" / "root"
    start, image, log = (folder / part for part in ("start", "image", "log"))
    device.make(start, system)
    with device.mounted(start, place, system):
        root.mkdir()
        for earlier in operation.before:
            assert warm(root, *earlier).returncode == 0
    device.build(image, start, [])
    with device.recorded(image, place, system, log):
        ended = warm(root, *operation.command)
        written = device.read_log(log)
        assert ended.returncode == 0, ended.stderr
        done = Done(operation, root, start, operation.outcome(root))
    draw, told = random.Random(f"{system} {name}"), list[str]()
    cuts = [(len(written), rule) for rule in device.RULES]
    cuts += [(draw.randint(0, len(written)), draw.choice(device.RULES)) for _ in range(number)]
    for writes, rule in cuts:
        device.build(image, start, device.left(written[:writes], rule, draw))
        with device.mounted(image, place, system):
            fault = done.wrong() if writes == len(written) else ""
            if fault := fault or done.fault(warm):
                told.append(f"{rule} after {writes} of {len(written)} writes: {fault}")
    row = {"system": system, "operation": name, "writes": len(written), "tried": len(cuts)}
    print(json.dumps(row | {"faults": told}))
    return told


@pytest.mark.slow
def test_a_run_after_a_power_cut_on_ext4(warm: Warm, tmp_path: Path) -> None:
    assert faults_on("ext4", "a run", warm, tmp_path, 3) == []


@pytest.mark.torture
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("system", device.MAKERS)
def test_after_a_power_cut_on_a_file_system(
    system: str, name: str, warm: Warm, tmp_path: Path
) -> None:
    number = int(os.environ.get("POWER_CUTS", "10"))
    assert faults_on(system, name, warm, tmp_path, number) == []


LAZY = "int fsync(int file) { return 0; }\nint fdatasync(int file) { return 0; }\n"


@pytest.mark.torture
@pytest.mark.parametrize("system", device.MAKERS)
def test_without_syncs_a_cut_is_noticed(system: str, tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    source, library = tmp_path / "lazy.c", tmp_path / "lazy.so"
    source.write_text(LAZY)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    lazy = Warm("kindling.training.fit", "kindling.reports.page", preload=library)
    try:
        assert faults_on(system, "a label", lazy, tmp_path, 3)
    finally:
        lazy.stop()
