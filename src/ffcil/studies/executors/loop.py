"""The loop that executes a study's jobs on any executor."""

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from typing import Protocol

from ffcil.runs.folder import is_busy
from ffcil.studies.executors.job import Ending, Job, Outcome
from ffcil.studies.watch import StudyProgress

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


class Executor(ExitStack, ABC):
    """Starts jobs. It is a context manager that lasts from before the first job to after the last."""

    slots: int | None
    """Number of jobs at a time; None if the executor queues jobs itself."""

    @abstractmethod
    def start(self, job: Job) -> Attempt: ...


def run_jobs(jobs: Sequence[Job], executor: Executor, progress: StudyProgress, interval: float = 0.2) -> dict[Job, str]:
    """Execute every job that is not done. Return the reasons of those that failed.

    A job whose worker crashes is resumed once. A job that another process executes is waited for, and resumed here if
    that process crashes. Ctrl-C stops the workers, and is raised again when they have stopped.
    """
    waiting = dict.fromkeys(jobs, 0.0)  # with the time before which each is not started
    running, failed, crashes = dict[Job, Attempt](), dict[Job, str](), Counter[Job]()
    # If all jobs are done, no service and no cluster is started.
    with nullcontext() if all(job.done for job in jobs) else executor:
        try:
            while waiting or running:
                while (executor.slots is None or len(running) < executor.slots) and (job := _take(waiting)):
                    running[job] = executor.start(job)
                progress.update(running.keys())
                time.sleep(interval)
                ended = {job: outcome for job, attempt in running.items() if (outcome := attempt.outcome())}
                for job, outcome in ended.items():
                    del running[job]
                    crashes[job] += outcome.ending is Ending.CRASHED
                    if outcome.ending is Ending.BUSY:
                        waiting[job] = time.monotonic() + BUSY_SECONDS
                    elif outcome.ending is Ending.CRASHED and crashes[job] < ATTEMPTS:
                        progress.message(f"{job.label}: {outcome.reason}; resumed")
                        waiting[job] = 0.0
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


def _take(waiting: dict[Job, float]) -> Job | None:
    """Remove and return the next job that is neither done nor executed by another process."""
    now = time.monotonic()
    for job in [job for job, due in waiting.items() if due <= now]:
        del waiting[job]
        if job.done:
            continue
        if not is_busy(job.folder):
            return job
        waiting[job] = now + BUSY_SECONDS
    return None
