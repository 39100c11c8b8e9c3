"""The steps that a classifier has learned, and the file of one that was interrupted."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ffcil.data.image_set import ImageSet
from ffcil.methods.learner import Learner
from ffcil.runs.checkpoint import load_state, save_state
from ffcil.stream import Increment
from ffcil.training.progress import FitProgress


@dataclass(frozen=True)
class Step:
    """The classes that were learned in one step."""

    names: tuple[str, ...]
    """Names of the classes."""
    digest: str
    """Digest of the training images."""

    @classmethod
    def of(cls, images: ImageSet) -> Self:
        content = hashlib.sha256(repr(images.class_names).encode())
        content.update(images.sample())
        return cls(images.class_names, content.hexdigest())


class LearningFile:
    """Progress of an interrupted `learn`. It can be resumed only by the same call on the same classifier."""

    def __init__(self, path: Path, request: str) -> None:
        self.path, self.request = path, request

    def restore(self, learner: Learner, increment: Increment) -> FitProgress | None:
        """Restore the learner; returns None if there is nothing to resume."""
        if not self.path.is_file():
            return None
        state = load_state(self.path, "remove this file to restart the step")
        if state["request"] != self.request:
            return None
        learner.begin(increment)
        learner.restore(state["learner"])
        return FitProgress(**state["progress"])

    def write(self, learner: Learner, progress: FitProgress) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        save_state(self.path, {"request": self.request, "progress": vars(progress), "learner": learner.state()})
