"""`ClassStatistics`: mean and spread of the features of every class. It needs torch and nothing else of ffcil."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

RIDGE = 1e-4
"""Constant that is added to the variances of `cholesky_factors` and `ridge_deviations`."""

Estimate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""From features [N, D] and their classes [N], numbered from 0 to K - 1, to means [K, D] and spreads [K, ...]."""


def deviations(features: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
    """Means and standard deviations, [K, D] each. The deviation of a single image is 0."""
    count = classes.bincount()
    share = (classes == torch.arange(len(count), device=classes.device)[:, None]) / count[:, None]  # [K, N]
    means = share.to(features.dtype) @ features
    squares = share.to(features.dtype) @ (features - means[classes]).square()
    unbiased = squares * (count / (count - 1).clamp_min(1))[:, None]
    return means, unbiased.sqrt()


def ridge_deviations(features: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
    """Means and standard deviations, [K, D] each, of variances plus `RIDGE`."""
    present = range(int(classes.max()) + 1)
    spreads = [_covariance(features[classes == label]).diagonal().sqrt() for label in present]
    return class_means(features, classes, present), torch.stack(spreads).to(features.dtype)


def cholesky_factors(features: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
    """Means [K, D] and lower triangular factors L [K, D, D], with L L^T the covariance plus `RIDGE` on its diagonal.

    They are computed in float64: with fewer images than features the smallest eigenvalues are the ridge alone."""
    present = range(int(classes.max()) + 1)
    spreads = [torch.linalg.cholesky(_covariance(features[classes == label])).to(features.dtype) for label in present]
    return class_means(features, classes, present), torch.stack(spreads)


def _covariance(features: Tensor) -> Tensor:
    """Unbiased covariance plus the ridge: [n, D] -> float64 [D, D]. For a single image it is the ridge alone."""
    covariance = torch.cov(features.double().mT, correction=min(len(features) - 1, 1))
    covariance.diagonal().add_(RIDGE)
    return covariance


def class_means(features: Tensor, targets: Tensor, classes: Iterable[int]) -> Tensor:
    """Mean feature of each of `classes`: [K, D]"""
    return torch.stack([features[targets == label].mean(dim=0) for label in classes])


class ClassStatistics(nn.Module):
    """Mean and spread of the features of every class, in the feature space in which the class was learned.

    Args:
        features: Number of features D.
        estimate: Computes means and spreads. The spread of a class is the standard deviation of each feature
            (`deviations`, `ridge_deviations`) or a matrix (`cholesky_factors`).
        matrix: Whether the spread of a class is a matrix [D, D] instead of a vector [D].
    """

    means: Tensor
    spreads: Tensor

    def __init__(self, features: int, estimate: Estimate = deviations, matrix: bool = False) -> None:
        super().__init__()
        self.estimate = estimate
        self.register_buffer("means", torch.empty(0, features))
        self.register_buffer("spreads", torch.empty(0, features, *([features] if matrix else [])))

    @property
    def classes(self) -> int:
        return len(self.means)

    def grow(self, classes: int) -> None:
        """Add zeros up to `classes`. `remember` replaces them."""
        new = classes - self.classes
        self.means, self.spreads = (
            torch.cat([known, known.new_zeros(new, *known.shape[1:])]) for known in (self.means, self.spreads)
        )

    @torch.no_grad()
    def remember(self, features: Tensor, targets: Tensor) -> None:
        """Store the statistics of all classes in `targets` [N], from all of their features [N, D]."""
        classes, position = targets.unique(return_inverse=True)
        self.means[classes], self.spreads[classes] = self.estimate(features, position)

    def draw(self, noise: Tensor, mean_scale: Tensor | None = None) -> Tensor:
        """Features of the first C classes from standard normal noise: [C, n, D] -> [C, n, D].

        Args:
            mean_scale: Factor on the mean of each class, [C].
        """
        means, spreads = self.means[: len(noise)], self.spreads[: len(noise)]
        if mean_scale is not None:
            means = means * mean_scale[:, None]
        if spreads.ndim == 2:
            return means[:, None] + noise * spreads[:, None]
        return torch.baddbmm(means[:, None], noise, spreads.mT)
