"""Trains the trials of a confirmation, and writes what they came to."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from kindling.records.config_files import new_files
from kindling.records.confirm_record import trials, write_record
from kindling.records.folder import is_confirmation
from kindling.records.sweep_folder import Sweep
from kindling.reports.confirmation import (
    Confirmation,
    describe_confirmation,
    read_confirmation,
    to_primitives,
    write_page,
)
from kindling.sweeps.confirmation.command import CheckedConfirmation
from kindling.sweeps.tasks import told_how_to_go_on
from kindling.sweeps.trials import train_trials
from kindling.system.colour import tell_error
from kindling.system.errors import storage_faults
from kindling.system.files import lock_or_fail, write_durably, write_first, write_together


def confirm(command: CheckedConfirmation) -> Confirmation:
    """Trains what is left to train, and writes confirm.json and the page confirm.html.

    Trials that have ended are not changed; failed trials are trained again. Raises InputError while
    another process confirms in the folder, or if another command has removed the sweep around it,
    and Interrupted after a signal.
    """
    folder, record = command.folder, command.record
    locked = lock_or_fail(folder / ".confirm.lock", within=command.within)
    with storage_faults(folder), locked:
        if not is_confirmation(folder):
            write_record(folder, record)
        todo = [trial for of_setting in trials(folder, record) for trial in of_setting]
        files = (
            new_files(trial.run, trial.config.to_primitives(), trial.overrides) for trial in todo
        )
        write_together(write_first, files)
        sweep = Sweep(folder)
        if sweep.stacks.exists() or not all(trial.run.ended for trial in todo):
            configs = [trial.config for trial in todo]
            folders = [trial.run.folder for trial in todo]
            with told_how_to_go_on(folder), _test_metrics_hidden():
                train_trials(configs, folders, sweep, None)
        else:  # it may have been killed before this
            sweep.write_results()
        found = read_confirmation(folder, record)
        write_durably(folder / "confirm.json", json.dumps(to_primitives(found), indent=2))
        write_page(found)
    return found


@contextmanager
def _test_metrics_hidden() -> Iterator[None]:
    """A trial that trains alone logs its test metrics at its end. They are not printed: only those
    of the first setting are looked at."""

    def is_printed(record: logging.LogRecord) -> bool:
        return record.name != "kindling.training.fit" or record.levelno > logging.INFO

    handlers = list(logging.getLogger().handlers)
    for handler in handlers:
        handler.addFilter(is_printed)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(is_printed)


def show(found: Confirmation, *, as_json: bool) -> None:
    """Prints a confirmation. Exits with 1 when a trial failed, and when no setting has a value."""
    if as_json:
        print(json.dumps(to_primitives(found)))
    else:
        print(f"\n{describe_confirmation(found)}")
        print(f"figures: {found.folder / 'confirm.json'}")
        print(f"report: {found.folder / 'confirm.html'}")
    if found.failures:
        trials_in_all = len(found.settings) * len(found.record.seeds)
        tell_error(f"{found.failures} of {trials_in_all} trials failed")
    if found.failures or found.winner is None:
        raise SystemExit(1)
