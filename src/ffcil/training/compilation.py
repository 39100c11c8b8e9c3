"""Compiled code: where it is kept, which of several processes compiles it, and when compiling takes too long."""

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from ffcil.data.cache import cache_folder
from ffcil.locks import Held, lock

CODE_FOLDER = "TORCHINDUCTOR_CACHE_DIR"
"""Environment variable of torch for the folder of compiled code. Triton keeps its code in a folder below it."""
LONGEST_WAIT = 300.0
"""Largest number of seconds that a process waits for another one that compiles the same code."""
FEW_STEPS = 500
"""Number of optimiser steps of a process below which nothing is compiled, because compiling takes longer than it saves.

This is a low estimate: on an H200, compiled code saves 0.7 ms per step of a ResNet-32 with its teacher (batch 128,
captured, bfloat16: 3.6 ms without it, 2.9 ms with it; results/training-step.json), which is less than 0.4 s in 500
steps. benchmarks/start_up.py can measure it: the seconds that compiling by blocks adds to a first epoch with a filled
cache, divided by the seconds that compiled code saves per step, for a ResNet-32 and for a ViT-B/16; the smaller of the
two quotients is the value.
"""


@dataclass
class StepsSoFar:
    """Number of optimiser steps that a process has taken on compilable networks."""

    count: int = 0

    def are_few_with(self, steps: int) -> bool:
        """Count `steps` more, and return whether the sum is below `FEW_STEPS`."""
        self.count += steps
        return self.count < FEW_STEPS


def keep_code() -> None:
    """Keep compiled code in the cache folder, so that later runs find it, unless the user has set torch's variable."""
    folder = cache_folder() / "compiled"
    if CODE_FOLDER not in os.environ:
        with suppress(OSError):  # if it cannot be created, torch uses a folder for temporary files
            folder.mkdir(parents=True, exist_ok=True)
            os.environ[CODE_FOLDER] = str(folder)


@contextmanager
def compiled_once(name: str, report: Callable[[str], None]) -> Iterator[None]:
    """Let only one of all processes that enter with the same name compile and fill the cache. The others wait for it.

    The lock of a process ends with it. A process that waits too long, or finds no locks on the file system, compiles
    the same code again. So does a process whose code differs although it has the same name: only time depends on the
    name.

    Args:
        name: Everything that the code depends on, besides torch and the device; empty if nothing is compiled.
        report: Function that is told the process that a long wait is for.
    """
    if not name or CODE_FOLDER not in os.environ:
        yield
        return
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    key = hashlib.sha256(f"{name} {torch.__version__} {device}".encode()).hexdigest()[:16]
    folder = Path(os.environ[CODE_FOLDER])
    done = folder / f"ffcil-{key}.done"
    with ExitStack() as locked:
        if not done.exists():
            with suppress(OSError, Held):
                locked.enter_context(lock(folder / f"ffcil-{key}.lock", LONGEST_WAIT, report))
        if done.exists():  # perhaps since a moment ago; all waiting processes can then proceed at the same time
            locked.close()
        yield
        with suppress(OSError):  # if nothing can be written here, nothing was locked either
            done.touch()
