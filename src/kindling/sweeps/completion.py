"""What Tab completes in the overrides of train, lr_find and search. Nothing here imports torch."""

from collections.abc import Mapping, Sequence

from kindling.config.allowed import allowed_values
from kindling.config.faults import options
from kindling.config.schema import GROUPS, Config, FusedLauncher, Search
from kindling.records.lookup import typed_folders

LAUNCHERS = ("basic", "fused")
FOLDERS = ("resume", "start_from")
IN_MEMORY = ("arrays", "own")  # choices


def complete(prefix: str, **_: object) -> list[str]:
    """The overrides of `python -m src.train` that begin with `prefix`: keys, and after `=` the
    values of a group, of a key with listed values, and of a key that names a run."""
    launcher = {k: v.listed for k, v in allowed_values(FusedLauncher, "hydra.launcher.").items()}
    return _beginning(prefix, {"hydra/launcher": LAUNCHERS, **launcher})


def complete_search(prefix: str, **_: object) -> list[str]:
    """As `complete`, for `python -m src.search`."""
    return _beginning(
        prefix, {key: known.listed for key, known in allowed_values(Search, "search.").items()}
    )


def _beginning(prefix: str, more: Mapping[str, Sequence[str]]) -> list[str]:
    keys = {
        # What is in the memory of a program cannot be typed.
        **{group: sorted({*options(group)} - {*IN_MEMORY}) for group in GROUPS},
        **{key: known.listed for key, known in allowed_values(Config).items()},
        **more,
    }
    key, sign, typed = prefix.partition("=")
    if not sign:
        return [f"{name}=" for name in keys if name.startswith(prefix)]
    values = typed_folders(typed) if key in FOLDERS else keys.get(key, ())
    return [f"{key}={value}" for value in values if value.startswith(typed)]
