"""The loop that executes a study's jobs on any executor."""

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from itertools import islice
from typing import Protocol

from ffcil.runs.folder import is_busy, running_in
from ffcil.studies.estimate import in_words
from ffcil.studies.executors.idle import Idleness
from ffcil.studies.executors.job import LOG, Ending, Job, Outcome
from ffcil.studies.watch import StudyProgress

ATTEMPTS = 2
"""Largest number of attempts at a job whose worker crashes."""
BUSY_SECONDS = 2.0
"""Seconds between two checks of a run that another process executes."""
STALL_SECONDS = 600.0
"""Seconds without progress after which a run is reported."""
CHECK_SECONDS = 5.0
"""Seconds between two checks of the progress."""
STOP_SECONDS = 30.0
"""Seconds that a run has to stop before it is killed."""


class Attempt(Protocol):
    """A job that was started."""

    def outcome(self) -> Outcome | None:
        """Return how the job ended, or None while it runs."""

    def began(self) -> bool:
        """Return whether the job runs, and is not queued."""

    def stop(self) -> None:
        """Ask the job to stop, without waiting for it."""

    def kill(self) -> None:
        """End the job, which may not react to `stop`, without waiting for it."""

    def wait(self) -> None:
        """Wait until the job has stopped."""


class Executor(ExitStack, ABC):
    """Starts jobs. It is a context manager, which is entered before the first job and left after the last."""

    slots: int | None
    """Number of jobs at a time; None if the executor queues jobs itself."""

    @abstractmethod
    def start(self, job: Job) -> Attempt: ...

    def start_all(self, jobs: Sequence[Job]) -> Iterable[Attempt]:
        """Start several jobs, one after another unless the executor has a faster way."""
        return map(self.start, jobs)


def run_jobs(
    jobs: Sequence[Job],
    executor: Executor,
    progress: StudyProgress,
    interval: float = 0.2,
    patience: float | None = None,
) -> dict[Job, str]:
    """Execute every job that is not done. Return the reasons of those that failed.

    A job whose worker crashes is resumed once. A job that another process executes is waited for, and is resumed here
    if that process crashes. A job without progress for `patience` seconds is ended, which counts as a crash; without
    `patience`, it is only reported. Ctrl-C stops the workers, and is raised again when they have stopped.
    """
    waiting = dict.fromkeys(jobs, 0.0)  # each with the time before which it is not started
    running, failed, crashes = dict[Job, Attempt](), dict[Job, str](), Counter[Job]()
    others, stalled = _Others(progress), _Stalled(progress, patience)
    # if all jobs are done, no MPS and no cluster is started
    with nullcontext() if all(job.done for job in jobs) else executor:
        try:
            while waiting or running:
                room = None if executor.slots is None else executor.slots - len(running)
                ready = list(islice(iter(partial(_take, waiting, others), None), room))
                for job, attempt in zip(ready, executor.start_all(ready) if ready else (), strict=True):
                    running[job] = attempt
                progress.update(running.keys())
                time.sleep(interval)
                stalled.check(running)
                ended = {job: outcome for job, attempt in running.items() if (outcome := attempt.outcome())}
                for job, outcome in ended.items():
                    del running[job]
                    crashes[job] += outcome.ending is Ending.CRASHED
                    if outcome.ending is Ending.BUSY:
                        others.tell(job)
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


def _take(waiting: dict[Job, float], others: "_Others") -> Job | None:
    """Remove and return the next job that is neither done nor executed by another process."""
    now = time.monotonic()
    for job in [job for job, due in waiting.items() if due <= now]:
        del waiting[job]
        if job.done:
            continue
        if not is_busy(job.folder):
            return job
        others.tell(job)
        waiting[job] = now + BUSY_SECONDS
    return None


class _Others:
    """Reports jobs that other processes execute, once for each job and process."""

    def __init__(self, progress: StudyProgress) -> None:
        self.progress = progress
        self.told: set[tuple[Job, str]] = set()

    def tell(self, job: Job) -> None:
        holder = running_in(job.folder)
        if (job, holder) not in self.told:
            self.told.add((job, holder))
            self.progress.message(f"{job.label}: is executed by {holder}; waiting for it")


class _Stalled:
    """Reports running jobs without progress, and ends them if `patience` is given."""

    def __init__(self, progress: StudyProgress, patience: float | None) -> None:
        self.progress, self.patience = progress, patience
        self.limit = STALL_SECONDS if patience is None else patience
        self.idleness = Idleness()
        self.named: set[Job] = set()
        self.checked = 0.0

    def check(self, running: Mapping[Job, Attempt]) -> None:
        if time.monotonic() - self.checked < min(CHECK_SECONDS, self.limit / 10):
            return
        self.checked = time.monotonic()
        for job, attempt in running.items():
            if not attempt.began() or (idle := self.idleness.seconds(job)) < self.limit:
                self.named.discard(job)
            elif job not in self.named:
                self.named.add(job)
                self._report(job, idle, attempt)

    def _report(self, job: Job, idle: float, attempt: Attempt) -> None:
        told = f"{job.label}: no progress for {in_words(idle)} ({running_in(job.folder)}; {job.folder / LOG})"
        if self.patience is None:
            self.progress.message(f"{told}; --patience MINUTES would end and resume it")
            return
        self.progress.message(f"{told}; ended")
        self.idleness.forget(job)
        attempt.kill()
