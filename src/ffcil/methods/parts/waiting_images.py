"""`WaitingImages`: images of recent steps that wait for the next adaptation of a network, and are gone after it."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ffcil.data.image_set import ImageSet


def evenly(targets: Tensor, digests: Tensor, budget: int) -> Tensor:
    """Choose at most `budget` images, the same number of every class that has so many: positions, int64.

    Of a class, those with the smallest digests are chosen. So the choice depends on the images, not on their order."""
    order = torch.argsort(digests, stable=True)
    order = order[torch.argsort(targets[order], stable=True)]  # by class, then by digest
    _, counts = targets[order].unique_consecutive(return_counts=True)
    starts = (counts.cumsum(0) - counts).repeat_interleave(counts)
    rank = torch.arange(len(order), device=order.device) - starts  # 0 for the first image of each class
    chosen_if = rank.bincount().cumsum(0)  # number of images if each class has 1, 2, ... of them
    return order[rank < (chosen_if <= budget).sum()]


class WaitingImages:
    """Rows of the store of training images."""

    def __init__(self, budget: int, device: torch.device) -> None:
        self.budget = budget
        """Most images that wait."""
        self.rows = torch.empty(0, dtype=torch.int64, device=device)

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, train: ImageSet, rows: Tensor) -> None:
        """Let images wait. If there are more than the budget, some of each class are dropped (`evenly`)."""
        rows = torch.cat([self.rows, rows.to(self.rows.device)])
        if len(rows) > self.budget:
            rows = rows[evenly(train.labels[rows], train.digests(rows), self.budget)]
        self.rows = rows

    def clear(self) -> None:
        self.rows = self.rows[:0]

    def renumber(self, position: Tensor) -> None:
        """Follow a new store: the former row k is now row `position[k]`."""
        self.rows = position.to(self.rows.device)[self.rows]

    def state(self) -> dict[str, Any]:
        return {"waiting_images": self.rows} if len(self) else {}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.rows = state.get("waiting_images", self.rows[:0]).to(self.rows)
