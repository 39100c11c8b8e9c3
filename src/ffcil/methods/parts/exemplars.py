"""Exemplar memory: rows of the training set, class by class, in the order of herding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from ffcil.errors import InputError


def unit(features: Tensor) -> Tensor:
    """Rows of length one, [N, D]."""
    return F.normalize(features, dim=1, eps=1e-8)


@torch.no_grad()
def herd(features: Tensor, count: int) -> Tensor:
    """Greedy herding: positions of `count` rows whose running mean stays nearest to the mean of all, best first.

    Features are normalised first; their mean is not (specification of the published baselines). All are taken where a
    class has fewer than `count`.

    Args:
        features: of one class, [N, D]

    Returns:
        int64 [min(count, N)], without repetition
    """
    vectors = unit(features.float())
    gram = vectors @ vectors.T  # the only product of the size N^2 D
    to_mean = gram.mean(dim=1)  # <v_i, mu>
    # At pick k the distance |mu - (S + v_i) / k|^2 is least where |v_i|^2 + 2 <v_i, S> - 2 k <v_i, mu> is.
    cost = gram.diagonal().clone()
    chosen: list[Tensor] = []
    for _ in range(min(count, len(vectors))):
        cost -= 2 * to_mean
        pick = cost.argmin()
        chosen.append(pick)
        cost += 2 * gram[pick]
        cost[pick] = torch.inf  # stays out: inf plus anything finite is inf
    return torch.stack(chosen) if chosen else torch.empty(0, dtype=torch.int64, device=features.device)


@dataclass
class ExemplarMemory:
    """Exemplars of every class seen, as rows of the training set; a prefix of a class's rows is its best choice."""

    budget: int | None = None
    """exemplars in all, shared equally by the classes seen"""
    per_class: int | None = None
    """exemplars of each class, where there is no budget"""
    by_class: list[Tensor] = field(default_factory=list)
    """position: class; int64 rows, best first"""

    def quota(self, classes: int) -> int:
        """How many exemplars a class may have when `classes` have been seen."""
        if self.per_class is not None:
            return self.per_class
        assert self.budget is not None
        if self.budget < classes:
            raise InputError(
                f"memory.budget={self.budget} is less than one exemplar for each of {classes} classes: raise it."
            )
        return self.budget // classes

    def rows(self) -> Tensor:
        """All exemplars, int64."""
        return torch.cat(self.by_class) if self.by_class else torch.empty(0, dtype=torch.int64)

    def __len__(self) -> int:
        return sum(map(len, self.by_class))

    def update(self, new_rows: Sequence[Tensor], new_features: Sequence[Tensor]) -> None:
        """After a step: cut the classes before to the new quota, then herd the new ones.

        Args:
            new_rows: of each new class, int64 [N_c]
            new_features: of the same, [N_c, D]
        """
        quota = self.quota(len(self.by_class) + len(new_rows))
        self.by_class = [rows[:quota] for rows in self.by_class]
        for rows, features in zip(new_rows, new_features, strict=True):
            self.by_class.append(rows[herd(features, quota).to(rows.device)])
