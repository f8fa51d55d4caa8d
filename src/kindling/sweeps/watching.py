"""Shows how far the groups of a sweep are: on a terminal a table that is updated in place,
elsewhere a line a minute."""

import logging
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

from tabulate import tabulate

from kindling.records.groups import (
    HEADER,
    GroupStatus,
    Results,
    State,
    overview,
    ranges,
    read_progress,
    results_of,
    rows,
    trial_numbers,
)
from kindling.sweeps.tasks import GroupTask
from kindling.system.colour import is_terminal
from kindling.system.errors import InputError
from kindling.system.terminal import Area

log = logging.getLogger(__name__)

DRAW_SECONDS = 1.0
LINE_SECONDS = 60.0
MOST_ERRORS = 5  # different ones of a group that are logged
MOST_NAMED = 3  # groups that a line names
RESERVED = 6  # rows of the terminal for the header, the totals and the rest of the screen
# What these loggers say is also in the logs of the trials. It is not printed beside a table.
QUIET = ("kindling.training",)


class Watch:
    """The groups of a sweep. Use it as a context: meanwhile the table is kept up to date. At the
    end, the table is removed, and a line tells the totals.

    An executor notes the states that it knows; of another group, progress.json decides. The results
    of a group are read once, when it has ended; the errors of its trials are then logged.

    If this process trains (`trains_here`), it has logged the errors, and without a terminal, there
    are no lines: they would get into the logs of the trials.
    """

    def __init__(self, tasks: Sequence[GroupTask], *, trains_here: bool = False) -> None:
        self.tasks, self.trains_here = tasks, trains_here
        self.numbers = [trial_numbers(task.folders) or list(task.trials) for task in tasks]
        self.trials = sum(map(len, self.numbers))
        self.states: dict[Path, State] = {}  # by state folder
        self.ended: dict[Path, GroupStatus] = {}
        self.results = Results()  # of the groups in `ended`
        self.area = Area(QUIET) if is_terminal(sys.stdout) else None
        self._context = ExitStack()
        self._showing = threading.Lock()

    def __enter__(self) -> Self:
        if self.area is not None:
            self._context.enter_context(self.area.open())
        if self.area is not None or not self.trains_here:
            self._context.enter_context(self._kept_up_to_date())
        return self

    def __exit__(self, *exception: object) -> None:
        self._context.close()
        if exception[0] is None:
            statuses = self.statuses()
            if len(self.tasks) > 1:
                log.info("%s", self._totals(statuses))

    @contextmanager
    def _kept_up_to_date(self) -> Iterator[None]:
        ended = threading.Event()

        def show() -> None:
            if self.area is not None:
                self.show()
            while not ended.wait(LINE_SECONDS if self.area is None else DRAW_SECONDS):
                self.show()

        thread = threading.Thread(target=show, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def note(self, task: GroupTask, state: State) -> None:
        """Notes the state of a task. `ended` and `cancelled` are final."""
        self.states[task.state_folder] = state

    def show(self) -> None:
        """Draws the table; elsewhere logs a line."""
        with self._showing:
            statuses = self.statuses()
            if self.area is None:
                log.info("%s", self._line(statuses))
            else:
                most = max(1, shutil.get_terminal_size().lines - RESERVED)
                self.area.draw(self._table(statuses, most))

    def statuses(self) -> list[GroupStatus]:
        return list(map(self._status, self.tasks, self.numbers))

    def _status(self, task: GroupTask, numbers: Sequence[int]) -> GroupStatus:
        folder = task.state_folder
        if folder in self.ended:
            return self.ended[folder]
        state = self.states.get(folder)
        if state in ("ended", "cancelled"):
            return self._end(task, numbers, state)
        if state == "queued":
            return GroupStatus(numbers, state)
        try:
            progress = read_progress(folder)
        except (InputError, OSError):
            return GroupStatus(numbers, state or "silent", damaged=True)
        if state is None:
            state = "queued" if progress is None else "silent" if progress.silent else "running"
        return GroupStatus(numbers, state, progress)

    def _end(self, task: GroupTask, numbers: Sequence[int], state: State) -> GroupStatus:
        results, errors = results_of(task.runs)
        if not self.trains_here:
            for text, runs in list(errors.items())[:MOST_ERRORS]:
                failed = ranges(trial_numbers([run.folder for run in runs]))
                log.error("error: %s %s: %s", "trials" if len(runs) > 1 else "trial", failed, text)
            if len(errors) > MOST_ERRORS:
                log.error("error: and %d more in results.csv", len(errors) - MOST_ERRORS)
        if results.failed == len(numbers):
            state = "failed"
        elif results.ended == len(numbers):
            state = "ended"
        self.ended[task.state_folder] = GroupStatus(numbers, state, results=results)
        self.results += results
        return self.ended[task.state_folder]

    def _table(self, statuses: Sequence[GroupStatus], most: int) -> list[str]:
        listed, omitted = rows(statuses, most)
        table = tabulate(listed, HEADER, tablefmt="simple", disable_numparse=True)
        return [*table.splitlines(), *([omitted] if omitted else []), self._totals(statuses)]

    def _totals(self, statuses: Sequence[GroupStatus]) -> str:
        return overview(statuses, self.results, self.trials, count_groups=True)

    def _line(self, statuses: Sequence[GroupStatus]) -> str:
        """The totals, and the first groups that train."""
        running = [group for group in statuses if group.state in ("running", "silent")]
        named = []
        for group in running[:MOST_NAMED]:
            name, *_, state, epoch, _, _ = group.cells
            named.append(f"{name} {state}, epoch {epoch}")
        more = [f"{len(running) - MOST_NAMED} more"] if len(running) > MOST_NAMED else []
        return "; ".join([self._totals(statuses), *named, *more])
