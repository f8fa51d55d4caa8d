"""A run as one file that others can repeat: configuration, history, result, weights, environment.

A bundle comes from a stranger when it is opened: names, sizes and checksums are checked before
anything of it is written, and nothing of it chooses where. Nothing here imports torch.
"""

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from src import config as schema
from src.config import Config
from src.errors import InputError
from src.files import MIB, require_contained, write_durably
from src.run import HISTORY_LIMIT, RESULT_LIMIT, Run

FORMAT = 1
CHECKPOINT_LIMIT = 1024 * MIB
# What a bundle may hold, and at most how many bytes of it.
PARTS = {
    ".hydra/config.yaml": MIB // 4,
    ".hydra/overrides.yaml": MIB // 4,
    "history.csv": HISTORY_LIMIT,
    "result.json": RESULT_LIMIT,
    "checkpoints/best.ckpt": CHECKPOINT_LIMIT,
    "checkpoints/last.ckpt": CHECKPOINT_LIMIT,
}
OPTIONAL = (".hydra/overrides.yaml", "checkpoints/last.ckpt")
MANIFEST = "bundle.json"  # {"format", "sha256": {name: hex}, "packages": {name: version}}
DATE = (1980, 1, 1, 0, 0, 0)  # the same run gives the same bytes


def write_bundle(paths: Sequence[Path], target: Path, *, force: bool = False) -> None:
    """Puts a finished run into a zip file.

    Raises InputError for anything but one run folder that has come to its end, and when the file
    is there already.
    """
    if len(paths) != 1:
        raise InputError(f"--bundle takes one run, not {len(paths)}; type one PATH")
    run = Run(paths[0])
    if not run.folder.is_dir():
        raise InputError(f"{run.folder}: there is no such folder; name a run, runs/DATE/TIME")
    require_contained(run.folder)  # else a link puts any file of the user's into the bundle
    lacking = [n for n in PARTS if n not in OPTIONAL and not (run.folder / n).is_file()]
    if lacking:
        raise InputError(f"{run.folder}: is no run that came to its end, it lacks {lacking[0]}")
    if run.result.get("status") != "finished":
        status = run.result.get("status")
        raise InputError(f"{run.folder}: is {status}, only a finished run can be repeated")
    if target.is_dir() or (target.exists() and not force):
        raise InputError(f"{target}: is there already; type another name, or --force")
    contents = {
        name: (run.folder / name).read_bytes() for name in PARTS if (run.folder / name).is_file()
    }
    manifest = {
        "format": FORMAT,
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()},
        "packages": packages(),
    }
    contents[MANIFEST] = (json.dumps(manifest, indent=2) + "\n").encode()
    write_durably(target, _zipped(contents))


def packages() -> dict[str, str]:
    """What is installed beside Python, name → version."""
    found = {str(each.name).lower(): each.version for each in distributions()}
    return dict(sorted(found.items()))


@dataclass(frozen=True)
class Bundle:
    """A bundle's run, its configuration for this machine, and the packages that it had."""

    run: Run
    config: Config
    packages: Mapping[str, str]


def open_bundle(path: Path, folder: Path, accelerator: str | None = None) -> Bundle:
    """Writes the files of a bundle into a new folder.

    Raises InputError for a file that `write_bundle` did not write, with nothing written, and for
    a configuration that is none.
    """
    contents = _read(path)
    manifest = contents.pop(MANIFEST)
    for name, data in contents.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    run = Run(folder)
    return Bundle(run, _config_here(run, accelerator), _packages(manifest))


def _config_here(run: Run, accelerator: str | None) -> Config:
    """Data come from here, and are of the set that was really used."""
    values = run.config.to_primitives()
    used = run.result.get("data")
    name = used.get("name") if isinstance(used, Mapping) else None
    data = values["data"]
    if "fallback" in data and name != data["name"]:  # it fell back to another set
        data["name"] = name
        del data["fallback"]
    elif "fallback" in data:
        data["fallback"] = None  # another set would be no repetition
    data["root"] = values["resume"] = None
    if accelerator is not None:
        values["trainer"]["accelerator"] = accelerator
    return schema.check(values)


def _read(bundle: Path) -> dict[str, bytes]:
    if not bundle.is_file():
        raise InputError(f"{bundle}: there is no such file; name what --bundle wrote")
    try:
        with zipfile.ZipFile(bundle) as archive:
            contents = _checked(archive)
        manifest = json.loads(contents[MANIFEST])
        if manifest["format"] != FORMAT:
            raise ValueError(f"its format is {manifest['format']}, expected {FORMAT}")
        for name, data in contents.items():
            if name != MANIFEST and manifest["sha256"][name] != hashlib.sha256(data).hexdigest():
                raise ValueError(f"the checksum of {name} is wrong")
    except (
        zipfile.BadZipFile, ValueError, KeyError, TypeError, RecursionError, OSError,
        NotImplementedError, RuntimeError, EOFError,
    ) as error:  # fmt: skip
        raise InputError(f"{bundle}: is no bundle of this project ({error})") from None
    return contents


def _checked(archive: zipfile.ZipFile) -> dict[str, bytes]:
    """Raises ValueError for any name but those a bundle has, and for more bytes than it may have.

    Names are compared, never joined to a path before.
    """
    limits: Mapping[str, int] = {**PARTS, MANIFEST: MIB}
    contents: dict[str, bytes] = {}
    for record in archive.infolist():
        name = record.filename
        if name not in limits or name in contents:
            raise ValueError(f"it holds {name[:100]!r}, which no bundle does")
        with archive.open(record) as file:
            contents[name] = file.read(limits[name] + 1)
        if len(contents[name]) > limits[name]:
            raise ValueError(f"{name} has more than {limits[name]:,} bytes")
    lacking = [name for name in limits if name not in contents and name not in OPTIONAL]
    if lacking:
        raise ValueError(f"it lacks {lacking[0]}")
    return contents


def _packages(manifest: bytes) -> dict[str, str]:
    found: Any = json.loads(manifest).get("packages")
    if not isinstance(found, dict):
        return {}
    return {str(name)[:100]: str(version)[:100] for name, version in found.items()}


def _zipped(contents: Mapping[str, bytes]) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, data in contents.items():
            zipped.writestr(zipfile.ZipInfo(name, DATE), data, zipfile.ZIP_DEFLATED)
    return archive.getvalue()
