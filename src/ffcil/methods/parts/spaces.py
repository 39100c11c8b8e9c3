"""Feature spaces of a pre-trained network that only some steps tune: their classes, and scores between them."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn


def tuning_steps(boundaries: Sequence[int], enough: int) -> list[bool]:
    """Whether each step tunes the network: whether it has at least `enough` classes.

    Args:
        boundaries: Number of classes seen after each step.
    """
    return [last - first >= enough for first, last in pairwise([0, *boundaries])]


def space_boundaries(boundaries: Sequence[int], enough: int) -> list[int]:
    """Number of classes in the first space, in the first two spaces, ...

    Every step that tunes the network opens a space, and the classes of other steps belong to the latest space. The
    first space also has the classes that arrived before the network was tuned for the first time.
    """
    spaces: list[int] = []
    tuned = False
    for seen, tunes in zip(boundaries, tuning_steps(boundaries, enough), strict=True):
        if not spaces or (tunes and tuned):
            spaces.append(seen)
        else:
            spaces[-1] = seen
        tuned = tuned or tunes
    return spaces


class WaitingFeatures:
    """Features of all images that arrived before the network was tuned for the first time.

    The tuned network cannot see these images again. So their features wait, and then move as the features of the
    tuning step's images do. Nothing waits if the first step has enough classes.
    """

    def __init__(self, width: int, device: torch.device) -> None:
        self.features = torch.empty(0, width, device=device)
        self.targets = torch.empty(0, dtype=torch.int64, device=device)

    def __len__(self) -> int:
        return len(self.targets)

    def add(self, features: Tensor, targets: Tensor) -> None:
        """Keep features [N, D] and their classes [N]."""
        self.features = torch.cat([self.features, features])
        self.targets = torch.cat([self.targets, targets])

    def clear(self) -> None:
        self.features, self.targets = self.features[:0], self.targets[:0]

    def state(self) -> dict[str, Any]:
        return {"waiting": {"features": self.features, "targets": self.targets}} if len(self) else {}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.clear()
        if kept := state.get("waiting"):
            self.add(kept["features"].to(self.features), kept["targets"].to(self.targets))


class ComparableScores(nn.Module):
    """Standardises scores, so that those of classes in different spaces can be compared.

    A network that was tuned on few classes, or not at all, finds all images similar: the cosines of an image with the
    classes of such a space are high whether it belongs to them or not. So the scores of a space are shifted and scaled
    by mean and deviation of its scores for wrong classes, over all training images seen since the space was opened.
    This needs three numbers per space and no image of an earlier step. (It is the Z-norm of speaker verification.)
    """

    sums: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sums", torch.zeros(0, 3, dtype=torch.float64))
        """Number, sum and sum of squares of the scores of each space for wrong classes, [spaces, 3]"""

    def grow(self, spaces: int) -> None:
        """Add spaces without scores up to `spaces`."""
        self.sums = torch.cat([self.sums, self.sums.new_zeros(spaces - len(self.sums), 3)])

    @torch.no_grad()
    def observe(self, scores: Tensor, targets: Tensor, space_of: Tensor) -> None:
        """Add the scores [N, C] of images of the classes `targets` [N] to the sums.

        Args:
            space_of: Space of each class, [C].
        """
        wrong = (targets[:, None] != torch.arange(scores.shape[1], device=scores.device)).double()
        values = wrong * scores.double()
        by_class = torch.stack([wrong.sum(dim=0), values.sum(dim=0), values.square().sum(dim=0)], dim=1)  # [C, 3]
        self.sums.index_add_(0, space_of, by_class)

    def forward(self, scores: Tensor, space_of: Tensor) -> Tensor:
        """Standardise scores [..., C], at the mean deviation of all spaces. Space of each class: [C].

        A space that has no two different scores yet gets the mean statistics of the others.
        """
        count, total, squares = self.sums.unbind(dim=1)
        mean = total / count.clamp_min(1)
        deviation = (squares / count.clamp_min(1) - mean.square()).clamp_min(0).sqrt()
        known = deviation > 1e-6 * mean.abs()
        if not known.any():
            return scores
        common, level = mean[known].mean(), deviation[known].mean()
        shift = torch.where(known, mean, common)[space_of].to(scores.dtype)
        scale = (level / torch.where(known, deviation, level))[space_of].to(scores.dtype)
        return (scores - shift) * scale
