"""A cache of test features by networks that no longer change: each network sees a test image once per run."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ffcil.data.ragged import Images
from ffcil.stream import Increment

Network = Callable[[Tensor], Tensor]


class FeatureCache:
    """Features of the test images, by network.

    Images are processed in the groups in which their classes arrived. So a resumed run, which must compute them again,
    uses the same batches and gets the same bits.
    """

    def __init__(self) -> None:
        self._source: tuple[Images, Tensor] | None = None
        """Images and labels of the cached features."""
        self._features: list[list[Tensor]] = []
        """[network][step]: features of the test images whose classes arrived at that step."""

    def features(
        self,
        increment: Increment,
        boundaries: Sequence[int],
        networks: Sequence[Network],
        extract: Callable[[Network, Tensor], Tensor],
    ) -> Tensor:
        """Features of the increment's test images, [N, D of all networks], in the order of `test_rows`.

        Args:
            boundaries: Number of classes seen after each of the learner's steps so far.
            networks: The networks; those of earlier calls come first.
            extract: Function from a network and rows of the test images to features.
        """
        if increment.seen_now not in boundaries:  # the learner did not follow this stream: nothing can be cached
            return torch.cat([extract(network, increment.test_rows) for network in networks], dim=1)
        test = increment.test
        if self._source is None or self._source[0] is not test.images or self._source[1] is not test.labels:
            self._source, self._features = (test.images, test.labels), []
        groups = _groups(increment, boundaries[: boundaries.index(increment.seen_now) + 1])
        self._features += [[] for _ in range(len(networks) - len(self._features))]
        by_network = []
        for network, known in zip(networks, self._features, strict=True):
            known += [extract(network, rows) for rows in groups[len(known) :]]
            by_network.append(torch.cat(known[: len(groups)]))
        # test_rows are in the order of the store
        return torch.cat(by_network, dim=1)[torch.cat(groups).argsort()]


def _groups(increment: Increment, boundaries: Sequence[int]) -> list[Tensor]:
    """Test rows of the classes of each step."""
    labels = increment.test.labels[increment.test_rows]
    step = torch.bucketize(labels, torch.tensor(boundaries, device=labels.device), right=True)
    sizes = torch.bincount(step, minlength=len(boundaries)).tolist()
    return list(increment.test_rows[step.argsort(stable=True)].split(sizes))
