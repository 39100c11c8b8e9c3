"""NVIDIA's Multi-Process Service: without it, processes that share a GPU take turns, and sharing gains nothing."""

from __future__ import annotations

import fcntl
import math
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

CONTROL = "nvidia-cuda-mps-control"
PIPES = "CUDA_MPS_PIPE_DIRECTORY"
PORTION = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


class MpsError(Exception):
    """The service does not start."""


def mps_available() -> bool:
    return shutil.which(CONTROL) is not None


def portion(runs: int) -> int:
    """Percent of a GPU's multiprocessors that each of so many runs on it may use.

    Where each may use all, every kernel spreads over the whole GPU and the runs get in each other's way. All portions
    together are twice the GPU, so that there is work for it while some of the runs wait (results/sharing.json).
    """
    return min(100, math.ceil(200 / runs))


@contextmanager
def mps() -> Iterator[dict[str, str]]:
    """The environment under which processes share GPUs through MPS.

    A service of another's that runs already is used and left running. Otherwise there is one for all studies of a user
    on a machine, also for one that is taken up after it was killed: the first starts it, the last stops it.
    """
    if _tell("get_server_list", os.environ):
        yield {}
        return
    place = Path(tempfile.gettempdir()) / f"ffcil-mps-{os.getuid()}"  # a short path: there are sockets in it
    place.mkdir(mode=0o700, exist_ok=True)
    if place.stat().st_uid != os.getuid():
        raise MpsError(f"{place} belongs to somebody else")
    pipes = place / "pipes"
    own = {PIPES: str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(pipes)}
    with _held(place) as users:
        try:
            pipes.mkdir(exist_ok=True)
            _start({**os.environ, **own})
            yield own
        finally:
            if _alone(users):
                _tell("quit", {**os.environ, **own})
                shutil.rmtree(pipes, ignore_errors=True)


@contextmanager
def in_use(environment: Mapping[str, str]) -> Iterator[None]:
    """For a run under `mps()`, which may outlive its study: while it lasts, no other study stops the service."""
    if PIPES not in environment:
        yield
        return
    with _held(Path(environment[PIPES]).parent):
        yield


@contextmanager
def _held(place: Path) -> Iterator[TextIO]:
    """A lock that all users of the service share; it goes with the process, however that ends."""
    with (place / "users").open("a") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        yield users


def _alone(users: TextIO) -> bool:
    """Whether nobody else holds the lock; nobody can take it from then on, until it is let go."""
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _start(environment: Mapping[str, str]) -> None:
    if _tell("get_server_list", environment):
        return
    try:
        subprocess.run([CONTROL, "-d"], env=environment, check=True, capture_output=True, text=True, timeout=60)
    except subprocess.CalledProcessError as error:
        if not _tell("get_server_list", environment):  # another study may have started it just now
            raise MpsError((error.stderr or error.stdout).strip() or f"status {error.returncode}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MpsError(str(error)) from error


def _tell(command: str, environment: Mapping[str, str]) -> bool:
    """Whether a service took the command."""
    try:
        told = subprocess.run(
            [CONTROL], input=command + "\n", text=True, env=environment, check=False, capture_output=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return told.returncode == 0
