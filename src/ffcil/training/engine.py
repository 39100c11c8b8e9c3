"""`Engine`: the device, the precision and the compilation that training runs with."""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

import torch
from torch import nn

from ffcil.config.settings import TrainSettings
from ffcil.errors import InputError
from ffcil.training.arithmetic import check_products
from ffcil.training.compilation import StepsSoFar, keep_code
from ffcil.training.parallel import ALONE, Parallel

Value = TypeVar("Value")

LANES = 4
"""Number of side streams per device."""
WARM_UP_STEPS = 3
"""Number of training steps before a capture, in which cuDNN chooses its algorithms and memory is allocated."""


@dataclass(frozen=True)
class Engine:
    """Device, precision, CUDA graphs and compilation of a training."""

    device: torch.device
    precision: str
    """`float32` or `bfloat16`."""
    graph: bool
    """Whether training steps are captured as CUDA graphs."""
    compile: bool
    """Whether networks are compiled."""
    parallel: Parallel = ALONE
    """This process among those that share the training."""
    steps: StepsSoFar = field(default_factory=StepsSoFar)
    """Optimiser steps so far, on which it depends whether compiling is worth its time."""

    @classmethod
    def create(cls, device: str, settings: TrainSettings, parallel: Parallel = ALONE) -> Self:
        """Create an engine for cpu or cuda[:n]. On a CPU, results are bit-equal for a given number of threads.

        Each of several processes has its own GPU, starting at number n. Their training steps are neither captured nor
        compiled, because the processes exchange values within a step.
        """
        if not (match := re.fullmatch(r"(cpu)|(cuda)(?::(\d+))?", device)):
            raise InputError(f"Unknown device {device!r}: choose cpu or cuda.")
        on_gpu, number = match[2] is not None, int(match[3] or 0) + parallel.rank
        if on_gpu and not torch.cuda.is_available():
            raise InputError("Device 'cuda' is not available: run with --device cpu, or see `ffcil doctor`.")
        if on_gpu and number >= torch.cuda.device_count():
            found = f"{torch.cuda.device_count()} CUDA device(s) found"
            if parallel.size > 1:
                raise InputError(f"Device {parallel.rank + 1} of {parallel.size} is not available: {found}.")
            raise InputError(f"Device {device!r} is not available: {found}.")
        precision = settings.precision
        if precision == "auto":
            precision = "bfloat16" if on_gpu else "float32"
        chosen = torch.device("cuda", number) if on_gpu else torch.device("cpu")
        if on_gpu:
            torch.cuda.set_device(chosen)  # streams and graphs are created on the current device
            check_products(chosen)
        fast = on_gpu and parallel.size == 1
        if fast and settings.compile:
            keep_code()
        return cls(chosen, precision, fast and settings.graph, fast and settings.compile, parallel)

    @property
    def dtype(self) -> torch.dtype:
        """Type in which convolutions and matrix products are computed."""
        return torch.bfloat16 if self.precision == "bfloat16" else torch.float32

    @property
    def folds(self) -> bool:
        """Whether batch norms of frozen networks are folded into convolutions. Folding changes the rounding, so it is
        not done on a CPU, where results are bit-equal from version to version."""
        return self.compile

    def place(self, module: nn.Module) -> None:
        """Move a module to the device in its fastest memory layout, and compile it if compilation is on."""
        channels_last = torch.channels_last if self.device.type == "cuda" else torch.preserve_format
        module.to(self.device, memory_format=channels_last)  # type: ignore[call-overload]
        if self.compile:
            module.compile(dynamic=False)

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Set torch's switches for training (deterministic on a CPU, fast on a GPU), and restore them afterwards."""
        guard, cudnn = torch.utils.deterministic, torch.backends.cudnn
        before = (torch.are_deterministic_algorithms_enabled(), guard.fill_uninitialized_memory, cudnn.benchmark)  # type: ignore[attr-defined]
        on_gpu = self.device.type == "cuda"
        try:
            torch.use_deterministic_algorithms(before[0] or not on_gpu)
            guard.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # costs time and is not needed
            cudnn.benchmark = on_gpu and not cudnn.deterministic
            yield
        finally:
            torch.use_deterministic_algorithms(before[0])
            guard.fill_uninitialized_memory = before[1]  # type: ignore[attr-defined]
            cudnn.benchmark = before[2]

    def seed(self, seed: int) -> None:
        """Seed dropout and other randomness inside a network.

        `torch.manual_seed` would also store the seed, with a traceback, for every kind of device that is not in use,
        which can take longer than an epoch on stored features."""
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def autocast(self) -> AbstractContextManager[Any]:
        """Compute convolutions and matrix products in the engine's precision. Losses stay in single precision."""
        half = self.precision == "bfloat16"
        return torch.autocast(self.device.type, torch.bfloat16) if half else nullcontext()

    def captured(self, step: Callable[[], None]) -> Callable[[], None]:
        """Return `step` as a CUDA graph, which is captured after a few calls and then replayed; without CUDA graphs,
        return `step` itself. A step that is captured must read and write tensors in place and never synchronise."""
        return _Captured(step, self.device) if self.graph else step

    def aside(self, compute: Callable[[], Value], lane: int = 0) -> Callable[[], Value]:
        """Start `compute`, which must not need gradients, in parallel. The returned function waits for its result.

        On a GPU, `compute` runs on a side stream, also inside a captured graph. Computations in different lanes run in
        parallel; lane numbers wrap around at `LANES`. On a CPU, `compute` runs immediately.
        """
        if self.device.type != "cuda":
            value = compute()
            return lambda: value
        main, side = torch.cuda.current_stream(), _side_stream(self.device, lane % LANES)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            value = compute()

        def join() -> Value:
            torch.cuda.current_stream().wait_stream(side)
            return value

        return join


_streams: dict[tuple[torch.device, int], torch.cuda.Stream] = {}


def _side_stream(device: torch.device, lane: int) -> torch.cuda.Stream:
    return _streams.setdefault((device, lane), torch.cuda.Stream(device))


@contextmanager
def evaluating(*modules: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients, and without compilation for batch sizes that only evaluation has."""
    # only if needed: switching all parts takes as long as a small network takes for an image
    switched = [(module, module.training) for module in modules if any(part.training for part in module.modules())]
    for module, _ in switched:
        module.eval()
    try:
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            yield
    finally:
        for module, training in switched:
            module.train(training)


class _Captured:
    """A training step as a CUDA graph. The first calls run eagerly, the next one is captured, and all later ones replay
    the graph."""

    def __init__(self, step: Callable[[], None], device: torch.device) -> None:
        self.step, self.calls = step, 0
        self.graph = torch.cuda.CUDAGraph()
        self.stream = torch.cuda.Stream(device)

    def __call__(self) -> None:
        if self.calls < WARM_UP_STEPS:
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                self.step()
            torch.cuda.current_stream().wait_stream(self.stream)
        else:
            if self.calls == WARM_UP_STEPS:
                with torch.cuda.graph(self.graph):
                    self.step()
            self.graph.replay()
        self.calls += 1
