"""Runs as tasks of a Ray cluster: an existing one, or one that is started on this machine."""

import logging
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from ffcil.errors import InputError
from ffcil.runs.folder import is_busy
from ffcil.studies.executors.job import Ending, Job, Outcome, attempt
from ffcil.studies.executors.loop import STOP_SECONDS, Attempt, Executor

RETRIES = 3
"""Number of times that a run is resumed on another worker after its worker or node crashes."""


class RayExecutor(Executor):
    """Executes jobs as tasks of a cluster. A task takes one CPU, and `1 / per_gpu` of a GPU unless on a CPU."""

    def __init__(self, device: str | None, jobs: int | None, per_gpu: int | None, address: str | None) -> None:
        try:
            import ray
        except ImportError as error:
            raise InputError("--executor ray needs the package ray: pip install 'ffcil[ray]'.") from error
        super().__init__()
        self.ray: Any = ray
        self.slots, self.address, self.device, self.per_gpu = jobs, address, device, per_gpu

    def __enter__(self) -> Self:
        local_options = {} if self.address else {"include_dashboard": False}
        handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
        try:
            self.ray.init(self.address, log_to_driver=False, logging_level=logging.WARNING, **local_options)
        except self.ray.exceptions.AuthenticationError as error:
            remedy = "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
            raise InputError(f"The Ray cluster at {self.address!r} needs its token: {remedy}.") from error
        except (ConnectionError, ValueError) as error:
            raise InputError(f"No Ray cluster at {self.address!r}: start one with `ray start --head`.") from error
        self.callback(self.ray.shutdown)
        for number, handler in handlers.items():
            signal.signal(number, handler)  # Ray has its own, which abort the process with a dump.
        self.task = self.ray.remote(num_cpus=1, num_gpus=self._gpu_share(), max_retries=RETRIES)(attempt)
        return self

    def _gpu_share(self) -> float:
        gpus = self.ray.cluster_resources().get("GPU", 0)
        if self.device is not None and self.device.startswith("cuda") and not gpus:
            raise InputError("The Ray cluster has no GPU: run with --device cpu, or add a node with a GPU.")
        if not gpus or self.device == "cpu":
            if self.per_gpu:
                raise InputError("--per-gpu does not apply to CPUs: leave it out.")
            return 0
        return 1 / (self.per_gpu or 1)

    def start(self, job: Job) -> Attempt:
        # Other nodes find the files by their absolute paths.
        job = replace(job, folder=job.folder.absolute())
        return _Task(self.ray, job.folder, self.task.remote(job))


class _Task:
    """A job as a task of the cluster."""

    def __init__(self, ray: Any, folder: Path, reference: Any) -> None:
        self.ray, self.folder, self.reference = ray, folder, reference

    def outcome(self) -> Outcome | None:
        ready, _ = self.ray.wait([self.reference], timeout=0)
        try:
            outcome: Outcome | None = self.ray.get(self.reference) if ready else None
        except self.ray.exceptions.RayError as error:
            return Outcome(Ending.CRASHED, str(error).strip().splitlines()[0])
        return outcome

    def began(self) -> bool:
        return is_busy(self.folder)

    def stop(self) -> None:
        self.ray.cancel(self.reference)

    def kill(self) -> None:
        self.ray.cancel(self.reference, force=True)

    def wait(self) -> None:
        self.ray.wait([self.reference], timeout=STOP_SECONDS)
