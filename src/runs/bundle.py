"""A run as one file that others can repeat: configuration, history, result, weights, environment.

A bundle comes from a stranger when it is opened: names, sizes and checksums are checked before
anything of it is written, and nothing of it chooses where. Nothing here imports torch.
"""

import hashlib
import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from src.config import schema
from src.config.schema import Config
from src.runs.folder import HISTORY_LIMIT, RESULT_LIMIT, Run
from src.system.errors import InputError, first_line
from src.system.files import MIB, require_contained, write_durably

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
MANIFEST = "bundle.json"
# How many bytes a file of some bytes may unpack to: text shrinks to a tenth, weights hardly.
UNPACKED, RATIO = 64 * MIB, 20
DATE = (1980, 1, 1, 0, 0, 0)  # the same run gives the same bytes


Packages = dict[
    Annotated[str, Field(max_length=200)], Annotated[str, Field(max_length=200)]
]  # name → version


class Manifest(BaseModel):
    """bundle.json: the checksum of each file, and the packages that the run had."""

    model_config = ConfigDict(strict=True)

    format: int
    sha256: dict[str, str] = Field(default_factory=dict)
    packages: Packages = Field(default_factory=dict)


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
    status = run.result["status"]
    if status != "finished":
        raise InputError(f"{run.folder}: is {status}, only a finished run can be repeated")
    if target.is_dir() or (target.exists() and not force):
        raise InputError(f"{target}: is there already; type another name, or --force")
    contents = {
        name: (run.folder / name).read_bytes() for name in PARTS if (run.folder / name).is_file()
    }
    manifest = Manifest(
        format=FORMAT,
        sha256={name: hashlib.sha256(data).hexdigest() for name, data in contents.items()},
        packages=packages(),
    )
    contents[MANIFEST] = f"{manifest.model_dump_json(indent=2)}\n".encode()
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
    contents, manifest = _read(path)
    for name, data in contents.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    run = Run(folder)
    return Bundle(run, _config_here(run, accelerator), manifest.packages)


def _config_here(run: Run, accelerator: str | None) -> Config:
    """Data come from here, and are of the set that was really used."""
    values = run.config.to_primitives()
    name = run.result.get("data", {}).get("name")
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


def _read(bundle: Path) -> tuple[dict[str, bytes], Manifest]:
    if not bundle.is_file():
        raise InputError(f"{bundle}: there is no such file; name what --bundle wrote")
    try:
        with zipfile.ZipFile(bundle) as archive:
            contents = _checked(archive, bundle.stat().st_size)
        manifest = Manifest.model_validate_json(contents.pop(MANIFEST))
        if manifest.format != FORMAT:
            raise ValueError(f"its format is {manifest.format}, expected {FORMAT}")
        for name, data in contents.items():
            if manifest.sha256.get(name) != hashlib.sha256(data).hexdigest():
                raise ValueError(f"the checksum of {name} is wrong")
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(map(str, fault["loc"]))
        reason = f"{MANIFEST}: {key[:80]}: {fault['msg'][:200]}"
        raise InputError(f"{bundle}: is no bundle of this project ({reason})") from None
    except Exception as error:  # a parser over hostile bytes: nothing that it raises is a surprise
        raise InputError(f"{bundle}: is no bundle of this project ({first_line(error)})") from None
    return contents, manifest


def _checked(archive: zipfile.ZipFile, size: int) -> dict[str, bytes]:
    """The files of an archive of `size` bytes.

    Raises ValueError for any name but those a bundle has, and for more bytes than it may have,
    before anything is unpacked. Names are compared, never joined to a path before.
    """
    limits: Mapping[str, int] = {**PARTS, MANIFEST: MIB}
    contents: dict[str, bytes] = {}
    records = archive.infolist()
    for record in records:
        name = record.filename
        if name not in limits:
            raise ValueError(f"it holds {name[:100]!r}, which no bundle does")
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
    lacking = [name for name in limits if name not in contents and name not in OPTIONAL]
    if lacking:
        raise ValueError(f"it lacks {lacking[0]}")
    return contents


def _zipped(contents: Mapping[str, bytes]) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as zipped:
        for name, data in contents.items():
            # Weights hardly shrink, and what is stored never unpacks to too much.
            weights = name.endswith(".ckpt")
            kind = zipfile.ZIP_STORED if weights else zipfile.ZIP_DEFLATED
            zipped.writestr(zipfile.ZipInfo(name, DATE), data, kind)
    return archive.getvalue()
