"""`WaitingImages`: images of recent steps, kept until the next adaptation of a network."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ffcil.data.image_set import ImageSet


def evenly(targets: Tensor, digests: Tensor, budget: int) -> Tensor:
    """Positions of at most `budget` images, int64: the same number of every class, or all images of a smaller class.

    A class keeps the images with the smallest digests. So the choice depends on the images, not on their order."""
    order = torch.argsort(digests, stable=True)
    order = order[torch.argsort(targets[order], stable=True)]  # by class, then by digest
    _, counts = targets[order].unique_consecutive(return_counts=True)
    starts = (counts.cumsum(0) - counts).repeat_interleave(counts)
    rank = torch.arange(len(order), device=order.device) - starts  # 0 for the first image of each class
    totals = rank.bincount().cumsum(0)  # number of images if each class keeps up to 1, 2, ... of them
    return order[rank < (totals <= budget).sum()]


class WaitingImages:
    """Rows, in the store of training images, of the images that wait."""

    def __init__(self, budget: int, device: torch.device) -> None:
        self.budget = budget
        """Largest number of images that wait."""
        self.rows = torch.empty(0, dtype=torch.int64, device=device)

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, train: ImageSet, rows: Tensor) -> None:
        """Add images. If there are then more than the budget, some of each class are dropped (see `evenly`)."""
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
