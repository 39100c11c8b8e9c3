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
        self._of: tuple[Images, Tensor] | None = None
        """images and labels that the features are of"""
        self._features: list[list[Tensor]] = []
        """[network][step]: features of the test images of the classes that arrived then"""

    def features(
        self, increment: Increment, boundaries: Sequence[int], networks: Sequence[Callable[[Tensor], Tensor]]
    ) -> Tensor:
        """Of the increment's test images, the networks' side by side, [N, D of all networks]; N as `test_rows`.

        Args:
            boundaries: classes seen after each of the learner's steps so far
            networks: from rows of the test images to their features; the first ones are those of earlier calls
        """
        if increment.seen_now not in boundaries:  # of a stream that the learner did not follow: nothing to keep
            return torch.cat([network(increment.test_rows) for network in networks], dim=1)
        test = increment.test
        if self._of is None or self._of[0] is not test.images or self._of[1] is not test.labels:
            self._of, self._features = (test.images, test.labels), []
        groups = _groups(increment, boundaries[: boundaries.index(increment.seen_now) + 1])
        self._features += [[] for _ in range(len(networks) - len(self._features))]
        by_network = []
        for network, known in zip(networks, self._features, strict=True):
            known += [network(rows) for rows in groups[len(known) :]]
            by_network.append(torch.cat(known[: len(groups)]))
        # test_rows come in the order of the store
        return torch.cat(by_network, dim=1)[torch.cat(groups).argsort()]


def _groups(increment: Increment, boundaries: Sequence[int]) -> list[Tensor]:
    """Test rows of the classes that arrived at each step."""
    labels = increment.test.labels[increment.test_rows]
    first = [0, *boundaries[:-1]]
    return [increment.test_rows[(labels >= a) & (labels < b)] for a, b in zip(first, boundaries, strict=True)]
