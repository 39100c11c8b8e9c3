"""Parts of methods that add a feature extractor at every step: the frozen extractors and the auxiliary head."""

from collections.abc import Callable
from functools import partial
from typing import Self

import torch
from torch import Tensor, nn

from ffcil.losses import cross_entropy
from ffcil.models.heads import GrowingLinear
from ffcil.stream import Increment
from ffcil.training.engine import Engine


class FrozenExtractors(nn.ModuleList):
    """Copies of the trained extractor at the end of each earlier step, oldest first."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.engine = engine

    def start(self, images: Tensor) -> Callable[[], list[Tensor]]:
        """Start all extractors in parallel to what follows. The returned function waits for the features of each,
        [B, D]."""
        running = [self.engine.aside(partial(network, images), lane) for lane, network in enumerate(self.networks())]
        return lambda: [wait() for wait in running]

    def networks(self) -> list[Callable[[Tensor], Tensor]]:
        """The extractors as functions from images to features."""
        return [partial(apply_frozen, extractor, self.engine) for extractor in self]


def apply_frozen(network: nn.Module, engine: Engine, images: Tensor) -> Tensor:
    """Apply a network without gradients, in the engine's precision; its features are float32."""
    with torch.no_grad(), engine.autocast():
        features: Tensor = network(images)
    return features.float()


class AuxiliaryHead(GrowingLinear):
    """Classifies the new classes by the newest extractor alone. All old classes count as one class."""

    old_classes = 0

    @classmethod
    def for_step(cls, increment: Increment, features: int, device: torch.device) -> Self:
        """A fresh head for the new classes of a step and one class for all old ones."""
        head = cls(features).to(device)
        head.grow(len(increment.classes) + 1)
        head.old_classes = increment.seen_before
        return head

    def loss(self, features: Tensor, targets: Tensor, prior: Tensor | None = None) -> Tensor:
        """Cross-entropy of every sample, [B].

        A sample of an old class keeps its own class in the class-wise mean, although all old classes share output 0.

        Args:
            features: Features of all extractors, [B, D * extractors]. Those of the newest one come last.
            targets: Classes, [B].
            prior: Prior of the outputs of this head, [1 + new classes].
        """
        outputs = (targets - self.old_classes + 1).clamp_min(0)
        return cross_entropy(self(features[:, -self.weight.shape[1] :]), outputs, prior)
