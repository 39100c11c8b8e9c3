"""Runs as tasks of a Ray cluster: an existing one, or one that is started on this machine.

The study's folder and the data sets must be on a file system that every node sees under the same path.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, Self

from ffcil.errors import InputError
from ffcil.studies.executors.job import Ending, Job, Outcome, attempt
from ffcil.studies.executors.loop import STOP_SECONDS

RETRIES = 3
"""Number of times that a run is resumed on another worker after its worker or node crashes."""


class RayExecutor:
    """Executes jobs as tasks of a cluster. A task takes one CPU, and `1 / per_gpu` of a GPU unless on a CPU."""

    def __init__(self, device: str | None, jobs: int | None, per_gpu: int | None, address: str | None) -> None:
        try:
            import ray
        except ImportError as error:
            raise InputError("--executor ray needs the package ray: pip install 'ffcil[ray]'.") from error
        self.ray: Any = ray
        self.address, self.device, self.per_gpu = address, device, per_gpu
        self.slots = jobs
        self.task: Any = None

    def __enter__(self) -> Self:
        local_options = {} if self.address else {"include_dashboard": False}
        try:
            self.ray.init(self.address, log_to_driver=False, logging_level=logging.WARNING, **local_options)
        except self.ray.exceptions.AuthenticationError as error:
            raise InputError(
                f"The Ray cluster at {self.address!r} needs its token: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN."
            ) from error
        except (ConnectionError, ValueError) as error:
            raise InputError(
                f"No Ray cluster answers at {self.address!r}: start one with `ray start --head`."
            ) from error
        self.task = self.ray.remote(num_cpus=1, num_gpus=self._gpu_share(), max_retries=RETRIES)(attempt)
        return self

    def _gpu_share(self) -> float:
        """Share of a GPU for each run."""
        gpus = self.ray.cluster_resources().get("GPU", 0)
        if self.device is not None and self.device.startswith("cuda") and not gpus:
            raise InputError("The Ray cluster has no GPU: run with --device cpu, or add a node with a GPU.")
        if not gpus or self.device == "cpu":
            if self.per_gpu:
                raise InputError("--per-gpu does not apply to CPUs: leave it out.")
            return 0
        return 1 / (self.per_gpu or 1)

    def __exit__(self, *exception: object) -> None:
        self.ray.shutdown()

    def start(self, job: Job) -> _Task:
        # Other nodes find the files by their absolute paths.
        return _Task(self.ray, self.task.remote(replace(job, folder=job.folder.absolute())))


class _Task:
    """A job as a task of the cluster."""

    def __init__(self, ray: Any, reference: Any) -> None:
        self.ray, self.reference = ray, reference

    def outcome(self) -> Outcome | None:
        ready, _ = self.ray.wait([self.reference], timeout=0)
        if not ready:
            return None
        try:
            outcome: Outcome = self.ray.get(self.reference)
        except self.ray.exceptions.RayError as error:
            return Outcome(Ending.CRASHED, str(error).strip().splitlines()[0])
        return outcome

    def stop(self) -> None:
        self.ray.cancel(self.reference)

    def wait(self) -> None:
        self.ray.wait([self.reference], timeout=STOP_SECONDS)
