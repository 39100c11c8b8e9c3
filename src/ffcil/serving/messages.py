"""The answers of a service, as JSON."""

from typing import Any, Literal

from pydantic import BaseModel

from ffcil.serving.change import Change
from ffcil.serving.service import Service, Told


class ClassScore(BaseModel):
    """A possible class of an image."""

    name: str
    score: float
    """Between 0 and 1; a probability with method `anyarrival`."""


class ImageAnswer(BaseModel):
    """The answer for one image."""

    image: str
    """Name of the file, as it was sent."""
    guesses: list[ClassScore]
    """The most likely classes, best first."""
    unknown: bool | None
    """Whether the image is of no known class; null if the classifier cannot tell."""
    novelty: float | None
    """How much the image differs from everything learned; null if the classifier cannot tell."""

    @classmethod
    def of(cls, image: str, told: Told, top: int) -> "ImageAnswer":
        guesses = [ClassScore(name=guess.name, score=guess.score) for guess in told.answer.guesses[:top]]
        return cls(image=image, guesses=guesses, unknown=told.unknown, novelty=told.answer.novelty)


class Answers(BaseModel):
    """The answers for the images of a request, in their order."""

    version: int
    """Version of the classifier that answered."""
    answers: list[ImageAnswer]


class ChangeStatus(BaseModel):
    """A requested change."""

    kind: Literal["learn", "undo"]
    state: Literal["running", "done", "failed"]
    images: dict[str, int]
    """Number of images of each class."""
    seconds: float
    note: str
    """Latest message about the progress, or the reason of a failure."""
    version: int | None
    """Version that the change made or returned to."""

    @classmethod
    def of(cls, change: Change) -> "ChangeStatus":
        seconds = round(change.elapsed(), 1)
        return cls(
            kind=change.kind,
            state=change.state,
            images=change.images,
            seconds=seconds,
            note=change.note,
            version=change.version,
        )


class Health(BaseModel):
    """State of the service."""

    status: Literal["ok", "degraded"]
    """`degraded` if the current version in the folder cannot be loaded, so that the one before it answers."""
    problem: str | None
    model: str
    """Name of the classifier's folder."""
    method: str
    version: int
    classes: int
    teachable: bool
    """Whether the service accepts requests to learn and undo, with the token."""
    change: ChangeStatus | None
    """The running change, or else the latest one."""

    @classmethod
    def of(cls, service: Service, teachable: bool) -> "Health":
        snapshot = service.snapshot
        return cls(
            status="degraded" if service.problem else "ok",
            problem=service.problem,
            model=service.folder.resolve().name,
            method=snapshot.classifier.learner.title,
            version=snapshot.version,
            classes=len(snapshot.classes),
            teachable=teachable,
            change=ChangeStatus.of(service.change) if service.change else None,
        )


class Classes(BaseModel):
    """The known classes, in the order in which they arrived."""

    version: int
    classes: list[str]


class History(BaseModel):
    """The changes of the classifier, and the versions that it can return to."""

    version: int
    versions: list[int]
    """Versions that are kept."""
    changes: list[dict[str, Any]]


class Problem(BaseModel):
    """Why a request was refused."""

    detail: str
