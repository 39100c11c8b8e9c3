"""Compiled code: where it is kept, which of several processes makes it, and when it is not worth its time."""

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
"""Torch's variable for the folder of compiled code. Triton keeps its code in a folder below it."""
LONGEST_WAIT = 300.0
"""Seconds that a process waits for another one that compiles the same code."""
FEW_STEPS = 500
"""Optimiser steps of a process below which nothing is compiled, because that takes longer than it saves.

A low estimate: on an H200, compiled code saves 0.7 ms per step of a ResNet-32 with its teacher (batch 128, captured,
bfloat16: 3.6 ms without it, 2.9 ms with it; results/training-step.json), which is less than 0.4 s in 500 steps. To be
measured by benchmarks/start_up.py: the seconds that compiling by blocks adds to a first epoch, with an empty and with a
filled cache, divided by the seconds that a step saves, for a ResNet-32 and for a ViT-B/16. The smaller quotient of the
two, with a filled cache, is the value.
"""


@dataclass
class StepsSoFar:
    """Optimiser steps that a process has taken on compilable networks."""

    count: int = 0

    def are_few_with(self, steps: int) -> bool:
        """Whether they stay few with `steps` more, which are counted."""
        self.count += steps
        return self.count < FEW_STEPS


def keep_code() -> None:
    """Keep compiled code in the cache folder, so that later runs find it, unless the user has set torch's variable."""
    folder = cache_folder() / "compiled"
    if CODE_FOLDER not in os.environ:
        with suppress(OSError):  # if it cannot be written, torch's own folder for temporary files will do
            folder.mkdir(parents=True, exist_ok=True)
            os.environ[CODE_FOLDER] = str(folder)


@contextmanager
def compiled_once(name: str, report: Callable[[str], None]) -> Iterator[None]:
    """Of all processes that enter with the same name, let one go first and fill the cache; the others wait for it.

    A process that dies ends its lock. Whoever waits too long, or finds no locks on the file system, compiles the same
    code once more. So does a process with another code under the same name: nothing but time depends on the name.

    Args:
        name: What the code depends on, besides torch and the device; empty if nothing is compiled.
        report: Told whom a long wait is for.
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
        if done.exists():  # perhaps since a moment ago: all that have waited go on at the same time
            locked.close()
        yield
        with suppress(OSError):  # where nothing can be written, nothing was locked either
            done.touch()
