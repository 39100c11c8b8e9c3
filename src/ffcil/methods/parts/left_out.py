"""`choose_by_leaving_out`: what the sums of a linear discriminant do not determine, chosen by left-out training images.

A left-out image is classified by the discriminant that has not seen it, which has a closed form. So no image is set
aside, and the choices depend on the set of images only.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ffcil.calibration import Calibration, fit_calibration, fit_temperature
from ffcil.methods.parts.kept_features import KeptFeatures
from ffcil.models.discriminant import ClassSums, Discriminant
from ffcil.models.novelty import Novelty

SHRINKAGES = (0.01, 0.03, 0.1, 0.3, 1.0)
"""Candidates for the shrinkage of the covariance."""
CHOOSING_SCORES = 100_000
"""Approximate number of scores (images times classes) of left-out images that choose the shrinkage."""
CALIBRATING_SCORES = 1_000_000
"""Approximate number of scores of left-out images that calibrate."""
FEWEST_IMAGES = 100
"""Smallest number of images in either sample, if there are as many."""
MOST_IMAGES = 5_000
"""Largest number of images in either sample."""


@dataclass(frozen=True)
class Choice:
    """What left-out images choose."""

    shrinkage: float
    calibration: Calibration
    novelty: Novelty
    right: Tensor
    """Number of left-out images of each class whose highest score is right, float64 [C]."""
    asked: Tensor
    """Number of all left-out images of each class, float64 [C]."""


def choose_by_leaving_out(
    sums: ClassSums, discriminant: Discriminant, kept: KeptFeatures, inputs: Callable[[Tensor], Tensor]
) -> Choice:
    """Choose the shrinkage, then fit the calibration and the novelty, from images that can be left out, of which there
    is at least one.

    Args:
        discriminant: The discriminant of `sums`.
        kept: Features of the images in the sums.
        inputs: Function from kept features to what is in the sums.
    """
    classes = len(sums.counts)
    can_be_left_out = discriminant.can_be_left_out(kept.targets)
    seen = (sums.counts > 0).nonzero().flatten()  # a class may have lost its images
    features, targets = kept.sample(can_be_left_out, _images(CHOOSING_SCORES, classes))
    shrinkage = _choose_shrinkage(discriminant, inputs(features), targets, seen)

    features, targets = kept.sample(can_be_left_out, _images(CALIBRATING_SCORES, classes))
    features = inputs(features)
    distances = discriminant.left_out_distances(features, targets, shrinkage)
    among_seen = torch.searchsorted(seen, targets)
    calibration = fit_calibration(-distances[:, seen] / 2, among_seen)
    whole = Discriminant.of(sums.merged())
    background = whole.left_out_distances(features, torch.zeros_like(targets), shrinkage)[:, 0]
    novelty = Novelty.fit(distances[:, seen], background, among_seen, calibration.temperature)
    right = targets[distances.argmin(dim=1) == targets]
    return Choice(
        shrinkage,
        calibration,
        novelty,
        right=torch.bincount(right, minlength=classes).double(),
        asked=torch.bincount(targets, minlength=classes).double(),
    )


def _images(scores: int, classes: int) -> int:
    """Number of images that have about this number of scores."""
    return min(max(scores // classes, FEWEST_IMAGES), MOST_IMAGES)


def _choose_shrinkage(discriminant: Discriminant, features: Tensor, targets: Tensor, seen: Tensor) -> float:
    """The shrinkage with the smallest cross-entropy of left-out images, each candidate with its best temperature.

    Args:
        features: Features of the images, [N, D].
        targets: Their classes, [N].
        seen: Classes that have images, ascending.
    """
    among_seen = torch.searchsorted(seen, targets)
    losses = {}
    for shrinkage in SHRINKAGES:
        scores = -discriminant.left_out_distances(features, targets, shrinkage)[:, seen] / 2
        loss = F.cross_entropy(scores / fit_temperature(scores, among_seen), among_seen)
        losses[shrinkage] = round(float(loss), 9)
    return min(losses, key=lambda shrinkage: losses[shrinkage])
