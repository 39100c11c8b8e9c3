"""Runs as processes on this machine, several at a time; under MPS, several on one GPU."""

import math
import multiprocessing
import os
import signal
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Self

import torch

from ffcil.errors import InputError
from ffcil.studies.executors.job import LOG, Ending, Job, Outcome, attempt, last_line
from ffcil.studies.executors.loop import STOP_SECONDS, Attempt, Executor
from ffcil.studies.executors.mps import MpsError, in_use, mps, mps_available, portion
from ffcil.training.arithmetic import PORTION

PER_GPU = 8
"""Default number of runs that share a GPU under MPS. On an H200, eight runs train faster than four
(results/sharing.json)."""


def available_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def find_devices(device: str | None) -> list[str]:
    """Devices for the runs: every GPU, the named one, or the CPU."""
    gpus = [f"cuda:{k}" for k in range(torch.cuda.device_count())]
    if device not in (None, "cpu", *gpus, *["cuda"][: len(gpus)]):
        raise InputError(f"Device {device!r} does not exist here: choose one of {', '.join(['cpu', *gpus])}.")
    return gpus or ["cpu"] if device in (None, "cuda") else [str(device)]


class LocalExecutor(Executor):
    """Executes jobs in processes on this machine.

    Args:
        device: Device of the runs; None for every GPU, or the CPU if there is none.
        jobs: Number of runs at a time; None for one per core on a CPU, or `per_gpu` on each GPU.
        per_gpu: Number of runs that share a GPU.
        runs: Number of runs in all, if known. Fewer runs get a larger portion of a GPU each.
    """

    def __init__(
        self, device: str | None = None, jobs: int | None = None, per_gpu: int | None = None, runs: int | None = None
    ) -> None:
        super().__init__()
        self.devices = find_devices(device)
        self.jobs, self.per_gpu, self.runs = jobs, per_gpu, runs
        on_gpu = self.devices != ["cpu"]
        if per_gpu and not on_gpu:
            raise InputError("--per-gpu does not apply to a CPU: set the number of runs at a time with --jobs.")
        self.slots: int = self._slots(PER_GPU if mps_available() else 1)
        self.share = on_gpu and self.slots > len(self.devices) and mps_available()
        self.environment: dict[str, str] = {}
        self.load = Counter[str]()
        # children start fast, because they are forked from a process that has imported torch and has only one thread
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["ffcil.studies.executors.job", "torch._dynamo"])

    def _slots(self, per_gpu: int) -> int:
        """Number of runs at a time: as requested, or else one per core, or `per_gpu` on each GPU."""
        if self.devices == ["cpu"]:
            slots = self.jobs or available_cores()
        else:
            slots = self.jobs or len(self.devices) * (self.per_gpu or per_gpu)
        return slots if self.runs is None else max(1, min(slots, self.runs))

    def __enter__(self) -> Self:
        if self.share:
            try:
                self.environment = self.enter_context(mps())
                if PORTION not in os.environ:
                    self.environment[PORTION] = str(portion(math.ceil(self.slots / len(self.devices))))
            except MpsError as error:
                self.slots = self._slots(1)
                print(f"ffcil: MPS does not start ({error}): {self.slots} run(s) at a time.", file=sys.stderr)
        return self

    def start(self, job: Job) -> Attempt:
        device = min(self.devices, key=lambda name: self.load[name])
        self.load[device] += 1
        return _Child(self, replace(job, device=device))


class _Child:
    """A job in a process of its own."""

    def __init__(self, executor: LocalExecutor, job: Job) -> None:
        self.executor, self.job = executor, job
        self.result, sender = executor.context.Pipe(duplex=False)
        self.process = executor.context.Process(target=_work, args=(job, executor.environment, sender))
        self.process.start()
        sender.close()

    def outcome(self) -> Outcome | None:
        if self.process.is_alive():
            return None
        self.executor.load[str(self.job.device)] -= 1
        try:
            outcome: Outcome = self.result.recv()
        except EOFError:
            status = self.process.exitcode or 0
            reason = f"killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
            said = last_line(self.job.folder / LOG)
            return Outcome(Ending.CRASHED, f"{reason}; its log ends with {said!r}" if said else reason)
        return outcome

    def began(self) -> bool:
        return True

    def stop(self) -> None:
        self.process.terminate()

    def kill(self) -> None:
        self.process.kill()

    def wait(self) -> None:
        self.process.join(STOP_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _work(job: Job, environment: Mapping[str, str], result: Connection) -> None:
    """Execute a job in a child process. Ctrl-C reaches only the study, which then stops its children."""
    os.setsid()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.environ.update(environment)
    job.folder.mkdir(parents=True, exist_ok=True)
    with (job.folder / LOG).open("ab") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    try:
        with in_use(environment):
            result.send(attempt(job))
    except KeyboardInterrupt:
        print("ffcil: interrupted", flush=True)
