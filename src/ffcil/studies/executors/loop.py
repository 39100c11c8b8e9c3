"""The one loop that drives a study's jobs to their ends, on whatever executor."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from ffcil.runs.folder import is_busy
from ffcil.studies.executors.job import Ending, Job, Outcome

TRIES = 2
"""of a job whose worker dies"""
BUSY_SECONDS = 2.0
"""until a run that another process holds is looked at again"""
PATIENCE = 30.0
"""seconds for a run to stop when told to"""


class Attempt(Protocol):
    """A job on its way."""

    def outcome(self) -> Outcome | None:
        """None while it runs."""

    def stop(self) -> None:
        """Tell it to stop; do not wait."""

    def wait(self) -> None:
        """Until it has stopped."""


class Executor(AbstractContextManager["Executor"], Protocol):
    """Carries out jobs: entered before the first, left after the last."""

    @property
    def slots(self) -> int | None:
        """Jobs at a time; None: as many as there is room for, which it knows itself."""

    def start(self, job: Job) -> Attempt: ...


class Watcher(Protocol):
    """Shows a person what goes on."""

    def look(self, running: Collection[Job]) -> None:
        """Several times a second."""

    def say(self, text: str) -> None: ...


class _Queue:
    """Jobs that are to be started, each not before its time."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.waiting = [(0.0, job) for job in jobs]

    def put(self, job: Job, seconds: float = 0.0) -> None:
        self.waiting.append((time.monotonic() + seconds, job))

    def take(self) -> Job | None:
        """The next one that is neither done nor in another process's hands."""
        now = time.monotonic()
        for place, (due, job) in enumerate(self.waiting):
            if due <= now:
                del self.waiting[place]
                if job.done:
                    return self.take()
                if is_busy(job.folder):
                    self.put(job, BUSY_SECONDS)
                    return self.take()
                return job
        return None


def run_jobs(jobs: Sequence[Job], executor: Executor, watch: Watcher, every: float = 0.2) -> dict[Job, str]:
    """Carry out every job that is not done. Returns why jobs failed; the others are done.

    A worker that dies gets its job again, once: the run goes on where it was. A job that another process is running is
    waited for, and taken over if that one dies. Ctrl-C stops the workers, and is raised again when they have stopped.
    """
    queue, running = _Queue(jobs), dict[Job, Attempt]()
    deaths, failed = Counter[Job](), dict[Job, str]()
    # where nothing is to be done, no service and no cluster is started for it
    with nullcontext() if all(job.done for job in jobs) else executor:
        try:
            while queue.waiting or running:
                while (executor.slots is None or len(running) < executor.slots) and (job := queue.take()):
                    running[job] = executor.start(job)
                watch.look(running.keys())
                time.sleep(every)
                for job, attempt in list(running.items()):
                    if (outcome := attempt.outcome()) is None:
                        continue
                    del running[job]
                    deaths[job] += outcome.ending is Ending.DIED
                    if outcome.ending is Ending.BUSY:
                        queue.put(job, BUSY_SECONDS)
                    elif outcome.ending is Ending.DIED and deaths[job] < TRIES:
                        watch.say(f"{job.label}: {outcome.why}; taken up again")
                        queue.put(job)
                    elif outcome.ending is not Ending.DONE:
                        watch.say(f"{job.label}: failed: {outcome.why}")
                        failed[job] = outcome.why
            watch.look(())
        except BaseException:
            for attempt in running.values():
                attempt.stop()
            for attempt in running.values():
                attempt.wait()
            raise
    return failed
