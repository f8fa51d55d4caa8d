"""The axes of a sweep: the values of its keys, and which keys change together.

Every key is an axis with its values. All keys with zip(…) together are one axis, in the place of
the first of them. The trials are the product of the axes, and the last axis changes fastest.
"""

import itertools
from collections.abc import Sequence

from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from src.config.grammar import ZipSweep
from src.config.schema import MOST_POINTS
from src.config.written import counted

Axis = list[tuple[str, ...]]  # the overrides of each place on the axis


def is_zipped(override: Override) -> bool:
    return isinstance(override._value, ZipSweep)


def single_values(override: Override) -> list[str]:
    """An override for each value of a sweep, as Hydra's basic sweeper writes it; at most
    MOST_POINTS + 1. Empty if the sweeper chooses the values during the sweep."""
    key = override.get_key_element()
    if not override.is_sweep_override():
        return [f"{key}={override.get_value_element_as_str()}"]
    try:
        values = itertools.islice(override.sweep_string_iterator(), MOST_POINTS + 1)
        return [f"{key}={value}" for value in values]
    except HydraException:  # an interval or a glob
        return []


def axes_of(overrides: Sequence[Override]) -> list[Axis]:
    """The axes of a sweep. Of a key that is given twice, the last values count. If zipped keys have
    different numbers of values, which `zip_faults` reports, the last places lack some keys."""
    values = {each.get_key_element(): single_values(each) for each in overrides}
    zipped = list(dict.fromkeys(each.get_key_element() for each in overrides if is_zipped(each)))
    axes: list[Axis] = []
    for key, texts in values.items():
        if key not in zipped:
            axes.append([(text,) for text in texts])
        elif key == zipped[0]:
            together = itertools.zip_longest(*(values[each] for each in zipped), fillvalue="")
            axes.append([tuple(filter(None, texts)) for texts in together])
    return axes


def product_of(axes: Sequence[Axis]) -> list[tuple[str, ...]]:
    """The overrides of each trial, in the order of the trials."""
    return [tuple(itertools.chain(*places)) for places in itertools.product(*axes)]


def zip_faults(overrides: Sequence[Override]) -> list[str]:
    """The faults of zipped overrides among all overrides of a command."""
    zipped = [each for each in overrides if is_zipped(each)]
    keys = [each.key_or_group for each in overrides]
    faults = [
        f"{each.input_line}: {each.key_or_group} is given twice; type it once"
        for each in zipped
        if keys.count(each.key_or_group) > 1
    ]
    counts = {each.key_or_group: len(single_values(each)) for each in zipped}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{key} has {counted(count, 'value')}" for key, count in counts.items())
        faults.append(
            f"zip(…): {listed}; keys that change together need the same number of values; to "
            "combine a key with all others, type KEY=A,B"
        )
    return faults
