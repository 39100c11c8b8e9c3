"""`changing` and `undo`: changes of a classifier in a folder that need no images, or few."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ffcil.classifier.classifier import LEARNING, Classifier
from ffcil.classifier.versions import Versions, check_model
from ffcil.runs.folder import locked
from ffcil.runs.run import exhaustion_explained


@contextmanager
def changing(
    folder: Path, device: str | None = None, keep_earlier: bool = True, changes: Mapping[str, Any] | None = None
) -> Iterator[Classifier]:
    """The classifier in a folder, which no other process can change meanwhile. At the end of the block it is saved as a
    new version. If the block raises an error, the folder stays as it is.

    Args:
        keep_earlier: Whether earlier versions stay. If not, nothing of what they contained is left in the folder.
        changes: Nested changes to its configuration, as for `Classifier.load`.
    """
    check_model(folder)
    with exhaustion_explained(folder), locked(folder, "wait for it"):
        classifier = Classifier.load(folder, device, changes)
        yield classifier
        classifier.save(folder)
        if not keep_earlier:
            Versions(folder).prune(classifier.version, count=1)


def undo(folder: Path, to: int | None = None) -> int:
    """Return to a version of the classifier in a folder: to `to`, or to the one before the last change. The present
    version is not removed, so that one can return to it. Returns the number of the version."""
    check_model(folder)
    with locked(folder, "wait for it"):
        versions = Versions(folder)
        number = versions.previous() if to is None else to
        versions.read(number)  # a damaged version is an error before the switch, not after it
        versions.switch(number)
        (folder / LEARNING).unlink(missing_ok=True)
    return number
