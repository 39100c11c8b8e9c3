"""`Novelty`: how much an image differs from all known classes. It is fitted without images of unknown classes.

For the fit, known images are training images that are left out one at a time. Unknown images are the same images, each
without its whole class. Three numbers describe an image: the log-odds of the most likely class, the Mahalanobis
distance to the nearest class, and that to one normal distribution of all images. A logistic regression classifies
images as known or unknown by these numbers.

The unknown classes of the fit are similar to the known ones. An image of something completely different can have any
odds. So the novelty is at least the number of standard deviations, beyond `FAR`, by which the nearest class is farther
away than usual.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from ffcil.calibration import logistic_regression

FAR = 3.0
"""Number of standard deviations by which the distance to the nearest class may exceed the mean without being
unusual."""
FEWEST_CLASSES, FEWEST_IMAGES = 3, 20
"""Smallest numbers of known classes and images for the regression. With fewer, only the distance to the nearest class
determines the novelty."""


@dataclass(frozen=True)
class Novelty:
    """The fitted function from distances to novelties. All tensors are float64."""

    temperature: float
    """Temperature of the scores in the log-odds."""
    weights: Tensor
    """Weights of the three numbers, and a constant, [4]. For known images, the result has mean 0 and deviation 1."""
    nearest: Tensor
    """Mean and standard deviation of the distance of known images to the nearest class, [2]"""
    known: Tensor
    """Novelty of known images, ascending, [N]"""

    @classmethod
    def fit(cls, distances: Tensor, background: Tensor, targets: Tensor, temperature: float) -> Self:
        """Fit it to images that are left out.

        Args:
            distances: Squared distances of the images to all classes that have images, [N, C].
            background: Squared distances of the images to the distribution of all images, [N].
            targets: Classes of the images, [N].
            temperature: Temperature of the scores in the log-odds.
        """
        known = _describe(distances, background, temperature)
        nearest = torch.stack([known[:, 1].mean(), known[:, 1].std(correction=0).clamp_min(1e-12)])
        weights = known.new_zeros(4)
        if distances.shape[1] >= FEWEST_CLASSES and len(distances) >= FEWEST_IMAGES:
            others = distances.scatter(1, targets[:, None], torch.inf)
            unknown = _describe(others, background, temperature)
            wanted = torch.cat([torch.zeros_like(known[:, 0]), torch.ones_like(unknown[:, 0])])
            weights = logistic_regression(torch.cat([known, unknown]), wanted)
            values = known @ weights[:3] + weights[3]
            spread = values.std(correction=0).clamp_min(1e-12)
            weights[3] -= values.mean()
            weights /= spread
        fitted = cls(temperature, weights, nearest, known.new_empty(0))
        return cls(temperature, weights, nearest, fitted._novelty(known).sort().values)

    def __call__(self, distances: Tensor, background: Tensor) -> Tensor:
        """Novelty of images from their squared distances [N, C] and [N]: [N]"""
        return self._novelty(_describe(distances, background, self.temperature))

    def _novelty(self, described: Tensor) -> Tensor:
        beyond = (described[:, 1] - self.nearest[0]) / self.nearest[1] - FAR
        regression = described @ self.weights[:3] + self.weights[3]
        return torch.where(self.weights.any(), torch.maximum(regression, beyond), beyond)  # no branch, for exports

    def state(self) -> dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def restored(cls, state: Mapping[str, Any], device: torch.device) -> Self:
        """The fit that returned this `state`, with its tensors on a device."""
        values: dict[str, Any] = {
            name: value.to(device) if isinstance(value, Tensor) else value for name, value in state.items()
        }
        return cls(**values)


def _describe(distances: Tensor, background: Tensor, temperature: float) -> Tensor:
    """Negative log-odds of the most likely class, distance to the nearest class, distance to all images: [N, 3]"""
    logits = -distances / (2 * temperature)
    top, best = logits.max(dim=1)
    others = logits.scatter(1, best[:, None], -torch.inf)
    odds = top - others.logsumexp(dim=1)
    # the odds of a single class are infinite and carry no information
    odds = odds.nan_to_num(0, posinf=0, neginf=0).clamp(-50, 50)
    return torch.stack([-odds, distances.amin(dim=1).clamp_min(0).sqrt(), background.clamp_min(0).sqrt()], dim=1)
