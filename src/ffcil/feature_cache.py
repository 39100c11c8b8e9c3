"""Test features of networks that no longer change: each (network, image) is computed once in a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ffcil.data.ragged import Images
from ffcil.stream import Increment


class FeatureCache:
    """Features of the test images, network by network.

    Images are taken in the groups in which their classes arrived, so that a run that was broken off, and must compute
    them again, computes them in the same batches and finds the same bits.
    """

    def __init__(self) -> None:
        self._images: Images | None = None
        self._features: list[list[Tensor]] = []
        """[network][step]: features of the test images of the classes that arrived then"""

    def features(
        self, increment: Increment, boundaries: Sequence[int], networks: Sequence[Callable[[Tensor], Tensor]]
    ) -> Tensor:
        """Of the increment's test images, the networks' side by side, [N, D of all networks]; N as `test_rows`.

        Args:
            boundaries: classes seen after each step up to this one
            networks: from rows of the test images to their features; the first ones are those of earlier calls
        """
        if self._images is not increment.test.images:
            self._images, self._features = increment.test.images, []
        groups = _groups(increment, boundaries)
        self._features += [[] for _ in range(len(networks) - len(self._features))]
        for network, known in zip(networks, self._features, strict=True):
            known += [network(rows) for rows in groups[len(known) :]]
        by_step = torch.cat([torch.cat(known) for known in self._features], dim=1)
        return by_step[torch.cat(groups).argsort()]  # test_rows come in the order of the store


def _groups(increment: Increment, boundaries: Sequence[int]) -> list[Tensor]:
    """Test rows of the classes that arrived at each step."""
    labels = increment.test.labels[increment.test_rows]
    first = [0, *boundaries[:-1]]
    return [increment.test_rows[(labels >= a) & (labels < b)] for a, b in zip(first, boundaries, strict=True)]
