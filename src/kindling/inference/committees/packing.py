"""A pack within a program: networks with drawn settings, trained on arrays, and their committee."""

from collections.abc import Sequence
from pathlib import Path

from kindling.config.compose import check_all, shared_composer
from kindling.config.drawn import batch_size, draw_settings
from kindling.config.schema import joint_hash
from kindling.data.sources.catalogue import open_source
from kindling.inference.committees.making import make_committee
from kindling.inference.committees.members import BEST_FIRST, PICKS, read_request
from kindling.records.folder import Run
from kindling.records.lookup import COMMITTEE
from kindling.system.errors import InputError
from kindling.training.fit import fit_stack
from kindling.training.grouping import group_trials
from kindling.training.own import Given


def fit_pack(
    overrides: Sequence[str], networks: int, seed: int, given: Given, folder: Path
) -> tuple[Run, list[Run]]:
    """Trains `networks` networks into folders 0, 1, … of `folder`, and makes their committee in
    `folder`/committee. Returns the run of the committee and those of its members, the best first.
    `overrides` may set data.batch_size; by default the size follows from the number of samples.
    Raises InputError for faults of the settings, and if fewer than two networks can be trained."""
    drawn = draw_settings(networks, seed)
    assert given.arrays is not None
    size = f"data.batch_size={batch_size(len(given.arrays.arrays['x']))}"
    points = [
        [size, *overrides, *(f"{key}={values[number]}" for key, values in drawn.items())]
        for number in range(networks)
    ]
    configs = [given.hold(config) for config in check_all(*shared_composer().points(points))]
    source = open_source(configs[0].data, configs[0].task)
    runs: list[Run] = []
    for group in group_trials(configs):
        own = [configs[number] for number in group.trials]
        folders = [folder / str(number) for number in group.trials]
        runs += fit_stack(own, folders, folder / ".stacks" / joint_hash(own))
    finished = [run.folder for run in runs if run.best_checkpoint.exists()]
    if len(finished) < 2:
        raise InputError("pack: fewer than two networks could be trained; scale X")
    request = read_request(
        finished, greedy=PICKS, by="val/loss", folder=folder / COMMITTEE, start=BEST_FIRST
    )
    made = make_committee(request, source)
    return made, [outcome.run for outcome in request.candidates]
