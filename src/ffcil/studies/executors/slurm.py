"""Runs as SLURM jobs, in arrays, through submitit."""

import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ffcil.errors import InputError
from ffcil.runs.folder import is_busy
from ffcil.studies.executors.job import Ending, Job, Outcome, attempt
from ffcil.studies.executors.loop import Attempt, Executor

NUMBER = ".slurm"
"""File of a run's folder that holds the number of its SLURM job."""
LARGEST_ARRAY = 1000
"""Number of jobs that SLURM takes as one array unless its MaxArraySize was raised."""
QUEUE_SECONDS = 10.0
"""Seconds between two queries of the queue."""


class _Requeued:
    """A job that is requeued and resumed when SLURM preempts it or its time limit is reached."""

    def __call__(self, job: Job) -> Outcome:
        return attempt(job)

    def checkpoint(self, job: Job) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, job)


class SlurmExecutor(Executor):
    """Executes jobs as arrays of SLURM jobs with one core each, and one GPU each unless the device is a CPU.

    SLURM executes at most `jobs` of an array at a time. `parameters` are those of submitit. Tests set `cluster` to
    "local", for processes on this machine.
    """

    slots = None

    def __init__(
        self, device: str | None, jobs: int | None, parameters: Mapping[str, Any], cluster: str = "slurm"
    ) -> None:
        try:
            import submitit
        except ImportError as error:
            raise InputError("--executor slurm needs the package submitit: pip install 'ffcil[slurm]'.") from error
        if cluster == "slurm" and shutil.which("sbatch") is None:
            raise InputError("SLURM is not installed here (no sbatch on PATH): use a login node, or --executor local.")
        super().__init__()
        self.submitit, self.cluster, self.queue = submitit, cluster, _Queue()
        gpus = {} if device == "cpu" else {"gpus_per_node": 1}
        at_once = {"slurm_array_parallelism": jobs or LARGEST_ARRAY}
        self.parameters = {"name": "ffcil", "timeout_min": 1440, "cpus_per_task": 1, **gpus, **at_once, **parameters}

    def start(self, job: Job) -> Attempt:
        (attempt,) = self.start_all([job])
        return attempt

    def start_all(self, jobs: Sequence[Job]) -> list[Attempt]:
        """Submit jobs of one study, except those that were submitted before an interruption and are still in the
        queue."""
        jobs = [replace(job, folder=job.folder.absolute()) for job in jobs]
        logs = jobs[0].folder.parent.parent / "slurm"
        logs.mkdir(parents=True, exist_ok=True)
        found = {job: earlier for job in jobs if (earlier := self._earlier(job, logs)) is not None}
        new = [job for job in jobs if job not in found]
        for first in range(0, len(new), LARGEST_ARRAY):
            array = new[first : first + LARGEST_ARRAY]
            for job, submitted in zip(array, self._submit(array, logs), strict=True):
                job.folder.mkdir(parents=True, exist_ok=True)
                (job.folder / NUMBER).write_text(submitted.job_id)
                found[job] = submitted
        queue = self.queue if self.cluster == "slurm" else None
        return [_Submitted(found[job], job.folder, queue) for job in jobs]

    def _earlier(self, job: Job, logs: Path) -> Any:
        """The SLURM job that was submitted for a run before an interruption; None if it is no longer in the queue."""
        number = job.folder / NUMBER
        if self.cluster == "slurm" and number.exists() and self.queue.has(earlier := number.read_text()):
            return self.submitit.SlurmJob(logs, earlier)
        return None

    def _submit(self, jobs: Sequence[Job], logs: Path) -> list[Any]:
        submitter = self.submitit.AutoExecutor(logs, cluster=self.cluster)
        try:
            submitter.update_parameters(**self.parameters)
            submitted: list[Any] = submitter.map_array(_Requeued(), jobs)
            return submitted
        except (NameError, TypeError) as error:
            raise InputError(f"submitit rejects these --slurm parameters: {str(error).splitlines()[0]}") from error
        except self.submitit.core.utils.FailedJobError as error:
            raise InputError(f"SLURM rejected a job: {str(error).strip().splitlines()[-1]}") from error


class _Submitted:
    """A job that was submitted to SLURM, or to a process of this machine if there is no queue."""

    def __init__(self, job: Any, folder: Path, queue: "_Queue | None") -> None:
        self.job, self.folder, self.queue = job, folder, queue
        self.queried, self.missed = time.monotonic(), 0

    def outcome(self) -> Outcome | None:
        if not self.job.paths.result_pickle.exists():
            reason = f"SLURM job {self.job.job_id} ended without a result; its logs: {self.job.paths.folder}"
            return None if self._alive() else Outcome(Ending.CRASHED, reason)
        if (error := self.job.exception()) is not None:
            return Outcome(Ending.CRASHED, str(error).strip().splitlines()[-1])
        outcome: Outcome = self.job.result()
        return outcome

    def _alive(self) -> bool:
        if self.queue is None:
            return not self.job.done()
        if time.monotonic() - self.queried < QUEUE_SECONDS:
            return True
        self.queried = time.monotonic()
        self.missed = 0 if self.queue.has(self.job.job_id) else self.missed + 1
        return self.missed < 2  # a result may take a moment to appear on a shared file system

    def began(self) -> bool:
        return is_busy(self.folder)

    def stop(self) -> None:
        self.job.cancel(check=False)

    def kill(self) -> None:
        self.stop()

    def wait(self) -> None:
        """Return at once: a cancelled job ends by itself and releases its run's lock."""


class _Queue:
    """The user's jobs in the queue of SLURM: pending, running, or about to be requeued. One query is for all of
    them."""

    def __init__(self) -> None:
        self.numbers: set[str] = set()
        self.queried = -QUEUE_SECONDS

    def has(self, number: str) -> bool:
        if time.monotonic() - self.queried >= QUEUE_SECONDS:
            command = ["squeue", "--noheader", "--me", "--array", "--format", "%i"]
            answer = subprocess.run(command, capture_output=True, text=True, check=False)
            self.numbers, self.queried = set(answer.stdout.split()), time.monotonic()
        return number in self.numbers
