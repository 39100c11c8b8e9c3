"""Answers of a classifier about images."""

from dataclasses import dataclass

from torch import Tensor

FALSE_ALARMS = 0.05
"""Default share of images of known classes that may be called unknown."""


@dataclass(frozen=True)
class Guess:
    """A possible class of an image."""

    name: str
    score: float
    """Softmax of the method's scores over all classes, between 0 and 1. For `anyarrival` it is a probability; for other
    methods it is not calibrated."""


@dataclass(frozen=True)
class Answer:
    """The answer of a classifier about an image."""

    guesses: tuple[Guess, ...]
    """The most likely classes, best first."""
    novelty: float | None
    """How much the image differs from everything learned; None if the method cannot tell."""
    unknown: bool
    """Whether the novelty is above the limit for the chosen rate of false alarms."""


@dataclass(frozen=True)
class Description:
    """Values that a classifier computes for images."""

    read: tuple[int, ...]
    """Positions of the N images that could be read. The tensors leave out all others."""
    scores: Tensor
    """Scores of the classes, [N, C]."""
    novelty: Tensor | None
    """How much each image differs from everything learned, [N]; None if too few images were learned."""
    features: Tensor
    """Features of the images, [N, D]. `Learner.comparable_features` maps them to features whose cosines compare
    images."""
