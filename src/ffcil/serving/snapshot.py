"""`Snapshot`: one version of a classifier, ready to answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from PIL import Image

from ffcil.classifier.answers import Answer
from ffcil.classifier.classifier import Classifier
from ffcil.classifier.versions import MODEL, check_model
from ffcil.serving.unknown import novelty_limit

Stamp = tuple[int, int, int]
"""Inode, time and size of the current version's file, which change if another version becomes the current one."""


@dataclass(frozen=True)
class Snapshot:
    """A classifier with its limit and its history. It never changes: after a change of the folder, another one is
    made."""

    classifier: Classifier
    limit: float | None
    """Novelty above which an image is unknown; None if the classifier cannot tell."""
    history: Sequence[dict[str, Any]]
    stamp: Stamp

    @classmethod
    def load(cls, folder: Path, device: str | None, false_alarms: float, changes: Mapping[str, Any]) -> Self:
        stamp = stamp_of(folder)  # before the file is read: a later change is noticed
        classifier = Classifier.load(folder, device, changes)
        limit = novelty_limit(classifier, false_alarms) if classifier.class_names else None
        return cls(classifier, limit, classifier.history(), stamp)

    @property
    def version(self) -> int:
        return self.classifier.version

    @property
    def classes(self) -> tuple[str, ...]:
        return self.classifier.class_names

    def answer(self, images: Sequence[Image.Image], top: int) -> list[Answer]:
        """Answers without a judgement of novelty, for which `Classifier.answer` would compute the limit at every
        call."""
        return [answer for answer in self.classifier.answer(images, top, None) if answer is not None]

    def is_unknown(self, answer: Answer) -> bool | None:
        """Whether the image is of no known class; None if the classifier cannot tell."""
        if self.limit is None or answer.novelty is None:
            return None
        return answer.novelty > self.limit


def stamp_of(folder: Path) -> Stamp:
    check_model(folder)
    status = (folder / MODEL).stat()
    return status.st_ino, status.st_mtime_ns, status.st_size
