"""Environment of a run: versions, machine, commit, command, wall clock."""

import os
import platform
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ffcil
from ffcil.methods.learner import Learner
from ffcil.runs.folder import RunFolder
from ffcil.training.arithmetic import portion_of_gpu
from ffcil.training.engine import Engine


def describe_environment(engine: Engine) -> dict[str, Any]:
    """Versions, machine and command, which a reader needs to assess or repeat a run."""
    device = engine.device
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    driver = _nvidia_smi("--query-gpu=driver_version") if gpu else None
    return {
        "ffcil": ffcil.__version__,
        "commit": _commit(),
        "command": _command(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "machine": {
            "cpu": _cpu_model(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "gpu": gpu,
            "driver": driver[0] if driver else None,
        },
        "device": gpu or f"CPU ({platform.machine()})",
        "threads": torch.get_num_threads(),
        "precision": engine.precision,
        "graph": engine.graph,
        "compile": engine.compile,
        "portion_of_the_gpu": portion_of_gpu() if gpu else None,
    }


class Session:
    """One start of a run. It adds its wall clock to that of earlier starts, and records whether the GPU was shared."""

    def __init__(self, files: RunFolder, device: torch.device, started: float) -> None:
        self.files, self.device, self.started = files, device, started
        self.before = (files.read("environment.json") or {}).get("wall_clock_seconds") or 0.0
        self.save(check_gpu=True)

    def save(self, check_gpu: bool = False) -> None:
        """Write the wall clock so far. A process that is killed loses only the time after it."""
        environment = self.files.read("environment.json") or {}
        environment["wall_clock_seconds"] = round(self.before + time.monotonic() - self.started, 1)
        if check_gpu and environment.get("alone_on_the_gpu") is not False:
            environment["alone_on_the_gpu"] = alone_on_the_gpu(self.device)
        self.files.write("environment.json", environment)


def alone_on_the_gpu(device: torch.device) -> bool | None:
    """Whether this is the only process that computes on the GPU; None on a CPU, and if nvidia-smi does not say."""
    if device.type != "cuda":
        return None
    if portion_of_gpu() < 100:
        return False
    uuid = torch.cuda.get_device_properties(device).uuid
    processes = _nvidia_smi("--query-compute-apps=pid", f"--id=GPU-{uuid}")
    return None if processes is None else len(set(processes)) <= 1


def describe_method(learner: Learner) -> dict[str, Any]:
    """The method's own names and properties, and the parts of the framework that the run uses."""
    return {
        "title": learner.title,
        "display_names": dict(learner.classifiers),
        "bound": learner.bound,
        "own_alignment": learner.own_alignment,
        "framework": learner.settings.framework.describe(),
    }


def _command() -> str:
    program = Path(sys.argv[0]).name
    started = ["ffcil"] if program in ("ffcil", "__main__.py") else ["python", sys.argv[0]]
    return shlex.join([*started, *sys.argv[1:]])


def _commit() -> str | None:
    """Commit of the checkout that ffcil runs from; None if it was installed from a package."""
    source = Path(__file__).resolve().parents[3]
    found = _output("git", "-C", str(source), "describe", "--always", "--dirty") if (source / ".git").exists() else None
    return found[0] if found else None


def _cpu_model() -> str:
    cpus = Path("/proc/cpuinfo")
    lines = cpus.read_text(encoding="utf-8", errors="replace").splitlines() if cpus.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def _nvidia_smi(*query: str) -> list[str] | None:
    return _output("nvidia-smi", *query, "--format=csv,noheader")


def _output(*command: str) -> list[str] | None:
    """Lines that a program prints; None if it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.split("\n")[:-1] if done.returncode == 0 else None
