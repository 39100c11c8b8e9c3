"""`Idleness`: how long running jobs have made no progress."""

import time
from pathlib import Path

from ffcil.studies.executors.job import LOG, Job

FILES = (LOG, "progress.json", "records.jsonl")
"""Files of a run's folder that change while it makes progress: the log at least every ten seconds or every epoch."""


class Idleness:
    """Remembers when the files of each job changed. Changes are counted, not times of files, whose clock may differ."""

    def __init__(self) -> None:
        self._seen: dict[Job, tuple[tuple[int, ...], float]] = {}

    def seconds(self, job: Job) -> float:
        """Seconds since the job was first asked about or last made progress."""
        now, state = time.monotonic(), tuple(_changed(job.folder / name) for name in FILES)
        before, since = self._seen.get(job, (None, now))
        if state != before:
            since = now
        self._seen[job] = (state, since)
        return now - since

    def forget(self, job: Job) -> None:
        self._seen.pop(job, None)


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0
