"""Runs as processes of this machine, several at a time, several on a GPU where MPS lets them share it."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from types import TracebackType
from typing import Self

import torch

from ffcil.errors import InputError
from ffcil.studies.executors.job import LOG, Ending, Job, Outcome, attempt
from ffcil.studies.executors.loop import PATIENCE
from ffcil.studies.executors.mps import PORTION, MpsError, in_use, mps, mps_available, portion

PER_GPU = 8
"""runs that share a GPU under MPS unless told otherwise: on an H200, eight train faster than four, each with its
portion of it (results/sharing.json)"""


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def devices(device: str | None) -> list[str]:
    """Where runs go: every GPU, the one that was named, or the CPU."""
    gpus = [f"cuda:{k}" for k in range(torch.cuda.device_count())]
    if device not in (None, "cpu", *gpus, *["cuda"][: len(gpus)]):
        raise InputError(f"Device {device!r} is not there: choose one of {', '.join(['cpu', *gpus])}.")
    return gpus or ["cpu"] if device in (None, "cuda") else [str(device)]


class LocalExecutor:
    """Processes here. `jobs` at a time; None: a core each on a CPU, else `per_gpu` on each GPU. No more than the `runs`
    that there are to make, where their number is known: few have more of a GPU each."""

    def __init__(
        self,
        device: str | None = None,
        jobs: int | None = None,
        per_gpu: int | None = None,
        runs: int | None = None,
    ) -> None:
        self.devices = devices(device)
        self.jobs, self.per_gpu, self.runs = jobs, per_gpu, runs
        on_gpu = self.devices != ["cpu"]
        if per_gpu and not on_gpu:
            raise InputError("--per-gpu has no meaning on a CPU: say with --jobs how many runs to make at a time.")
        self.slots = self._slots(PER_GPU if mps_available() else 1) if on_gpu else self._needed(jobs or cores())
        self.share = on_gpu and self.slots > len(self.devices) and mps_available()
        self.environment: dict[str, str] = {}
        self.load = Counter[str]()
        self.stack = ExitStack()
        # children are forked from a process that has imported torch and started no thread: ready in no time
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["ffcil.studies.executors.job"])

    def _slots(self, usual: int) -> int:
        """What was asked for, or the usual number on each GPU."""
        return self._needed(self.jobs or len(self.devices) * (self.per_gpu or usual))

    def _needed(self, slots: int) -> int:
        return slots if self.runs is None else max(1, min(slots, self.runs))

    def __enter__(self) -> Self:
        if self.share:
            try:
                self.environment = self.stack.enter_context(mps())
                if PORTION not in os.environ:  # else the user's own
                    self.environment[PORTION] = str(portion(math.ceil(self.slots / len(self.devices))))
            except MpsError as error:
                self.slots = self._slots(1)
                print(f"ffcil: MPS does not start ({error}): {self.slots} run(s) at a time.", file=sys.stderr)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stack.close()

    def start(self, job: Job) -> _Child:
        device = min(self.devices, key=lambda name: self.load[name])
        self.load[device] += 1
        return _Child(self, replace(job, device=device))


class _Child:
    """A job in a process of its own."""

    def __init__(self, executor: LocalExecutor, job: Job) -> None:
        self.executor, self.job = executor, job
        self.result, theirs = executor.context.Pipe(duplex=False)
        self.process: ForkServerProcess = executor.context.Process(
            target=_work, args=(job, executor.environment, theirs)
        )
        self.process.start()
        theirs.close()

    def outcome(self) -> Outcome | None:
        if self.process.is_alive():
            return None
        self.executor.load[str(self.job.device)] -= 1
        try:
            outcome: Outcome = self.result.recv()
        except EOFError:
            status = self.process.exitcode or 0
            why = f"killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
            return Outcome(Ending.DIED, f"{why}; its log is {self.job.folder / LOG}")
        return outcome

    def stop(self) -> None:
        self.process.terminate()

    def wait(self) -> None:
        self.process.join(PATIENCE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _work(job: Job, environment: Mapping[str, str], result: Connection) -> None:
    """What a child does. Ctrl-C in the terminal reaches the study alone, which then tells its children."""
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
        print("ffcil: stopped", flush=True)
