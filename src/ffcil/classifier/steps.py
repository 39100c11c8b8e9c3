"""The steps that a classifier has learned, and the file with the progress of an interrupted step."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import torch

from ffcil.data.image_set import ImageSet
from ffcil.methods.learner import Learner
from ffcil.runs.checkpoint import load_state, save_state
from ffcil.stream import Increment
from ffcil.training.progress import FitProgress


@dataclass(frozen=True)
class Step:
    """The classes that became known in one step."""

    names: tuple[str, ...]
    """Names of the classes; none if the step had only images of known classes."""
    digest: str
    """Digest of the names and images of the step; empty once one of its classes was forgotten or renamed."""
    again: tuple[str, ...] = ()
    """Classes with images in this step that were known before."""

    def without(self, gone: tuple[str, ...]) -> Self:
        """The step without some classes."""
        if not set(gone).intersection(self.names + self.again):
            return self
        names, again = (tuple(name for name in part if name not in gone) for part in (self.names, self.again))
        return replace(self, names=names, digest="", again=again)

    def renamed(self, old: str, new: str) -> Self:
        """The step with another name of a class."""
        if old not in self.names + self.again:
            return self
        names, again = (tuple(new if name == old else name for name in part) for part in (self.names, self.again))
        return replace(self, names=names, digest="", again=again)

    @classmethod
    def of(cls, images: ImageSet) -> Self:
        """The step of these images, all of whose classes are new."""
        every = images.digests(torch.arange(len(images), device=images.labels.device))
        content = b"".join(values.cpu().numpy().tobytes() for values in (images.labels, every))
        return cls(images.class_names, _digest(images, content))

    @classmethod
    def of_earlier_versions(cls, images: ImageSet) -> Self:
        """The step of these images as earlier versions of ffcil saved it: its digest is one of a few images."""
        return cls(images.class_names, _digest(images, images.sample()))


def _digest(images: ImageSet, content: bytes) -> str:
    return hashlib.sha256(repr(images.class_names).encode() + content).hexdigest()


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
