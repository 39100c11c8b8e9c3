"""Feature spaces of a pre-trained network that only some steps tune: the classes of each, and waiting features."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor


def tuning_steps(boundaries: Sequence[int], enough: int, share: float = 0.0) -> list[bool]:
    """Whether each step tunes the network, because it has enough new classes.

    Args:
        boundaries: Number of classes seen after each step.
        enough: Smallest number of new classes.
        share: Smallest number of new classes, as a share of those seen before the step.
    """
    return [last - first >= max(enough, _share_of(first, share)) for first, last in pairwise([0, *boundaries])]


def gathering_steps(boundaries: Sequence[int], enough: int = 1, growth: float = 0.0) -> list[bool]:
    """Whether each step trains the network, because enough classes have arrived since the last step that did.

    Args:
        boundaries: Number of classes seen after each step.
        enough: Smallest number of classes since then.
        growth: Smallest number of classes since then, as a share of those seen at that last step.
    """
    trains: list[bool] = []
    trained = 0  # classes seen at the last training
    for seen in boundaries:
        trains.append(seen - trained >= max(enough, _share_of(trained, growth)))
        if trains[-1]:
            trained = seen
    return trains


def _share_of(classes: int, share: float) -> float:
    """A share of a number of classes, rounded: 7 classes are 0.07 of 100, but 0.07 * 100 is above 7 in float64."""
    return round(share * classes, 9)


def space_boundaries(boundaries: Sequence[int], enough: int, share: float = 0.0) -> list[int]:
    """Number of classes in the first space, in the first two spaces, ...

    Every step that tunes the network opens a space, and the classes of other steps belong to the latest space. The
    first space also has the classes that arrived before the network was tuned for the first time.
    """
    spaces: list[int] = []
    tuned = False  # whether an earlier step has tuned the network
    for seen, tunes in zip(boundaries, tuning_steps(boundaries, enough, share), strict=True):
        if not spaces or (tunes and tuned):
            spaces.append(seen)
        else:
            spaces[-1] = seen
        tuned = tuned or tunes
    return spaces


def step_of(classes: Tensor, boundaries: Sequence[int]) -> Tensor:
    """The step, counted from 0, at which each of `classes` arrived.

    Args:
        boundaries: Number of classes seen after each step.
    """
    return torch.bucketize(classes, torch.tensor(boundaries, device=classes.device), right=True)


class WaitingFeatures:
    """Features of all images that arrived before the network was tuned for the first time.

    The tuned network cannot see these images again. So their features are kept, and are then moved as the features of
    the tuning step's images move. Nothing is kept if the first step has enough classes.
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
