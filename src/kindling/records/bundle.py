"""A run as one zip file that others can repeat: configuration, history, result, weights, packages.

A bundle may be hostile: its names, sizes and checksums are checked before any file is written, and
the bundle cannot choose the folder. Nothing here imports torch.
"""

import hashlib
import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from kindling.config.faults import check
from kindling.config.registry import is_lightning
from kindling.config.schema import UNTRAINED, Config
from kindling.records.checksum import require_checksum
from kindling.records.folder import (
    HISTORY_LIMIT,
    RESULT_LIMIT,
    Run,
    parse_result,
    resume_command,
)
from kindling.records.outcome import read_outcome
from kindling.system.errors import InputError, parsing
from kindling.system.files import require_contained, why_not_writable, write_durably
from kindling.system.installation import as_command
from kindling.system.units import MIB

FORMAT = 1
CHECKPOINT_LIMIT = 1024 * MIB
# The files that a bundle may hold, and the largest size of each in bytes.
FILE_LIMITS = {
    ".hydra/config.yaml": MIB // 4,
    ".hydra/overrides.yaml": MIB // 4,
    "history.csv": HISTORY_LIMIT,
    "result.json": RESULT_LIMIT,
    "checkpoints/best.ckpt": CHECKPOINT_LIMIT,
    "checkpoints/last.ckpt": CHECKPOINT_LIMIT,
}
OPTIONAL = (".hydra/overrides.yaml", "checkpoints/last.ckpt")
NO_COMMITTEES = "history.csv"  # which a committee does not have
MANIFEST = "bundle.json"
# A bundle of `size` bytes may unpack to UNPACKED + RATIO * size: text shrinks to about a tenth.
UNPACKED, RATIO = 64 * MIB, 20
DATE = (1980, 1, 1, 0, 0, 0)  # of every file, so that the same run gives the same bytes

ShortText = Annotated[str, Field(max_length=200)]


class Manifest(BaseModel):
    """bundle.json: the checksum of each file, and the installed packages, name → version."""

    model_config = ConfigDict(strict=True)

    format: int
    sha256: dict[str, str] = Field(default_factory=dict)
    packages: dict[ShortText, ShortText] = Field(default_factory=dict)


def write_bundle(paths: Sequence[Path], target: Path, *, force: bool = False) -> None:
    """Writes a finished run into a zip file. Raises InputError unless `paths` is one folder of a
    finished run, for damaged checkpoints and another configuration than that of the result, and
    when the file exists."""
    if len(paths) != 1:
        raise InputError(f"--bundle takes one run, not {len(paths)}; type one PATH")
    run = Run(paths[0])
    if not run.folder.is_dir():
        raise InputError(f"{run.folder}: there is no such folder; name a run, runs/DATE/TIME")
    require_contained(run.folder)  # a link could put any file of the user into the bundle
    files = {name: run.folder / name for name in FILE_LIMITS if (run.folder / name).is_file()}
    optional = (*OPTIONAL, *[NO_COMMITTEES] * ("committee" in run.result))
    lacking = [name for name in FILE_LIMITS if name not in optional and name not in files]
    if lacking == ["checkpoints/best.ckpt"] and (reason := run.why_no_weights):
        raise InputError(reason)
    if lacking:
        raise InputError(f"{run.folder}: is not a finished run, it lacks {lacking[0]}")
    outcome = read_outcome(run)
    if not outcome.finished:
        raise InputError(f"{run.folder}: is {outcome.status}, only a finished run can be repeated")
    if is_lightning("model", run.config.model.name):
        raise InputError(
            f"{run.folder}: model={run.config.model.name} is a LightningModule, which no bundle "
            "repeats; hand on the extension with the run folder"
        )
    if not run.ended:  # changed by hand, or for more epochs, or by a disk
        raise InputError(
            f"{run.config_file}: is not the configuration of {run.result_file}; to train on by it, "
            f"type {resume_command(run.resume_folder)}"
        )
    for fault in why_not_writable("--bundle", target, f"{run.folder.name}.zip", force=force):
        raise InputError(fault)
    contents = {name: file.read_bytes() for name, file in files.items()}
    for name, data in contents.items():
        advice = "; remove it, a bundle needs none" if name in OPTIONAL else ""
        with parsing(f"{files[name]}: is damaged or not a checkpoint of this project", advice):
            if name.endswith(".ckpt"):
                require_checksum(data)
    sums = {name: _checksum(data) for name, data in contents.items()}
    manifest = Manifest(format=FORMAT, sha256=sums, packages=packages())
    contents[MANIFEST] = f"{manifest.model_dump_json(indent=2)}\n".encode()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as zipped:
        for name, data in contents.items():
            # Weights hardly shrink, and a stored file cannot unpack to more than its size.
            kind = zipfile.ZIP_STORED if name.endswith(".ckpt") else zipfile.ZIP_DEFLATED
            zipped.writestr(zipfile.ZipInfo(name, DATE), data, kind)
    write_durably(target, archive.getvalue())


