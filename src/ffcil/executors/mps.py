"""NVIDIA's Multi-Process Service: without it, processes that share a GPU take turns, and sharing gains nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

CONTROL = "nvidia-cuda-mps-control"


def mps_available() -> bool:
    return shutil.which(CONTROL) is not None


@contextmanager
def mps() -> Iterator[dict[str, str]]:
    """The environment under which processes share GPUs through MPS, started here and stopped afterwards.

    A service that runs already is used and left running.
    """
    if _answers(os.environ):
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="ffcil-mps-") as folder:  # a short path: there are sockets in it
        own = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        environment = {**os.environ, **own}
        subprocess.run([CONTROL, "-d"], env=environment, check=True, capture_output=True, timeout=60)
        try:
            yield own
        finally:
            _tell("quit", environment)


def _tell(command: str, environment: os._Environ[str] | dict[str, str]) -> int:
    return subprocess.run(
        [CONTROL], input=command + "\n", text=True, env=environment, check=False, capture_output=True, timeout=60
    ).returncode


def _answers(environment: os._Environ[str] | dict[str, str]) -> bool:
    return _tell("get_server_list", environment) == 0
