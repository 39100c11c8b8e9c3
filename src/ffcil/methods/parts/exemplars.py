"""Exemplars: the training images that a method keeps, chosen by herding, and the nearest-mean classifier on them."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ffcil.config.settings import MemorySettings
from ffcil.errors import InputError


def unit(features: Tensor) -> Tensor:
    """Scale every row to length 1: [N, D] -> [N, D]"""
    return F.normalize(features, dim=1, eps=1e-8)


@torch.no_grad()
def herd(features: Tensor, count: int) -> Tensor:
    """Greedy herding: choose `count` rows whose running mean stays nearest to the mean of all rows, best first.

    Features are normalised first; their mean is not, as in the published baselines. All rows are chosen if there are
    fewer than `count`.

    Args:
        features: Features of one class, [N, D].

    Returns:
        Positions of the chosen rows without repetition, int64 [min(count, N)].
    """
    vectors = unit(features.float())
    gram = vectors @ vectors.T  # the only product of size N^2 D
    to_mean = gram.mean(dim=1)  # <v_i, mu>
    # At pick k the distance |mu - (S + v_i) / k|^2 is smallest where |v_i|^2 + 2 <v_i, S> - 2 k <v_i, mu> is.
    cost = gram.diagonal().clone()
    chosen: list[Tensor] = []
    for _ in range(min(count, len(vectors))):
        cost -= 2 * to_mean
        pick = cost.argmin()
        chosen.append(pick)
        cost += 2 * gram[pick]
        cost[pick] = torch.inf  # never chosen again: inf plus anything finite is inf
    return torch.stack(chosen) if chosen else torch.empty(0, dtype=torch.int64, device=features.device)


def exemplars_per_class(settings: MemorySettings, classes: int) -> int:
    """Number of exemplars that a class may have when `classes` classes have been seen."""
    if settings.per_class is not None:
        return settings.per_class
    assert settings.budget is not None
    if settings.budget < classes:
        raise InputError(
            f"memory.budget={settings.budget} is less than one exemplar for each of {classes} classes: raise it."
        )
    return settings.budget // classes


class Exemplars:
    """Exemplars of every class seen, as rows of the training set, and the class means of their features."""

    def __init__(self, settings: MemorySettings, features: int, device: torch.device) -> None:
        self.settings, self.device = settings, device
        self.by_class: list[Tensor] = []
        """Rows of the exemplars of each class, int64, best first: to keep fewer of them, the last ones are dropped."""
        self.means = torch.empty(0, features, device=device)
        """Mean of the normalised exemplar features of each class, normalised again, [classes, D]."""

    def __len__(self) -> int:
        return sum(map(len, self.by_class))

    def rows(self) -> Tensor:
        """Rows of all exemplars, int64."""
        return torch.cat(self.by_class) if self.by_class else torch.empty(0, dtype=torch.int64)

    def choose(self, new_rows: Sequence[Tensor], new_features: Sequence[Tensor]) -> None:
        """After a step, cut the classes of earlier steps to the new quota, then herd the new ones.

        Args:
            new_rows: Rows of each new class, int64 [N_c].
            new_features: Features of the same images, [N_c, D].
        """
        quota = exemplars_per_class(self.settings, len(self.by_class) + len(new_rows))
        self.by_class = [rows[:quota] for rows in self.by_class]
        for rows, features in zip(new_rows, new_features, strict=True):
            self.by_class.append(rows[herd(features, quota).to(rows.device)])

    def update_means(self, rows_by_class: Sequence[Tensor], features_by_class: Sequence[Tensor]) -> None:
        """Compute all class means.

        Args:
            rows_by_class: Rows of each class, int64 [N_c]; the exemplars are among them.
            features_by_class: Features of the same images, [N_c, D].
        """
        means = []
        for kept, rows, features in zip(self.by_class, rows_by_class, features_by_class, strict=True):
            chosen = torch.isin(rows.to(kept.device), kept).to(features.device)
            means.append(unit(features[chosen]).mean(dim=0))
        self.means = unit(torch.stack(means))

    def nearest_mean(self, features: Tensor) -> Tensor:
        """Scores [B, classes] of the nearest-mean classifier: cosines, because all vectors have length one."""
        return unit(features) @ self.means.T

    def renumber(self, position: Tensor) -> None:
        """Follow a new store: the former row k is now row `position[k]`."""
        self.by_class = [position.to(rows.device)[rows] for rows in self.by_class]

    def state(self) -> dict[str, Any]:
        return {"memory": self.by_class, "means": self.means}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.by_class = [rows.to(self.device) for rows in state["memory"]]
        self.means = state["means"].to(self.device)
