"""Makes a pack: trains its networks as stacks, chooses a committee on the validation rows, and
compares the committee with baselines on the test rows."""

import shlex
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kindling.config.written import counted
from kindling.data.sources.source import Source
from kindling.data.splits import Splits
from kindling.inference.baselines import compare
from kindling.inference.committees.making import make_committee, summary
from kindling.inference.committees.members import BEST_FIRST, PICKS, read_request
from kindling.inference.committees.twins import train_twin, twins_help
from kindling.records.folder import Run
from kindling.records.loading import Trained
from kindling.records.lookup import COMMITTEE
from kindling.records.outcome import compared_rows, format_metric, text_table
from kindling.records.sweep_folder import Sweep
from kindling.reports.page import write_report
from kindling.sweeps.packs.command import CheckedPack
from kindling.sweeps.run_command import train_points
from kindling.system.errors import InputError, Interrupted
from kindling.system.files import lock_or_fail, removed_meanwhile
from kindling.system.installation import as_command
from kindling.system.process import only_errors
from kindling.system.units import seconds

TRAINING = 0.7  # of the minutes; the others are for the committee and the baselines


def make_pack(pack: CheckedPack) -> Run:
    """Trains what is left of the pack, and returns the run of its committee. Raises InputError if
    no network could be trained, and Interrupted, which says how to go on, after a signal."""
    run = Run(pack.folder / COMMITTEE)
    if run.result_file.exists():
        print(f"{run.folder}: was made before; another --seed or more --networks make another")
        return run
    config = pack.sweep.points[0]
    try:
        with lock_or_fail(pack.folder / ".pack.lock"):
            data = Splits(config.data, task=config.task)
            data.setup()
            data.tell()
            if pack.told:
                print(pack.told)
            source = data.source
            del data  # the source alone stays in memory
            progress = _Progress(pack)
            progress.tell_ahead()
            with only_errors():
                train_points(pack.sweep, progress)
            return _committee(pack, source)
    except Interrupted as interrupted:
        told = f"stopped; to go on, type\n  {pack.command}"
        raise Interrupted(interrupted.number, told) from None


class _Progress:
    """Prints a line after each batch of networks. Stops the training when the time is over, but not
    within a batch."""

    def __init__(self, pack: CheckedPack) -> None:
        self.pack, self.began = pack, time.monotonic()
        self.batch = pack.sweep.section["sweeper"]["max_batch_size"]
        self.before = sum(run.ended for run in Sweep(pack.folder).runs)

    def tell_ahead(self) -> None:
        if left := len(self.pack.sweep.points) - self.before:
            at_a_time = f", {self.batch} at a time" if left > self.batch else ""
            print(f"{counted(left, 'network')} to train{at_a_time}", flush=True)

    def __call__(self, done: int) -> bool:
        total, taken = len(self.pack.sweep.points), time.monotonic() - self.began
        new = done - self.before
        if new <= 0:
            return True
        each, best = taken / new, _best(self.pack.folder)
        limit = None if self.pack.minutes is None else 60 * TRAINING * self.pack.minutes
        last = limit is not None and taken + each * self.batch > limit
        left = "the time is over" if last else f"about {seconds(each * (total - done))} s left"
        print(f"{done} of {counted(total, 'network')} trained{best}; {left}")
        return not last


def _best(folder: Path) -> str:
    found = [outcome for outcome in Sweep(folder).ranked() if outcome.finished]
    if not found:
        return ""
    metric = f"val/{found[0].score}"
    return f", best {metric} {format_metric(metric, found[0].metric(metric))}"


def _committee(pack: CheckedPack, source: Source) -> Run:
    outcomes = Sweep(pack.folder).outcomes()
    if sum(outcome.finished for outcome in outcomes) < 2:
        reason = next((o.reason for o in outcomes if o.reason), "no network was trained")
        raise InputError(f"{pack.folder}: fewer than two networks could be trained: {reason}")
    request = read_request([pack.folder], greedy=PICKS, by="val/loss", start=BEST_FIRST)
    again = train_twin if twins_help(pack.sweep.points[0], source) else None
    return make_committee(request, source, _beside_baselines, again)


def _beside_baselines(committee: Trained, source: Source) -> dict[str, Any]:
    return {"compared": [asdict(each) for each in compare(committee, source)]}


def tell(run: Run) -> str:
    """The committee as tables for people, its page, and what to do with it."""
    try:
        with only_errors():
            page = f"report: {write_report([run.folder])}"
    except (InputError, OSError) as error:
        page = f"no report: {error}"
    if not (result := run.result):
        raise removed_meanwhile(run.folder)
    rows = [*compared_rows(result["task"], result.get("compared", []))]
    header = [*rows[0]] if rows else []
    compared = text_table(header, [[*row.values()] for row in rows], right=header[1:])
    predict = f"predict: {as_command('predict')} {shlex.quote(str(run.folder))} ROWS.csv"
    return "\n".join([summary(run), "", compared, "", page, predict])
