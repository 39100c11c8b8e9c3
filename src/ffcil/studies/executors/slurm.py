"""Runs as SLURM jobs, through submitit."""

import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ffcil.errors import InputError
from ffcil.runs.folder import is_busy
from ffcil.studies.executors.job import Ending, Job, Outcome, attempt
from ffcil.studies.executors.loop import Attempt, Executor

NUMBER = ".slurm"
"""File of a run's folder that holds the number of its SLURM job."""
QUEUE_SECONDS = 10.0
"""Seconds between two queries of the queue about a job."""


class _Requeued:
    """A job that is requeued and resumed when SLURM preempts it or its time is over."""

    def __call__(self, job: Job) -> Outcome:
        return attempt(job)

    def checkpoint(self, job: Job) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, job)


class SlurmExecutor(Executor):
    """Executes jobs as SLURM jobs with one core each, and one GPU each unless the device is a CPU.

    At most `jobs` of them are in the queue at a time. `parameters` are those of submitit. Tests set `cluster` to
    "local", for processes on this machine.
    """

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
        self.slots, self.submitit, self.cluster = jobs, submitit, cluster
        gpus = {} if device == "cpu" else {"gpus_per_node": 1}
        self.parameters = {"name": "ffcil", "timeout_min": 1440, "cpus_per_task": 1, **gpus, **parameters}

    def start(self, job: Job) -> Attempt:
        job = replace(job, folder=job.folder.absolute())
        logs = job.folder / "slurm"
        logs.mkdir(parents=True, exist_ok=True)
        number = job.folder / NUMBER
        if self.cluster == "slurm" and number.exists() and _in_queue(earlier := number.read_text()):
            # An interrupted study submitted this job: it is waited for, not submitted again.
            return _Submitted(self.submitit.SlurmJob(logs, earlier), job.folder, self.cluster)
        submitted = self._submit(job, logs)
        number.write_text(submitted.job_id)
        return _Submitted(submitted, job.folder, self.cluster)

    def _submit(self, job: Job, logs: Path) -> Any:
        submitter = self.submitit.AutoExecutor(logs, cluster=self.cluster)
        try:
            submitter.update_parameters(**self.parameters)
            return submitter.submit(_Requeued(), job)
        except (NameError, TypeError) as error:
            raise InputError(f"submitit rejects these --slurm parameters: {str(error).splitlines()[0]}") from error
        except self.submitit.core.utils.FailedJobError as error:
            raise InputError(f"SLURM rejected a job: {str(error).strip().splitlines()[-1]}") from error


class _Submitted:
    """A job that was submitted to SLURM."""

    def __init__(self, job: Any, folder: Path, cluster: str) -> None:
        self.job, self.folder, self.cluster = job, folder, cluster
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
        if self.cluster != "slurm":
            return not self.job.done()
        if time.monotonic() - self.queried < QUEUE_SECONDS:
            return True
        self.queried = time.monotonic()
        self.missed = 0 if _in_queue(self.job.job_id) else self.missed + 1
        return self.missed < 2  # A result can take a moment to appear on a shared file system.

    def began(self) -> bool:
        return is_busy(self.folder)

    def stop(self) -> None:
        self.job.cancel(check=False)

    def kill(self) -> None:
        self.stop()

    def wait(self) -> None:
        """Return at once: a cancelled job ends by itself and releases its run's lock."""


def _in_queue(number: str) -> bool:
    """Whether SLURM still has a job: pending, running, or about to be requeued."""
    command = ["squeue", "--noheader", "--jobs", number, "--format", "%T"]
    queried = subprocess.run(command, capture_output=True, text=True, check=False)
    return bool(queried.stdout.strip())
