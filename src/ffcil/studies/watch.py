"""Live progress of a study, read from the runs' files: a table in a terminal, one line per step elsewhere."""

import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ffcil.errors import printable
from ffcil.runs.folder import is_busy
from ffcil.runs.progress import format_accuracies, format_classes
from ffcil.runs.state import RunState, read_state
from ffcil.studies.estimate import in_words
from ffcil.studies.executors.job import Job


class StudyProgress(ExitStack):
    """Progress of a study's jobs. It is a context manager, which is entered before the first job and left after the
    last."""

    interval = 1.0
    """Seconds between two updates."""
    rest_interval = 10.0
    """Seconds between two readings of jobs that do not run here, of which a study may have thousands."""

    def __init__(self, console: Console, jobs: Sequence[Job]) -> None:
        super().__init__()
        self.console, self.jobs = console, jobs
        self.states: dict[Job, RunState] = {}
        self.times: dict[Job, tuple[float | None, float]] = {}
        """Estimated seconds of the whole job, and seconds so far."""
        for job in jobs:
            self._read(job)
        self.running: set[Job] = set()
        self.updated = self.updated_rest = 0.0
        self.live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self.live:
            self.enter_context(self.live)
        return self

    def message(self, text: str) -> None:
        """Print a line."""
        self.console.out(printable(text), highlight=False)

    def update(self, running: Collection[Job]) -> None:
        """Read and show the state of running jobs and, at longer intervals, of all jobs. Nothing happens if that was
        done less than `interval` ago."""
        if running and time.monotonic() - self.updated < self.interval:
            return
        self.updated = time.monotonic()
        due = {*self.running, *running}
        if not running or self.updated - self.updated_rest >= self.rest_interval:
            self.updated_rest, due = self.updated, set(self.jobs)
        self.running = set(running)
        for job in self.jobs:
            before = self.states[job]
            if job in due and not before.done:
                self._read(job)
                if not self.live:
                    self._print_new_steps(job.label, before, self.states[job])
        if self.live:
            self.live.update(self._table(), refresh=True)

    def _read(self, job: Job) -> None:
        self.states[job] = state = read_state(job.folder)
        self.times[job] = (state.total_seconds, state.seconds)

    def _print_new_steps(self, label: str, before: RunState, now: RunState) -> None:
        for record in now.records[len(before.records) :]:
            position = f"step {record['step']}/{len(now.sizes)}, {format_classes(record['seen_classes'])}"
            self.message(f"{label}: {position}, {format_accuracies(record)}")

    def _table(self) -> Table:
        done = sum(state.done for state in self.states.values())
        title = f"{done} of {len(self.jobs)} runs done{self._time_left()}"
        columns = ("run", "", "step", "accuracy so far", "images/s", "time left")
        table = Table(*columns, title=title, box=None, padding=(0, 2, 0, 0))
        shown = self._selection(max(3, self.console.height - 5))
        for job in shown:
            table.add_row(*self._row(job))
        if hidden := len(self.jobs) - len(shown):
            table.caption = f"and {hidden} more"
        return table

    def _selection(self, rows: int) -> Sequence[Job]:
        """All jobs if there are enough rows, otherwise running jobs first, then finished and queued ones."""
        if len(self.jobs) <= rows:
            return self.jobs
        running = [job for job in self.jobs if job in self.running]
        done = [job for job in self.jobs if self.states[job].done]
        queued = [job for job in self.jobs if job not in self.running and not self.states[job].done]
        ranked = [*running, *queued[: max(0, rows - len(running)) // 2], *reversed(done), *queued]
        chosen = set(list(dict.fromkeys(ranked))[:rows])
        return [job for job in self.jobs if job in chosen]

    def _row(self, job: Job) -> tuple[str | Text | ProgressBar, ...]:
        state = self.states[job]
        record = state.records[-1] if state.records else None
        speed = state.now["images_per_second"] if state.now else record["images_per_second"] if record else None
        return (
            Text(printable(job.label)),
            ProgressBar(total=1.0, completed=state.share, width=20),
            f"{len(state.records)}/{len(state.sizes)}" if state.sizes else "",
            format_accuracies(record) if record else "",
            f"{speed:,.0f}" if speed else "",
            self._status(job, state),
        )

    def _status(self, job: Job, state: RunState) -> str:
        """Time left of a running job, or the state of another one."""
        if state.done:
            return f"done in {in_words(state.seconds)}"
        if job in self.running:
            total = state.total_seconds
            return in_words(total - state.seconds) if total else "starting"
        if state.now and is_busy(job.folder):
            return "running elsewhere"
        return "interrupted" if state.records else "queued"

    def _time_left(self) -> str:
        """Estimated time left of the whole study. Jobs that have not started count as the mean of the others."""
        known = [total for total, _ in self.times.values() if total]
        if not known or all(state.done for state in self.states.values()):
            return ""
        mean = sum(known) / len(known)
        unfinished = (self.times[job] for job, state in self.states.items() if not state.done)
        left = sum((total or mean) - so_far for total, so_far in unfinished)
        started = sum(bool(self.states[job].sizes) for job in self.running)
        return f", about {in_words(left / max(1, started))} left"
