"""What a classifier says about images."""

from dataclasses import dataclass

from torch import Tensor

FALSE_ALARMS = 0.05
"""Default share of images of known classes that may be called unknown."""


@dataclass(frozen=True)
class Guess:
    """A possible class of an image."""

    name: str
    score: float
    """Softmax of the method's scores over all classes, between 0 and 1. That of `anyarrival` is a probability; that of
    other methods is not calibrated."""


@dataclass(frozen=True)
class Answer:
    """What a classifier says about an image."""

    guesses: tuple[Guess, ...]
    """The most likely classes, best first."""
    novelty: float | None
    """How unlike everything learned the image is; None if the method cannot say."""
    unknown: bool
    """Whether the novelty is above the limit for the chosen rate of false alarms."""


@dataclass(frozen=True)
class Description:
    """What a classifier computes for images."""

    read: tuple[int, ...]
    """Positions of the images that could be read. All others are left out below."""
    scores: Tensor
    """Scores of the classes, [N, C]."""
    novelty: Tensor | None
    """How unlike everything learned each image is, [N]; None if too few images were learned."""
    features: Tensor
    """Features, [N, D]. Cosines of `Learner.comparable_features` compare images."""
