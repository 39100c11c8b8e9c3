"""`KeptFeatures`: the features of all training images in half precision, kept instead of the images."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def half(features: Tensor) -> Tensor:
    """Convert features to float16. Values outside its range become its largest or smallest value."""
    largest = torch.finfo(torch.float16).max
    return features.clamp(-largest, largest).half()


class KeptFeatures:
    """Features, their classes, and the digests of their images. Nothing depends on their order."""

    def __init__(self, width: int, device: torch.device) -> None:
        self.features = torch.empty(0, width, dtype=torch.float16, device=device)
        """Features of the images, [N, D]"""
        self.targets = torch.empty(0, dtype=torch.int64, device=device)
        """Class of each image, [N]"""
        self.digests = torch.empty(0, dtype=torch.int64, device=device)
        """Digest of the pixels of each image, [N]"""

    def __len__(self) -> int:
        return len(self.targets)

    def first_seen(self, digests: Tensor, targets: Tensor) -> Tensor:
        """Whether each image is new, bool [N]: it is not kept with this class yet, and does not occur earlier in the
        list."""
        keys = _keys(digests, targets)
        _, group = keys.unique(return_inverse=True)
        position = torch.arange(len(keys), device=keys.device)
        first = torch.full_like(position, len(keys)).scatter_reduce_(0, group, position, "amin")  # of each group
        return (first[group] == position) & ~torch.isin(keys, _keys(self.digests, self.targets))

    def find(self, digests: Tensor) -> tuple[Tensor, Tensor]:
        """Find the images that are kept: their positions in the list `digests`, and their rows here, [M] each.

        An image that is kept with several classes is found once."""
        known, order = self.digests.sort(stable=True)
        place = torch.searchsorted(known, digests).clamp(max=max(len(known) - 1, 0))
        found = torch.isin(digests, known).nonzero().flatten()
        return found, order[place[found]]

    def add(self, features: Tensor, targets: Tensor, digests: Tensor) -> None:
        self.features = torch.cat([self.features, features])
        self.targets = torch.cat([self.targets, targets])
        self.digests = torch.cat([self.digests, digests])

    def replace(self, features: Tensor, targets: Tensor, digests: Tensor) -> None:
        """Replace the features of those images that are kept with the given classes. The others are ignored."""
        known, order = _keys(self.digests, self.targets).sort()
        keys = _keys(digests, targets)
        found = torch.isin(keys, known)
        self.features[order[torch.searchsorted(known, keys[found])]] = features[found]

    def take(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Remove the rows in the mask `chosen` and return their features and classes."""
        taken = self.features[chosen], self.targets[chosen]
        rest = ~chosen
        self.features, self.targets, self.digests = self.features[rest], self.targets[rest], self.digests[rest]
        return taken

    def sample(self, eligible: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Features and classes of at most `size` rows of the mask `eligible`, those with the smallest digests.

        So the sample depends on the set of images, and not on the order in which they arrived."""
        rows = eligible.nonzero().flatten()
        order = torch.argsort(self.targets[rows], stable=True)
        order = order[torch.argsort(self.digests[rows][order], stable=True)]
        rows = rows[order[:size]]
        return self.features[rows], self.targets[rows]

    def state(self) -> dict[str, Any]:
        return {"features": self.features, "targets": self.targets, "digests": self.digests}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.features = state["features"].to(self.features)
        self.targets, self.digests = state["targets"].to(self.targets), state["digests"].to(self.digests)


def _keys(digests: Tensor, targets: Tensor) -> Tensor:
    """One number for each pair of an image and a class, int64 [N]. The factor spreads classes over all bits; overflow
    wraps around."""
    return digests + targets * -7046029254386353131