def packages() -> dict[str, str]:
    """The installed packages, name → version."""
    versions = {str(each.name).lower(): each.version for each in distributions()}
    return dict(sorted(versions.items()))


@dataclass(frozen=True)
class Bundle:
    """The run of a bundle, its configuration for this machine, and its packages."""

    run: Run
    config: Config
    packages: Mapping[str, str]


def open_bundle(
    path: Path, folder: Path, accelerator: str | None = None, data: Path | None = None
) -> Bundle:
    """Writes the files of a bundle into a new folder. `accelerator` replaces the run's, `data` its
    data.path. Raises InputError for a wrong configuration and for own data that are not there, and,
    before anything is written, for a committee and for other files."""
    contents, manifest = _read(path)
    if "committee" in parse_result(contents["result.json"], f"{path}: result.json"):
        raise InputError(
            f"{path}: holds a committee, whose members were trained apart; reproduce bundles of "
            f"the members, or unzip it and type {as_command('evaluate')} FOLDER"
        )
    if NO_COMMITTEES not in contents:
        raise InputError(f"{path}: is not a bundle of this project (it lacks {NO_COMMITTEES})")
    for name, content in contents.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    run = Run(folder)
    if not run.history:
        raise InputError(f"{path}: is not a bundle of this project (history.csv has no rows)")
    values = run.config.to_primitives() | UNTRAINED
    if lines := run.config.only_from_python:
        raise InputError(f"{path}: {lines[0]}")
    _move_data(path, values["data"], run.result.get("data", {}).get("name"), data)
    values["logger"]["mlflow_file"] = None  # a path of another machine
    if accelerator is not None:
        values["trainer"]["accelerator"] = accelerator
    return Bundle(run, check(values), manifest.packages)


def _move_data(bundle: Path, section: dict[str, Any], used: str | None, path: Path | None) -> None:
    """Makes the section name the data set that was used, and this machine's folders."""
    if path is not None and "path" not in section:
        raise InputError(
            f"--data {path}: {bundle} was trained on data={section['name']}; leave --data out"
        )
    if path is not None:
        section["path"] = str(path)
    elif "path" in section and not Path(section["path"]).exists():
        raise InputError(
            f"{bundle}: was trained on data.path={section['path']}, which is not in the bundle and "
            f"not in {Path.cwd()}; type --data PATH"
        )
    section["root"] = None
    if "fallback" in section and used != section["name"]:  # the run used its fallback
        section["name"] = used
        del section["fallback"]
    elif "fallback" in section:
        section["fallback"] = None  # on another data set it would not be a repetition


def _read(bundle: Path) -> tuple[dict[str, bytes], Manifest]:
    if not bundle.is_file():
        raise InputError(f"{bundle}: there is no such file; name a file that --bundle wrote")
    advice = "; name a file that --bundle wrote"
    with parsing(f"{bundle}: is not a bundle of this project", advice):
        with zipfile.ZipFile(bundle) as archive:
            contents = _checked(archive, bundle.stat().st_size)
        manifest = Manifest.model_validate_json(contents.pop(MANIFEST))
        if manifest.format != FORMAT:
            raise ValueError(f"its format is {manifest.format}, expected {FORMAT}")
        for name, data in contents.items():
            if manifest.sha256.get(name) != _checksum(data):
                raise ValueError(f"the checksum of {name} is wrong")
    return contents, manifest


def _checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _checked(archive: zipfile.ZipFile, size: int) -> dict[str, bytes]:
    """The contents of an archive of `size` bytes, by file name.

    Raises ValueError, before anything is unpacked, for a name that no bundle has and for too many
    bytes. A name is compared with the known ones before it becomes part of a path.
    """
    limits: Mapping[str, int] = {**FILE_LIMITS, MANIFEST: MIB}
    contents: dict[str, bytes] = {}
    records = archive.infolist()
    for record in records:
        name = record.filename
        if name not in limits:
            raise ValueError(f"it holds {name[:100]!r}, which no bundle has")
        if record.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{name} is compressed as no bundle is")
        if record.file_size > limits[name]:
            raise ValueError(f"{name} has more than {limits[name]:,} bytes")
    if sum(record.file_size for record in records) > UNPACKED + RATIO * size:
        raise ValueError(f"it unpacks to more than {RATIO} times its size")
    for record in records:
        if record.filename in contents:
            raise ValueError(f"it holds {record.filename!r} twice")
        contents[record.filename] = archive.read(record)
    optional = (*OPTIONAL, NO_COMMITTEES)  # the result tells whether this is a committee
    lacking = [name for name in limits if name not in contents and name not in optional]
    if lacking:
        raise ValueError(f"it lacks {lacking[0]}")
    return contents
