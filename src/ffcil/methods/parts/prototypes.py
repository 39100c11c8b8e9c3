"""`Prototypes`: the mean feature of every class, compared by the cosine."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ffcil.models.class_statistics import class_means
from ffcil.models.heads import cosine

SCALE = 20.0
"""Factor on cosines, for the softmax through which HA is trained. The highest score does not depend on it."""


class Prototypes(nn.Module):
    """A classifier: the scaled cosine of a feature with the mean feature of every class. It starts with no class."""

    means: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("means", torch.empty(0, features))

    def grow(self, classes: int) -> None:
        """Add zeros up to `classes`. `remember` replaces them."""
        room = self.means.new_zeros(classes - len(self.means), self.means.shape[1])
        self.means = torch.cat([self.means, room])

    def remember(self, features: Tensor, targets: Tensor, classes: Iterable[int]) -> None:
        """Store the means of `classes`, from all of their features among [N, D]."""
        rows = list(classes)
        self.means[rows] = class_means(features, targets, rows)

    def scores(self, features: Tensor) -> Tensor:
        """[B, D] -> [B, classes]"""
        return SCALE * cosine(features, self.means)
