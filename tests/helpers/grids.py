"""Points of a sweep, as checked configurations."""

import itertools

from kindling.config.compose import compose
from kindling.config.schema import Config
from tests.helpers.commands import SMALL


def grid(*axes: list[str], common: tuple[str, ...] = ()) -> list[Config]:
    return [compose(*SMALL, *common, *point) for point in itertools.product(*axes)]


SEEDS = ["seed=0", "seed=1"]


WIDTHS = ["model.hidden_sizes=16", "model.hidden_sizes=24"]
