"""`learn_step`: one step of a learner with progress, checkpoints and a clean stop, for runs and classifiers alike."""

import time
from collections.abc import Callable
from typing import Any

from ffcil.methods.learner import Learner
from ffcil.runs.progress import CompositeListener
from ffcil.runs.stopping import Stop
from ffcil.stream import Increment
from ffcil.training.progress import FitProgress, Listener


class _Checkpoints(Listener):
    """Saves the progress at the end of an epoch if it is due or a stop was requested, then stops."""

    def __init__(self, save: Callable[[FitProgress], None] | None, interval: float, stop: Stop) -> None:
        self.save, self.interval, self.stop = save, interval, stop
        self.saved = time.monotonic()

    def epoch_done(self, progress: FitProgress) -> None:
        stopping = self.stop.requested()
        if self.save and (stopping or time.monotonic() - self.saved >= self.interval):
            self.save(progress)
            self.saved = time.monotonic()
        self.stop.raise_if_requested()


def learn_step(
    learner: Learner,
    increment: Increment,
    listener: Listener,
    stop: Stop,
    save: Callable[[FitProgress], None] | None,
    interval: float,
    resume: FitProgress | None = None,
) -> dict[str, Any]:
    """Let a learner learn a step, and return its notes.

    Args:
        save: Writes a checkpoint within the step; None: no checkpoints.
        interval: Seconds between two checkpoints.
        resume: Progress of the step if it was interrupted.
    """
    checkpoints = _Checkpoints(save, interval, stop)
    return learner.learn(increment, CompositeListener(listener, checkpoints), resume)
