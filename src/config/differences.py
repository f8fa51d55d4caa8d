"""The overrides that make a configuration: where it differs from the defaults in conf/."""

from collections.abc import Sequence
from typing import Any

from src.config.compose import shared_composer
from src.config.faults import options
from src.config.overrides import key_of, parse, quoted
from src.config.schema import UNTRAINED, Config
from src.config.written import flat_values, written

CHOSEN = ("data", "augmentation", "model", "optimizer", "scheduler")  # groups; other keys are set


def overrides_of(config: Config) -> list[str]:
    """Overrides such as `model=cnn` and `seed=1`, which `compose` turns into this configuration,
    except for the keys of UNTRAINED. Choices of groups come first. `${` in a text is not
    escaped."""
    values, choices = config.to_primitives(), list[str]()
    different = _different(values, choices)
    for group in CHOSEN:
        for choice in _candidates(group, values, different):
            tried = [*choices, f"{group}={choice}"]
            fewer = _different(values, tried)
            if len(fewer) < len(different):
                choices, different = tried, fewer
    return [*choices, *(override_text(key, value) for key, value in different.items())]


def changed_overrides(texts: Sequence[str], before: Config, now: Config) -> list[str]:
    """The overrides of a run that was configured as `before` by the overrides `texts`, and goes on
    as `now`. A batch size that was decided since stays as it was typed."""
    former = dict(flat_values(before.to_primitives()))
    changed = {
        key: value
        for key, value in flat_values(now.to_primitives())
        if key not in UNTRAINED and value != former.get(key) and former.get(key) != "auto"
    }
    kept = [text for text in texts if key_of(text) not in changed]
    return [*kept, *(override_text(key, value) for key, value in changed.items())]


def override_text(key: str, value: Any) -> str:
    """KEY=VALUE in the grammar of Hydra's command line. A text that the grammar would read as
    anything else is quoted."""
    text = f"{key}={written(value)}"
    if not isinstance(value, str):
        return text
    override = parse(text, [])
    read = None if override is None or override.is_sweep_override() else override.value()
    # The schema takes a whole number for these texts.
    same = read == value or (key == "trainer.precision" and str(read) == value)
    return text if same else f"{key}={quoted(value)}"


def _candidates(group: str, values: dict[str, Any], different: dict[str, Any]) -> list[str]:
    """The choices of a group that might leave fewer differences. Each one costs a tenth of a
    second."""
    if not any(key.startswith(f"{group}.") for key in different):
        return []
    name = values[group].get("name")
    if name is None:
        return options(group)
    # Two choices of data sets have one name: mnist and mnist_or_digits.
    return [name] if f"{group}.name" in different or group == "data" else []


def _different(values: dict[str, Any], choices: list[str]) -> dict[str, Any]:
    """The values, by dotted key, that these choices of groups leave different."""
    points, faults = shared_composer().points([choices])
    assert not faults, faults
    shipped = dict(flat_values(points[0]))
    return {
        key: value
        for key, value in flat_values(values)
        if key not in UNTRAINED and not (key in shipped and _same(shipped[key], value))
    }


def _same(shipped: Any, value: Any) -> bool:
    """Whether a value in conf/ is that of a checked configuration, in which some numbers are
    texts."""
    return bool(shipped == value) or (type(shipped) is int and str(shipped) == value)
