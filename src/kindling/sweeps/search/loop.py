"""The loop of a search: take a batch, train it as stacks, report the results to the study.

Trial t of the study is the run in folder t. With search.folds=N, the runs in folders N·t to
N·t + N - 1 are its folds.
"""

import logging
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from kindling.config.compose import check_all, shared_composer
from kindling.data.sources.catalogue import require_divisible
from kindling.records.config_files import new_files
from kindling.records.folder import Run, resume_command
from kindling.records.outcome import format_metric, in_full
from kindling.records.sweep_folder import Sweep, write_importance
from kindling.sweeps.run_command import finish_sweep
from kindling.sweeps.search.command import CheckedSearch, runs_of
from kindling.sweeps.search.study import Study, TrialBatch
from kindling.sweeps.tasks import told_how_to_go_on
from kindling.sweeps.trials import build_executor, train_trials
from kindling.system.errors import InputError
from kindling.system.files import lock_or_fail, write_first, write_together

log = logging.getLogger(__name__)


class SearchLoop:
    """Trains the remaining trials of a search, and ends with its table and its report.

    Other processes may do the same; the last one to end writes the report. Raises InputError if the
    whole first batch fails, Interrupted after a signal, and SystemExit(1) if a trial failed.
    """

    def __init__(self, command: CheckedSearch, study: Study) -> None:
        self.command, self.study = command, study
        self.settings, self.folder = command.settings, command.folder
        self.sweep = Sweep(self.folder)

    def run(self) -> None:
        require_divisible([self.command.corner])
        with told_how_to_go_on(self.folder):
            while self._train_batch():
                pass
            self._finish()

    def _train_batch(self) -> bool:
        """Whether a batch was left for this process."""
        with ExitStack() as locks:
            batch = self._take(locks)
            if batch is not None:
                self._tell(batch, self._train(batch))
        return batch is not None

    def _take(self, locks: ExitStack) -> TrialBatch | None:
        """A batch that another process did not finish, else a new batch; None if there are enough
        trials. `locks` gets the lock of the batch."""
        with self.sweep.locked():
            batches = self.study.batches()
            for batch in batches:
                if batch.told:
                    continue
                try:
                    locks.enter_context(lock_or_fail(self._lock_of(batch.number)))
                except InputError:  # another process trains it
                    continue
                return self.study.ask(batch.number, batch.size)
            remaining = self.settings.trials - sum(batch.size for batch in batches)
            if remaining <= 0:
                return None
            number = len(batches)
            locks.enter_context(lock_or_fail(self._lock_of(number)))
            return self.study.ask(number, min(self.settings.batch, remaining))

    def _lock_of(self, number: int) -> Path:
        return self.folder / f".batch{number}.lock"

    def _train(self, batch: TrialBatch) -> list[list[Run]]:
        """Trains a batch; returns the runs of each of its trials."""
        fixed, folds = self.command.fixed, self.settings.folds
        combinations = [
            texts
            for trial in batch.trials
            for texts in runs_of(fixed, folds, self.study.point(trial))
        ]
        configs = check_all(*shared_composer(None).points(combinations))
        size = folds or 1
        numbers = [size * trial.number + fold for trial in batch.trials for fold in range(size)]
        runs = [Run(self.folder / str(number)) for number in numbers]
        files = (
            new_files(run, config.to_primitives(), texts)
            for run, config, texts in zip(runs, configs, combinations, strict=True)
        )
        write_together(write_first, files)
        executor = build_executor(self.settings, configs)
        folders, sweep = [run.folder for run in runs], Sweep(self.folder, f".batch{batch.number}")
        train_trials(configs, folders, sweep, None, self.settings.halving, executor)
        return [runs[place : place + size] for place in range(0, len(runs), size)]

    def _tell(self, batch: TrialBatch, runs: Sequence[Sequence[Run]]) -> None:
        results = [[run.result for run in of_trial] for of_trial in runs]
        statuses = [{r.get("status", "failed") for r in of_trial} for of_trial in results]
        folds = self.settings.folds
        with self.sweep.locked():
            if batch.number == 0 and set().union(*statuses) == {"failed"}:
                reason = results[0][0].get("error", "see above")
                count = batch.size * (folds or 1)
                raise InputError(
                    f"none of the first {count} trials could be trained ({reason}); when the "
                    f"cause is removed, type\n  {resume_command(self.folder)}"
                )
            for trial, of_trial, found in zip(batch.trials, runs, statuses, strict=True):
                # A trial that halving has dropped counts with its value at that time. The trials
                # that continued were better then, so the ranking is right.
                value = None
                if found == {"finished"}:
                    value = statistics.fmean(run.monitored for run in of_trial)
                self.study.tell(trial, value, diverged="diverged" in found)
            done = sum(trial.state.is_finished() for trial in self.study.trials)
            total, what = self.settings.trials, "trials" if folds is None else "settings"
            best = self._best()
            log.info("batch %d: %d of %d %s done, %s", batch.number, done, total, what, best)

    def _best(self) -> str:
        best, folds = self.study.best(), self.settings.folds
        if best is None:
            return "no trial has a value yet"
        monitor = self.command.corner.checkpoint.monitor
        value = f"{monitor} {format_metric(monitor, best.value)}"
        point = in_full(dict(text.split("=", 1) for text in self.study.point(best)))
        if folds is None:
            return f"best {value}, trial {best.number}: {point}"
        first = folds * best.number
        return f"best mean of {value}, trials {first} to {first + folds - 1}: {point}"

    def _finish(self) -> None:
        with self.sweep.locked():
            others = [batch.number for batch in self.study.batches() if not batch.told]
        if others:
            log.info(
                "another process trains batch %s, and writes the report when it ends",
                ", ".join(map(str, others)),
            )
            return
        with ExitStack() as locks:
            try:
                locks.enter_context(lock_or_fail(self.folder / ".report.lock"))
            except InputError:  # another process ended at the same time
                return
            shares = self.study.importances()
            listed = ", ".join(f"{key} {share}" for key, share in shares.items())
            write_importance(self.folder, shares)
            finish_sweep(self.folder, f"importance: {listed}" if listed else "")
