"""Runs as SLURM jobs, through submitit.

The study's folder, and the data sets, must be on a file system that every node sees under the same path.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ffcil.errors import InputError
from ffcil.studies.executors.job import Ending, Job, Outcome, attempt

NUMBER = ".slurm"
"""file of a run's folder: the number of its SLURM job"""
QUEUE_SECONDS = 10.0
"""between two questions to the queue about a job"""


class _Requeued:
    """A job that, when SLURM preempts it or its time is over, is put into the queue again and goes on."""

    def __call__(self, job: Job) -> Outcome:
        return attempt(job)

    def checkpoint(self, job: Job) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, job)


class SlurmExecutor:
    """SLURM jobs with a core each, and a GPU unless the device is a CPU. `parameters` are submitit's.

    `cluster` "local" runs them as processes instead, for tests of everything but SLURM itself.
    """

    def __init__(
        self, device: str | None, jobs: int | None, parameters: Mapping[str, Any], cluster: str = "slurm"
    ) -> None:
        try:
            import submitit
        except ImportError as error:
            raise InputError("--executor slurm needs the package submitit: pip install 'ffcil[slurm]'.") from error
        if cluster == "slurm" and shutil.which("sbatch") is None:
            raise InputError("There is no SLURM here (no sbatch on the PATH): go to a login node, or --executor local.")
        self.submitit, self.cluster = submitit, cluster
        self.slots = jobs
        gpus = {} if device == "cpu" else {"gpus_per_node": 1}
        self.parameters = {"name": "ffcil", "timeout_min": 1440, "cpus_per_task": 1, **gpus, **parameters}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def start(self, job: Job) -> _Submitted:
        job = replace(job, folder=job.folder.absolute())
        logs = job.folder / "slurm"
        logs.mkdir(parents=True, exist_ok=True)
        number = job.folder / NUMBER
        if self.cluster == "slurm" and number.exists() and _in_queue(before := number.read_text()):
            # a study that was broken off sent it: it is waited for, not sent twice
            return _Submitted(self.submitit.SlurmJob(logs, before), self.cluster)
        sent = self._send(job, logs)
        number.write_text(sent.job_id)
        return _Submitted(sent, self.cluster)

    def _send(self, job: Job, logs: Path) -> Any:
        sender = self.submitit.AutoExecutor(logs, cluster=self.cluster)
        try:
            sender.update_parameters(**self.parameters)
            return sender.submit(_Requeued(), job)
        except (NameError, TypeError) as error:
            raise InputError(
                f"submitit does not take these --slurm parameters: {str(error).splitlines()[0]}"
            ) from error
        except self.submitit.core.utils.FailedJobError as error:
            raise InputError(f"SLURM refused a job: {str(error).strip().splitlines()[-1]}") from error


class _Submitted:
    """A job that was sent to SLURM."""

    def __init__(self, job: Any, cluster: str) -> None:
        self.job, self.cluster = job, cluster
        self.asked, self.missed = time.monotonic(), 0

    def outcome(self) -> Outcome | None:
        if self.job.paths.result_pickle.exists():
            return self._result()
        if self._alive():
            return None
        return Outcome(
            Ending.DIED, f"SLURM job {self.job.job_id} ended without a result; its logs: {self.job.paths.folder}"
        )

    def _result(self) -> Outcome:
        if (error := self.job.exception()) is not None:
            return Outcome(Ending.DIED, str(error).strip().splitlines()[-1])
        outcome: Outcome = self.job.result()
        return outcome

    def _alive(self) -> bool:
        if self.cluster != "slurm":
            return not self.job.done()
        if time.monotonic() - self.asked < QUEUE_SECONDS:
            return True
        self.asked = time.monotonic()
        self.missed = 0 if _in_queue(self.job.job_id) else self.missed + 1
        return self.missed < 2  # its result may take a moment to be seen from here

    def stop(self) -> None:
        self.job.cancel(check=False)

    def wait(self) -> None:
        """A cancelled job ends by itself, and its run's lock says when."""


def _in_queue(number: str) -> bool:
    """Whether SLURM still has a job: pending, running, or about to be requeued."""
    asked = subprocess.run(
        ["squeue", "--noheader", "--jobs", number, "--format", "%T"], capture_output=True, text=True, check=False
    )
    return bool(asked.stdout.strip())
