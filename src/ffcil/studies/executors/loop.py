"""The loop that executes a study's jobs on any executor."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from ffcil.runs.folder import is_busy
from ffcil.studies.executors.job import Ending, Job, Outcome

ATTEMPTS = 2
"""Number of attempts at a job whose worker crashes."""
BUSY_SECONDS = 2.0
"""Seconds until a run that another process executes is checked again."""
STOP_SECONDS = 30.0
"""Seconds that a run has to stop before it is killed."""


class Attempt(Protocol):
    """A job that was started."""

    def outcome(self) -> Outcome | None:
        """Return how the job ended, or None while it runs."""

    def stop(self) -> None:
        """Ask the job to stop, without waiting for it."""

    def wait(self) -> None:
        """Wait until the job has stopped."""


class Executor(AbstractContextManager["Executor"], Protocol):
    """Starts jobs. It is a context manager that lasts from before the first job to after the last."""

    @property
    def slots(self) -> int | None:
        """Number of jobs at a time; None if the executor queues jobs itself."""

    def start(self, job: Job) -> Attempt: ...


class ProgressView(Protocol):
    """Shows the progress of jobs."""

    def update(self, running: Collection[Job]) -> None:
        """Show the current state; called several times per second."""

    def message(self, text: str) -> None: ...


class _Queue:
    """Jobs that wait to be started, each not before its time."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.waiting = [(0.0, job) for job in jobs]

    def put(self, job: Job, seconds: float = 0.0) -> None:
        self.waiting.append((time.monotonic() + seconds, job))

    def take(self) -> Job | None:
        """Remove and return the next job that is neither done nor executed by another process."""
        now = time.monotonic()
        for position, (due, job) in enumerate(self.waiting):
            if due <= now:
                del self.waiting[position]
                if job.done:
                    return self.take()
                if is_busy(job.folder):
                    self.put(job, BUSY_SECONDS)
                    return self.take()
                return job
        return None


def run_jobs(jobs: Sequence[Job], executor: Executor, progress: ProgressView, interval: float = 0.2) -> dict[Job, str]:
    """Execute every job that is not done. Return the reasons of those that failed.

    A job whose worker crashes is resumed once. A job that another process executes is waited for, and resumed here if
    that process crashes. Ctrl-C stops the workers, and is raised again when they have stopped.
    """
    queue, running = _Queue(jobs), dict[Job, Attempt]()
    crashes, failed = Counter[Job](), dict[Job, str]()
    # If all jobs are done, no service and no cluster is started.
    with nullcontext() if all(job.done for job in jobs) else executor:
        try:
            while queue.waiting or running:
                while (executor.slots is None or len(running) < executor.slots) and (job := queue.take()):
                    running[job] = executor.start(job)
                progress.update(running.keys())
                time.sleep(interval)
                for job, outcome in _ended(running):
                    crashes[job] += outcome.ending is Ending.CRASHED
                    if outcome.ending is Ending.BUSY:
                        queue.put(job, BUSY_SECONDS)
                    elif outcome.ending is Ending.CRASHED and crashes[job] < ATTEMPTS:
                        progress.message(f"{job.label}: {outcome.reason}; resumed")
                        queue.put(job)
                    elif outcome.ending is not Ending.DONE:
                        progress.message(f"{job.label}: failed: {outcome.reason}")
                        failed[job] = outcome.reason
            progress.update(())
        except BaseException:
            for attempt in running.values():
                attempt.stop()
            for attempt in running.values():
                attempt.wait()
            raise
    return failed


def _ended(running: dict[Job, Attempt]) -> Iterable[tuple[Job, Outcome]]:
    """Remove the jobs that have ended, and yield each with its outcome."""
    for job, attempt in list(running.items()):
        if (outcome := attempt.outcome()) is not None:
            del running[job]
            yield job, outcome
