"""NVIDIA's Multi-Process Service (MPS). Without it, processes take turns on a GPU, so that sharing it saves no time."""

import fcntl
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TextIO

CONTROL = "nvidia-cuda-mps-control"
PIPES = "CUDA_MPS_PIPE_DIRECTORY"


class MpsError(Exception):
    """The service does not start."""


def mps_available() -> bool:
    return shutil.which(CONTROL) is not None


PORTIONS = (25, 50, 100)
"""Percentages of a GPU at which matrix products are known to be right. At others they can be wrong; see
`ffcil.training.arithmetic`."""


def portion(runs: int) -> int:
    """Percentage of a GPU's multiprocessors that each of `runs` runs may use.

    If each run may use all of them, every kernel spreads over the whole GPU and the runs slow each other down. The
    portions sum to about twice the GPU, so that it has work while some runs wait (results/sharing.json).
    """
    return next((allowed for allowed in PORTIONS if allowed * runs >= 200), 100)


@contextmanager
def mps() -> Iterator[dict[str, str]]:
    """Environment variables with which processes share GPUs through MPS.

    If somebody else has started a service, it is used and left running. Otherwise all studies of a user on a machine
    share one service: the first study starts it, and the last one stops it, even if a study was killed.
    """
    if _send("get_server_list", os.environ):
        yield {}
        return
    place = _private_folder(Path(tempfile.gettempdir()) / f"ffcil-mps-{os.getuid()}")  # Paths of sockets must be short.
    pipes = place / "pipes"
    own = {PIPES: str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(pipes)}
    with _shared_lock(place) as users:
        try:
            pipes.mkdir(exist_ok=True)
            _start({**os.environ, **own})
            yield own
        finally:
            if _is_last(users):
                _send("quit", {**os.environ, **own})
                shutil.rmtree(pipes, ignore_errors=True)


def _private_folder(place: Path) -> Path:
    """Create a folder, or accept an existing one of this user that nobody else can access. Others can write beside
    it."""
    with suppress(FileExistsError):
        place.mkdir(mode=0o700)
    found = place.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise MpsError(f"{place} is not a private folder of this user: remove it")
    return place


def in_use(environment: Mapping[str, str]) -> AbstractContextManager[object]:
    """Keep other studies from stopping the service while a run uses it. The run may outlive its own study."""
    return _shared_lock(Path(environment[PIPES]).parent) if PIPES in environment else nullcontext()


@contextmanager
def _shared_lock(place: Path) -> Iterator[TextIO]:
    """A lock that all users of the service share. It is released when the process ends in any way."""
    with (place / "users").open("a") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        yield users


def _is_last(users: TextIO) -> bool:
    """Whether no other process holds the lock. If so, no other can take it before this process releases it."""
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _start(environment: Mapping[str, str]) -> None:
    if _send("get_server_list", environment):
        return
    try:
        subprocess.run([CONTROL, "-d"], env=environment, check=True, capture_output=True, text=True, timeout=60)
    except subprocess.CalledProcessError as error:
        if not _send("get_server_list", environment):  # Another study may have started it meanwhile.
            raise MpsError((error.stderr or error.stdout).strip() or f"status {error.returncode}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MpsError(str(error)) from error


def _send(command: str, environment: Mapping[str, str]) -> bool:
    """Send a command to the service. Return whether it accepted the command."""
    try:
        sent = subprocess.run(
            [CONTROL], input=command + "\n", text=True, env=environment, check=False, capture_output=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return sent.returncode == 0
