"""A classifier in closed form: ridge regression on fixed random features, from sums over all steps.

With phi(f) = ReLU(V f), G = sum of phi phi^T and Q = sum of phi y^T, the weights are W = (G + lambda I)^-1 Q. Adding to
the sums and solving again gives the same weights as the recursion by the Woodbury identity, without its many small
updates. The sums can give all classes the same weight. Also then, they do not depend on how the classes are divided
into steps.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ffcil.errors import InputError

RIDGES = tuple(10.0**power for power in range(-8, 9))
"""Candidates for lambda."""
CHUNK = 1024
"""Number of rows whose random features are in memory at a time."""


class RandomFeatureHead(nn.Module):
    """Linear scores [B, classes] of random features, whose targets are 1 for a feature's own class and 0 for others. It
    starts with no class."""

    projection: Tensor
    weight: Tensor
    ridge: Tensor

    def __init__(
        self, features: int, hidden: int, draw: Callable[[Tensor], Tensor], dtype: torch.dtype, balanced: bool = False
    ) -> None:
        """`draw` fills the fixed projection [hidden, features] in place. With `balanced`, all classes have the same
        weight however many images they have."""
        super().__init__()
        self.balanced = balanced
        self.register_buffer("projection", draw(torch.empty(hidden, features)))
        self.register_buffer("weight", torch.zeros(hidden, 0, dtype=dtype))
        """W, [H, C]"""
        self.register_buffer("ridge", torch.tensor(1.0, dtype=torch.float64))
        """The ridge lambda"""

    @property
    def classes(self) -> int:
        return self.weight.shape[1]

    def grow(self, classes: int) -> None:
        """Add columns of zeros up to `classes`. The columns of earlier classes stay bit-equal."""
        room = self.weight.new_zeros(len(self.weight), classes - self.classes)
        self.weight = torch.cat([self.weight, room], dim=1)

    def expand(self, features: Tensor) -> Tensor:
        """Random features phi of features: [..., D] -> [..., H]"""
        return F.relu(F.linear(features, self.projection.to(features.dtype)))

    def forward(self, features: Tensor) -> Tensor:
        """[..., D] -> [..., classes]"""
        return self.expand(features) @ self.weight.to(features.dtype)

    @torch.no_grad()
    def predict(self, features: Tensor) -> Tensor:
        """The classes with the highest scores: [N, D] -> [N]"""
        return torch.cat([self(rows).argmax(dim=1) for rows in features.split(CHUNK)])

    def row_weights(self, targets: Tensor) -> Tensor:
        """Weights [N] that `add` gives to images of the classes `targets` [N], which must be all images of each
        class."""
        return class_balanced(targets) if self.balanced else torch.ones(len(targets), device=targets.device)

    def _wanted(self, targets: Tensor) -> Tensor:
        """Regression targets: [N] -> [N, classes]"""
        return F.one_hot(targets, self.classes).to(self.weight.dtype)


class AnalyticHead(RandomFeatureHead):
    """A head that is solved from sums. Sums and solutions are float64, because the matrix is ill-conditioned if lambda
    is small."""

    gram: Tensor
    moments: Tensor
    errors: Tensor | None
    images: Tensor | None

    def __init__(
        self,
        features: int,
        hidden: int,
        draw: Callable[[Tensor], Tensor],
        shared_ridge: bool = False,
        balanced: bool = False,
    ) -> None:
        """`draw` fills the fixed projection [hidden, features] in place. With `shared_ridge`, lambda minimises the sum
        of the errors of all calls of `choose` so far. With `balanced`, every class has the total weight 1 in the sums:
        an image has the weight 1 / n_y, where n_y is the number of images of its class. One call of `add` must then
        have all images of a class."""
        super().__init__(features, hidden, draw, torch.float64, balanced)
        zeros = torch.zeros(len(RIDGES), dtype=torch.float64)
        self.register_buffer("errors", zeros if shared_ridge else None)
        """Squared errors of each of `RIDGES`, summed over all predicted rows and classes, [ridges]"""
        self.register_buffer("gram", torch.zeros(hidden, hidden, dtype=torch.float64))
        """G, [H, H]"""
        self.register_buffer("moments", torch.zeros(hidden, 0, dtype=torch.float64))
        """Q, [H, C]"""
        self.register_buffer("images", torch.zeros((), dtype=torch.float64) if balanced else None)
        """Number of images in balanced sums; NaN for sums of an earlier version, which balanced each step separately"""

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        if self.balanced:
            state_dict.setdefault(f"{prefix}images", torch.tensor(torch.nan, dtype=torch.float64))
        super()._load_from_state_dict(state_dict, prefix, *others)

    def grow(self, classes: int) -> None:
        super().grow(classes)
        self.moments = F.pad(self.moments, (0, classes - self.moments.shape[1]))

    def row_weights(self, targets: Tensor) -> Tensor:
        return class_shares(targets) if self.balanced else super().row_weights(targets)

    @torch.no_grad()
    def add(self, features: Tensor, targets: Tensor, weights: Tensor | None = None) -> None:
        """Add features [N, D] and their classes [N] to the sums, with weights [N]; default: `row_weights`."""
        if weights is None:
            weights = self.row_weights(targets)
            if self.images is not None:
                self.images.add_(len(targets))
        for rows, labels, weight in zip(*(part.split(CHUNK) for part in (features, targets, weights)), strict=True):
            expanded = self.expand(rows).double()  # [B, H]
            weighted = (expanded * weight.double()[:, None]).mT
            self.gram.addmm_(weighted, expanded)
            self.moments.addmm_(weighted, self._wanted(labels))

    def scale_targets(self, factor: float) -> None:
        """Scale the regression targets of all images so far."""
        self.moments.mul_(factor)

    def restart(self) -> None:
        """Set the sums to zero."""
        for sums in (self.gram, self.moments, self.errors, self.images):
            if sums is not None:
                sums.zero_()

    @torch.no_grad()
    def solve(self) -> None:
        """Compute the weights from the sums. Lambda is for sums in which the mean weight of an image is 1."""
        ridge = self.ridge.item()
        if self.images is not None:
            images = self.images.item()
            if math.isnan(images):
                raise InputError(
                    "The state is of an earlier version, which gave classes equal weights only within a step: restart."
                )
            ridge *= self.classes / images
        self.weight.copy_(solve_ridge(self.gram, self.moments, ridge))

    @torch.no_grad()
    def choose(
        self, features: Tensor, targets: Tensor, generator: torch.Generator, weights: Tensor | None = None
    ) -> None:
        """Choose lambda: 80 % of the rows, in random order, are fitted, and the others are predicted.

        The choice depends on these features only or, if the ridge is shared, on the sum of the squared errors of all
        calls. Then one or two classes, which every ridge separates, have little effect on the ridge of all others.

        Args:
            features: Features [N, D].
            targets: Their classes, [N].
            generator: Shuffles the rows.
            weights: Weights [N] of mean 1; None: all 1 or, if the head is balanced, the same sum for every class.
        """
        order = torch.randperm(len(features), generator=generator, device=features.device)
        expanded, wanted = self.expand(features[order]).double(), self._wanted(targets[order])
        if weights is None and self.balanced:
            weights = class_balanced(targets)
        if weights is not None:  # weighted squares are squares of scaled rows
            scale = weights[order].double().sqrt()[:, None]
            expanded, wanted = expanded * scale, wanted * scale
        fitted = int(0.8 * len(order))
        errors = ridge_errors(expanded, wanted, fitted)
        if self.errors is not None:
            errors = self.errors.add_(errors * max(len(order) - fitted, 1) * self.classes)
        self.ridge.fill_(RIDGES[int(errors.argmin())])


def class_shares(targets: Tensor) -> Tensor:
    """Weights [N] that give all classes present the total weight 1: 1 / n_y."""
    _, position, count = targets.unique(return_inverse=True, return_counts=True)
    shares: Tensor = 1 / count[position].double()
    return shares


def class_balanced(targets: Tensor) -> Tensor:
    """Weights [N] with mean 1 that give all classes present the same total weight: N / (classes * n_y)."""
    shares = class_shares(targets)
    return shares / shares.mean()


def solve_ridge(gram: Tensor, moments: Tensor, ridge: float) -> Tensor:
    """(gram + ridge I)^-1 moments by Cholesky, [H, H] and [H, C] -> [H, C].

    A ridge below the rounding error of the sums is raised to that error, and then tenfold until the matrix is positive
    definite.
    """
    ridge = max(ridge, torch.finfo(gram.dtype).eps * gram.trace().item())
    for _ in range(10):
        damped = gram.clone()
        damped.diagonal().add_(ridge)
        factor, failed = torch.linalg.cholesky_ex(damped)
        if not failed.item():
            return torch.cholesky_solve(moments, factor)
        ridge *= 10
    raise FloatingPointError("no ridge makes the sums positive definite: the features are not finite")


def choose_ridge(rows: Tensor, wanted: Tensor, fitted: int) -> float:
    """The element of `RIDGES` with the smallest error. The arguments are those of `ridge_errors`."""
    return RIDGES[int(ridge_errors(rows, wanted, fitted).argmin())]


def ridge_errors(rows: Tensor, wanted: Tensor, fitted: int) -> Tensor:
    """Mean squared error of each of `RIDGES`, [ridges], if the first `fitted` rows predict the others.

    All ridges share one eigendecomposition: of the products of the rows [fitted, fitted] if there are fewer rows than
    columns (the dual), otherwise of the products of the columns [H, H]. A single row is both fitted and predicted.

    Args:
        rows: Random features in random order, float64 [N, H].
        wanted: Regression targets, float64 [N, C].
    """
    fitted = max(fitted, 1)
    known, to_fit = rows[:fitted], wanted[:fitted]
    unknown, truth = (rows[fitted:], wanted[fitted:]) if len(rows) > fitted else (known, to_fit)
    if len(known) < known.shape[1]:
        spectrum, basis = torch.linalg.eigh(known @ known.mT)
        left, right = (unknown @ known.mT) @ basis, basis.mT @ to_fit
    else:
        spectrum, basis = torch.linalg.eigh(known.mT @ known)
        left, right = unknown @ basis, basis.mT @ (known.mT @ to_fit)
    spectrum = spectrum.clamp_min(0)[:, None]  # rounding can make it negative
    return torch.stack([(left @ (right / (spectrum + ridge)) - truth).square().mean() for ridge in RIDGES])


@dataclass(frozen=True)
class Drift:
    """A linear model of how features moved: f_new = f_old + A (f_old - centre) + shift."""

    change: Tensor
    """Transpose of A, [D, D]"""
    centre: Tensor
    """Mean of the old features, [D]"""
    shift: Tensor
    """Mean movement, [D]"""

    def __call__(self, features: Tensor) -> Tensor:
        """Map old features to their present position: [..., D] -> [..., D]"""
        old = features.double()
        return (old + (old - self.centre) @ self.change + self.shift).to(features.dtype)


def fit_drift(old: Tensor, new: Tensor, generator: torch.Generator) -> Drift:
    """Fit a linear map with bias from old to new features of the same images, [N, D] each, by ridge regression.

    The ridge is chosen by predicting 10 % of the images from the others. It penalises the change: in directions in
    which the images do not differ, features only move by the common shift. A single image determines only the shift.
    """
    order = torch.randperm(len(old), generator=generator, device=old.device)
    old, moved = old[order].double(), (new - old)[order].double()
    fitted = max(1, int(0.9 * len(order)))
    ridge = choose_ridge(old - old[:fitted].mean(dim=0), moved - moved[:fitted].mean(dim=0), fitted)
    centre, shift = old.mean(dim=0), moved.mean(dim=0)
    rows = old - centre
    return Drift(solve_ridge(rows.mT @ rows, rows.mT @ (moved - shift), ridge), centre, shift)
