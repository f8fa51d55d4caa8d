"""Bundles with other contents."""

import hashlib
import json
import zipfile
from pathlib import Path

from kindling.records.bundle import MANIFEST
from tests.helpers.commands import SMALL

RECIPE = (*SMALL, "optimizer.lr=0.1", "model.dropout=0.1")


def rewritten(bundle: Path, changes: dict[str, bytes | None], *, honest: bool = True) -> Path:
    """Another bundle with other contents; `honest` ones have the right checksums."""
    with zipfile.ZipFile(bundle) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(contents[MANIFEST])
    for name, data in changes.items():
        if data is None:
            del contents[name]
        else:
            contents[name] = data
            if honest and name != MANIFEST:
                manifest["sha256"][name] = hashlib.sha256(data).hexdigest()
    if MANIFEST not in changes:
        contents[MANIFEST] = json.dumps(manifest).encode()
    target = bundle.with_name("other.zip")
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in contents.items():
            archive.writestr(name, data)
    return target
