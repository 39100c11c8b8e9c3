"""Where a run was made: versions, device, commit, command."""

from __future__ import annotations

import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ffcil
from ffcil.training.engine import Engine


def describe_environment(engine: Engine) -> dict[str, Any]:
    """What a reader needs to judge or repeat a run."""
    device = engine.device
    return {
        "ffcil": ffcil.__version__,
        "commit": _commit(),
        "command": shlex.join(["ffcil", *sys.argv[1:]]),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU ({platform.machine()})",
        "threads": torch.get_num_threads(),
        "precision": engine.precision,
        "graph": engine.graph,
        "compile": engine.compile,
    }


def _commit() -> str | None:
    """Of the checkout that ffcil runs from; None where it was installed from a package."""
    source = Path(__file__).resolve().parents[3]
    if not (source / ".git").exists():
        return None
    done = subprocess.run(
        ["git", "-C", str(source), "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or None
