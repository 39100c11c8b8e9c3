"""`Listener`: the one protocol by which training, runs and classifiers report their progress."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass
class FitProgress:
    """Progress of a fit. Together with the parameters it is all that resuming the fit needs."""

    epoch: int = 0
    """Number of finished epochs."""
    seconds: float = 0.0
    """Training time so far."""
    start_up: float = 0.0
    """Part of `seconds` that a GPU took before it trained at full speed."""
    images: int = 0
    """Number of training images processed so far, repetitions included."""
    loss: float = math.nan
    """Mean loss of the last epoch."""
    momentum: Sequence[Tensor] = ()
    """Momentum buffers of the optimiser, in the order of the trained parameters."""

    def add_epoch(self, images: int, seconds: float, momentum: Sequence[Tensor]) -> None:
        self.epoch, self.images, self.seconds = self.epoch + 1, self.images + images, self.seconds + seconds
        self.momentum = momentum

    @property
    def images_per_second(self) -> float:
        """Training speed so far; 0 if nothing was trained."""
        return self.images / self.seconds if self.seconds else 0.0


class Listener:
    """Receives the progress of a run. This class ignores everything: subclass it and override what you need."""

    def warned(self, sentence: str) -> None: ...
    def started(self, folder: str, steps: int, finished: int, epoch: int) -> None: ...
    def step_started(self, step: int, new: int, seen: int, epochs: int) -> None: ...
    def images_done(self, done: int, total: int) -> None: ...
    def epoch_done(self, progress: FitProgress) -> None: ...
    def step_done(self, record: Mapping[str, Any]) -> None: ...
    def finished(self) -> None: ...


_listener: ContextVar[Listener] = ContextVar("listener")


@contextmanager
def reporting_to(listener: Listener) -> Iterator[None]:
    """Inside the block, `report_images` reaches `listener`."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def report_images(done: int, total: int) -> None:
    """Report how many images of an epoch, or of a feature extraction, are processed."""
    if listener := _listener.get(None):
        listener.images_done(done, total)
