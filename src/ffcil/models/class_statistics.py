"""Means and spreads of the features of every class. This module needs torch and nothing else of ffcil."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

RIDGE = 1e-4
"""Constant that `cholesky_factor` and `ridge_deviation` add to every variance."""
BLOCK = 64
"""Number of classes whose deviations are computed together."""


def cholesky_factor(features: Tensor) -> Tensor:
    """Lower triangular L, where L L^T is the covariance of one class plus the ridge: [n, D] -> float64 [D, D]

    In float32, the smallest eigenvalues would be lost with fewer images than features."""
    factor: Tensor = torch.linalg.cholesky(_covariance(features))
    return factor


def ridge_deviation(features: Tensor) -> Tensor:
    """Standard deviations of one class, from variances plus the ridge: [n, D] -> float64 [D]"""
    return _covariance(features).diagonal().sqrt()


def _covariance(features: Tensor) -> Tensor:
    """Unbiased covariance plus the ridge. For a single image it is the ridge alone."""
    covariance = torch.cov(features.double().mT, correction=min(len(features) - 1, 1))
    covariance.diagonal().add_(RIDGE)
    return covariance


def class_means(features: Tensor, targets: Tensor, classes: Iterable[int]) -> Tensor:
    """Mean feature of each of `classes`: [K, D]"""
    return torch.stack([features[targets == label].mean(dim=0) for label in classes])


class ClassMeans(nn.Module):
    """Mean feature of every class. It starts with no class."""

    means: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("means", torch.empty(0, features))

    @property
    def classes(self) -> int:
        return len(self.means)

    def grow(self, classes: int) -> None:
        """Add zeros up to `classes`. `remember` replaces them."""
        new = classes - self.classes
        for name, known in list(self.named_buffers()):
            setattr(self, name, torch.cat([known, known.new_zeros(new, *known.shape[1:])]))

    def select(self, classes: Tensor) -> None:
        """Keep these classes only, int64 [K]."""
        for name, known in list(self.named_buffers()):
            setattr(self, name, known[classes])

    @torch.no_grad()
    def remember(self, features: Tensor, targets: Tensor) -> None:
        """Store the statistics of all classes in `targets` [N], from all of their features [N, D]."""
        classes = targets.unique().tolist()
        self.means[classes] = class_means(features, targets, classes)


class ClassStatistics(ClassMeans):
    """Mean and spread of the features of every class, in the feature space in which the class was learned.

    Args:
        features: Number of features D.
        spread: Computes the spread of one class, [D] or [D, D], from its features [n, D]; None: their standard
            deviations, which are 0 for a single image.
        matrix: Whether the spread of a class is a matrix [D, D].
    """

    spreads: Tensor

    def __init__(self, features: int, spread: Callable[[Tensor], Tensor] | None = None, matrix: bool = False) -> None:
        super().__init__(features)
        self.spread = spread
        self.register_buffer("spreads", torch.empty(0, features, *([features] if matrix else [])))

    @torch.no_grad()
    def remember(self, features: Tensor, targets: Tensor) -> None:
        if self.spread is None:
            self._remember_deviations(features, targets)
            return
        super().remember(features, targets)
        for label in targets.unique():
            self.spreads[label] = self.spread(features[targets == label])

    def _remember_deviations(self, features: Tensor, targets: Tensor) -> None:
        """Store means and standard deviations, of `BLOCK` classes at a time. A product with all classes would need a
        matrix [classes, images]."""
        order = targets.argsort(stable=True)
        all_classes, counts = targets.unique(return_counts=True)
        images = [int(count.sum()) for count in counts.split(BLOCK)]
        for classes, count, rows in zip(
            all_classes.split(BLOCK), counts.split(BLOCK), order.split(images), strict=True
        ):
            own, position = features[rows], torch.searchsorted(classes, targets[rows])
            member = position == torch.arange(len(classes), device=position.device)[:, None]  # [C, N]
            share = (member / count[:, None]).to(own.dtype)
            means = share @ own
            squares = share @ (own - means[position]).square()
            unbiased = squares * (count / (count - 1).clamp_min(1))[:, None]
            self.means[classes], self.spreads[classes] = means, unbiased.sqrt()

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
