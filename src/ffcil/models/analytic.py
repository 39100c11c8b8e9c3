"""A classifier in closed form: ridge regression on fixed random features, from sums to which every step adds its own.

With phi(f) = ReLU(V f), G = sum of phi phi^T and Q = sum of phi y^T, the weights are W = (G + lambda I)^-1 Q. Adding to
the sums and solving again is exactly the recursion by the Woodbury identity, without its many small updates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

RIDGES = tuple(10.0**power for power in range(-8, 9))
"""among which lambda is chosen"""
CHUNK = 1024  # rows whose random features are held at a time


class AnalyticHead(nn.Module):
    """Scores [B, classes] that regress to 1 for a feature's own class and to 0 for the others. It starts with none.

    Sums and solutions are float64: the matrix of a small lambda is too ill-conditioned for less.
    """

    projection: Tensor
    gram: Tensor
    moments: Tensor
    weight: Tensor
    ridge: Tensor

    def __init__(self, features: int, hidden: int, draw: Callable[[Tensor], Tensor]) -> None:
        """`draw` fills the fixed projection, [hidden, features], in place."""
        super().__init__()
        self.register_buffer("projection", draw(torch.empty(hidden, features)))
        self.register_buffer("gram", torch.zeros(hidden, hidden, dtype=torch.float64))
        self.register_buffer("moments", torch.zeros(hidden, 0, dtype=torch.float64))
        """Q, [H, C]"""
        self.register_buffer("weight", torch.zeros(hidden, 0, dtype=torch.float64))
        """W, [H, C]"""
        self.register_buffer("ridge", torch.tensor(1.0, dtype=torch.float64))
        """lambda"""

    @property
    def classes(self) -> int:
        return self.weight.shape[1]

    def grow(self, classes: int) -> None:
        """Add columns of zeros up to `classes`; those of the classes before stay bit-equal."""
        room = self.weight.new_zeros(len(self.weight), classes - self.classes)
        self.moments, self.weight = torch.cat([self.moments, room], dim=1), torch.cat([self.weight, room], dim=1)

    def expand(self, features: Tensor) -> Tensor:
        """phi: [..., D] -> [..., H]"""
        return F.relu(F.linear(features, self.projection.to(features.dtype)))

    def forward(self, features: Tensor) -> Tensor:
        """[..., D] -> [..., classes]"""
        return self.expand(features) @ self.weight.to(features.dtype)

    @torch.no_grad()
    def predict(self, features: Tensor) -> Tensor:
        """[N, D] -> the class of the highest score, [N]"""
        return torch.cat([self(rows).argmax(dim=1) for rows in features.split(CHUNK)])

    @torch.no_grad()
    def add(self, features: Tensor, targets: Tensor, weights: Tensor | None = None) -> None:
        """Into the sums: features [N, D], their classes [N] and, where they do not all count one, their weights [N]."""
        weights = torch.ones(len(features), device=features.device) if weights is None else weights
        for rows, labels, weight in zip(*(part.split(CHUNK) for part in (features, targets, weights)), strict=True):
            expanded = self.expand(rows).double()  # [B, H]
            weighted = (expanded * weight.double()[:, None]).mT
            self.gram.addmm_(weighted, expanded)
            self.moments.addmm_(weighted, self._wanted(labels))

    @torch.no_grad()
    def solve(self) -> None:
        """The weights, from the sums as they are now."""
        self.weight.copy_(solve_ridge(self.gram, self.moments, self.ridge.item()))

    @torch.no_grad()
    def choose(
        self, features: Tensor, targets: Tensor, generator: torch.Generator, weights: Tensor | None = None
    ) -> None:
        """Lambda, by these features alone: from shuffled rows, the first 80 % are fitted and the rest are predicted."""
        order = torch.randperm(len(features), generator=generator, device=features.device)
        expanded, wanted = self.expand(features[order]).double(), self._wanted(targets[order])
        if weights is not None:  # weighted squares are the squares of scaled rows
            scale = weights[order].double().sqrt()[:, None]
            expanded, wanted = expanded * scale, wanted * scale
        self.ridge.fill_(choose_ridge(expanded, wanted, int(0.8 * len(order))))

    def _wanted(self, targets: Tensor) -> Tensor:
        return F.one_hot(targets, self.classes).double()


def class_balanced(targets: Tensor) -> Tensor:
    """Weights of mean one under which all classes present weigh the same: N / (classes * n_y), [N]."""
    classes, position, count = targets.unique(return_inverse=True, return_counts=True)
    weights: Tensor = len(targets) / len(classes) / count[position].double()
    return weights


def solve_ridge(gram: Tensor, moments: Tensor, ridge: float) -> Tensor:
    """(gram + ridge I)^-1 moments by Cholesky, [H, H] and [H, C] -> [H, C].

    A ridge that is lost in the rounding of the sums is raised, to the smallest of the rounding, 10 times it, ... with
    which the matrix is positive definite.
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
    """Of `RIDGES`, the one of the least error; arguments as of `ridge_errors`."""
    return RIDGES[int(ridge_errors(rows, wanted, fitted).argmin())]


def ridge_errors(rows: Tensor, wanted: Tensor, fitted: int) -> Tensor:
    """Mean squared error with each of `RIDGES` where the first `fitted` rows predict the others, [ridges].

    One eigendecomposition serves all of them: of the rows' products [fitted, fitted] where they are fewer than the
    columns (the dual), of the columns' [H, H] otherwise. A row that is alone is fitted and predicted.

    Args:
        rows: [N, H], in random order, float64
        wanted: [N, C], float64
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
    spectrum = spectrum.clamp_min(0)[:, None]  # rounding may have made it negative
    return torch.stack([(left @ (right / (spectrum + ridge)) - truth).square().mean() for ridge in RIDGES])


class Drift(NamedTuple):
    """How features moved: f_new = f_old + A (f_old - centre) + shift."""

    change: Tensor
    """A, transposed: [D, D]"""
    centre: Tensor
    """[D]"""
    shift: Tensor
    """[D]"""

    def __call__(self, features: Tensor) -> Tensor:
        """Where old features [..., D] are now."""
        old = features.double()
        return (old + (old - self.centre) @ self.change + self.shift).to(features.dtype)


def fit_drift(old: Tensor, new: Tensor, generator: torch.Generator) -> Drift:
    """The linear map with bias from old to new features of the same images, [N, D] each, by ridge regression.

    The ridge, chosen by predicting 10 % of the images from the others, is on the change: a direction in which the
    images do not differ is left as it is, up to the shift that they share. One image gives the shift alone.
    """
    order = torch.randperm(len(old), generator=generator, device=old.device)
    old, moved = old[order].double(), (new - old)[order].double()
    fitted = max(1, int(0.9 * len(order)))
    ridge = choose_ridge(old - old[:fitted].mean(dim=0), moved - moved[:fitted].mean(dim=0), fitted)
    centre, shift = old.mean(dim=0), moved.mean(dim=0)
    rows = old - centre
    return Drift(solve_ridge(rows.mT @ rows, rows.mT @ (moved - shift), ridge), centre, shift)
