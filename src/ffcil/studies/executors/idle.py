"""`Idleness`: how long running jobs have made no progress."""

import time
from pathlib import Path

from ffcil.studies.executors.job import LOG, Job

FILES = (LOG, "progress.json", "records.jsonl")
"""Files of a run's folder that change while the run makes progress. The log has a new line every ten seconds, or after
an epoch that takes longer."""


class Idleness:
    """Remembers when the files of each job were seen to change. It compares the times of files with each other only,
    because the clock of the file system may differ."""

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
