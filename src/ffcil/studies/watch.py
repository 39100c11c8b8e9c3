"""The live view of a study: a table of its runs in a terminal, a plain line a step elsewhere; from the runs' files."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ffcil.runs.folder import is_busy
from ffcil.runs.progress import format_accuracies
from ffcil.runs.state import RunState, read_state
from ffcil.studies.estimate import in_words
from ffcil.studies.executors.job import Job


class Watch:
    """Follows jobs by their folders. Enter it before they start, leave it when they have ended."""

    every = 0.5

    def __init__(self, console: Console, jobs: Sequence[Job]) -> None:
        self.console, self.jobs = console, jobs
        self.states = {job: read_state(job.folder) for job in jobs}
        self.running: set[Job] = set()
        self.last = 0.0
        self.live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self.live:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live:
            self.live.stop()

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True, markup=False)

    def look(self, running: Collection[Job]) -> None:
        if running and time.monotonic() - self.last < self.every:
            return
        self.last = time.monotonic()
        self.running = set(running)
        for job in self.jobs:
            before = self.states[job]
            if not before.done:
                self.states[job] = now = read_state(job.folder)
                if not self.live:
                    self._tell_steps(job.label, before, now)
        if self.live:
            self.live.update(self._table(), refresh=True)

    def _tell_steps(self, label: str, before: RunState, now: RunState) -> None:
        for record in now.records[len(before.records) :]:
            where = f"step {record['step']}/{len(now.sizes)}, {record['seen_classes']} classes"
            self.say(f"{label}: {where}, {format_accuracies(record)}")

    def _table(self) -> Table:
        done = sum(state.done for state in self.states.values())
        title = f"{done} of {len(self.jobs)} runs done{self._left()}"
        table = Table(
            "run", "", "step", "accuracy so far", "images/s", "left", title=title, box=None, padding=(0, 2, 0, 0)
        )
        room = max(3, self.console.height - 5)
        shown = self._most_telling(room)
        for job in shown:
            table.add_row(*self._row(job))
        if hidden := len(self.jobs) - len(shown):
            table.caption = f"and {hidden} more"
        return table

    def _most_telling(self, room: int) -> Sequence[Job]:
        """All runs where they fit, else those at work, then the newest finished ones, then those to come."""
        if len(self.jobs) <= room:
            return self.jobs
        at_work = [job for job in self.jobs if job in self.running]
        done = [job for job in self.jobs if self.states[job].done]
        to_come = [job for job in self.jobs if job not in self.running and not self.states[job].done]
        chosen = {*at_work[:room], *to_come[: max(0, room - len(at_work)) // 2]}
        for job in [*reversed(done), *to_come]:
            if len(chosen) < room:
                chosen.add(job)
        return [job for job in self.jobs if job in chosen]

    def _row(self, job: Job) -> tuple[str | Text | ProgressBar, ...]:
        state = self.states[job]
        record = state.records[-1] if state.records else None
        speed = state.now["images_per_second"] if state.now else record["images_per_second"] if record else None
        total = state.total_seconds
        if state.done:
            left = f"done in {in_words(state.seconds)}"
        elif job in self.running:
            left = in_words(total - state.seconds) if total else "begins"
        elif state.now and is_busy(job.folder):
            left = "in other hands"
        else:
            left = "broken off" if state.records else "to come"
        return (
            Text(job.label),
            ProgressBar(total=1.0, completed=state.share, width=20),
            f"{len(state.records)}/{len(state.sizes)}" if state.sizes else "",
            format_accuracies(record) if record else "",
            f"{speed:,.0f}" if speed else "",
            left,
        )

    def _left(self) -> str:
        """Of the whole study: runs that have not begun are taken to be as long as the others on the average."""
        totals = [state.total_seconds for state in self.states.values()]
        known = [total for total in totals if total]
        if not known or all(state.done for state in self.states.values()):
            return ""
        mean = sum(known) / len(known)
        left = sum((s.total_seconds or mean) - s.seconds for s in self.states.values() if not s.done)
        at_work = sum(bool(self.states[job].sizes) for job in self.running)
        return f", about {in_words(left / max(1, at_work))} left"
