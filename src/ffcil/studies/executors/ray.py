"""Runs as tasks of a Ray cluster: an existing one, or one that is started on this machine."""

import logging
import signal
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from ffcil.errors import InputError
from ffcil.runs.folder import is_busy
from ffcil.studies.executors.job import Ending, Job, Outcome, attempt
from ffcil.studies.executors.loop import STOP_SECONDS, Attempt, Executor

HEAD_SECONDS = 5.0
"""Seconds between two connections to the head node, and the time that it has to accept one."""
HEAD_ATTEMPTS = 4
"""Number of failed connections in a row after which the head node counts as lost. Ray would end this process after a
minute."""
RETRIES = 3
"""Number of times that a run is resumed on another worker after its worker or node crashes."""


class RayExecutor(Executor):
    """Executes jobs as tasks of a cluster. A task takes one CPU core and, if it runs on a GPU, `1 / per_gpu` of it."""

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
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)  # those of Ray abort the process with a dump
        host, _, port = self.ray.get_runtime_context().gcs_address.rpartition(":")
        self.head, self.checked, self.missed = (host.strip("[]"), int(port)), time.monotonic(), 0
        self.task = self.ray.remote(num_cpus=1, num_gpus=self._gpu_share(), max_retries=RETRIES)(attempt)
        return self

    def check_head(self) -> None:
        """Raise an error if the head node does not answer. Ray would end the process with a dump."""
        if time.monotonic() - self.checked < HEAD_SECONDS:
            return
        try:
            socket.create_connection(self.head, HEAD_SECONDS).close()
            self.missed = 0
        except OSError as error:
            self.missed += 1
            if self.missed == HEAD_ATTEMPTS:
                place, reason = ":".join(map(str, self.head)), error.strerror or error
                raise InputError(
                    f"The head node of the Ray cluster at {place} does not answer ({reason}): start the cluster again, "
                    "then the same command continues."
                ) from error
        self.checked = time.monotonic()

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
        return _Task(self, job.folder, self.task.remote(job))


class _Task:
    """A job as a task of the cluster."""

    def __init__(self, executor: RayExecutor, folder: Path, reference: Any) -> None:
        self.executor, self.folder, self.reference = executor, folder, reference
        self.ray = executor.ray

    def outcome(self) -> Outcome | None:
        self.executor.check_head()
        ready, _ = self.ray.wait([self.reference], timeout=0)
        try:
            outcome: Outcome | None = self.ray.get(self.reference) if ready else None
        except self.ray.exceptions.RayError as error:
            return Outcome(Ending.CRASHED, str(error).strip().splitlines()[0])
        return outcome

    def began(self) -> bool:
        return is_busy(self.folder)

    def stop(self) -> None:
        if not self.executor.missed:  # otherwise this would wait for the head node
            self.ray.cancel(self.reference)

    def kill(self) -> None:
        self.ray.cancel(self.reference, force=True)

    def wait(self) -> None:
        if not self.executor.missed:
            self.ray.wait([self.reference], timeout=STOP_SECONDS)
