"""The keys of an executor on the command line that goes on with a sweep or a search."""

from collections.abc import Sequence
from pathlib import Path

from src.config.faults import EXECUTORS_OF
from src.config.overrides import parse, parsed
from src.config.schema import Execution

# A record may come from a stranger. These keys run commands here, or connect to a machine that may
# send code, so they are typed anew.
TYPED_ANEW = ("setup", "address")


def is_execution(text: str, section: str) -> bool:
    """Whether an override sets a key of the executor, or `wait`."""
    key = _key(text)
    name = key.removeprefix(f"{section}.")
    return name != key and name in (*Execution.model_fields, "wait")


def _key(text: str) -> str:
    """The key as Hydra reads the override, however it is spelt."""
    override = parse(text, [])
    return override.key_or_group if override is not None else ""


def continued(
    folder: Path, recorded: Sequence[str], typed: Sequence[str], section: str
) -> tuple[list[str], list[str]]:
    """The executor's overrides with which a sweep or search in `folder` goes on, and the faults.

    `recorded` and `typed` are overrides of the executor's keys; a typed override replaces that of
    the record. Keys that another executor does not have are left out.
    """
    chosen = {_key(text): text for text in [*recorded, *typed]}
    name = f"{section}.executor"
    executor = parsed(chosen[name]).value() if name in chosen else None
    kept, faults = [], []
    for key, text in chosen.items():
        last = key.removeprefix(f"{section}.")
        if text in typed:
            kept.append(text)
        elif last != "wait" and executor in EXECUTORS_OF.get(last, (executor,)):
            if last in TYPED_ANEW:
                faults.append(
                    f"resume={folder}: its record has {text}, which is not used unread; type "
                    f"{key}=… anew, or {key}=null"
                )
            kept.append(text)
    return kept, faults
