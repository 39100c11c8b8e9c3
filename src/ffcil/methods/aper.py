"""APER with adapters: the first step tunes the network, then class means of tuned and untuned features together.

Zhou et al., "Revisiting Class-Incremental Learning with Pre-Trained Models", IJCV 2024 (ADAM in its first version).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from ffcil.losses import cross_entropy
from ffcil.methods.learner import LearnerSettings, MethodConfig, register
from ffcil.methods.pretrained import Pretrained
from ffcil.methods.simplecil import SimpleCIL
from ffcil.models.heads import GrowingCosine
from ffcil.models.tuners import Tuning, adapters
from ffcil.stream import Increment


class AdapterConfig(MethodConfig):
    """Fields of a method that tunes by adapters."""

    rank: PositiveInt = 64
    """of the adapters"""


class TunedFirst(Pretrained):
    """Adapters and a cosine head, trained in the first step by cross-entropy and then frozen.

    A first step of one class has nothing to tell apart: its adapters stay near what they were, which is nothing.
    """

    Config = AdapterConfig
    config: AdapterConfig

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__(settings, config)
        self.adapters = adapters(self.vit.depth, self.vit.width, self.config.rank).to(self.engine.device)
        self.head = GrowingCosine(self.vit.feature_dim).to(self.engine.device)
        """of training alone"""

    def grow(self, increment: Increment) -> None:
        super().grow(increment)
        if self.trains(increment):
            self.head.grow(increment.seen_now)
        else:
            self.adapters.requires_grad_(False)
            self.head.requires_grad_(False)

    def trains(self, increment: Increment) -> bool:
        return increment.seen_before == 0

    def adapted(self, images: Tensor) -> Tensor:
        return self.tuned(images, [Tuning(adapter) for adapter in self.adapters])  # type: ignore[arg-type]

    def loss(self, images: Tensor, targets: Tensor) -> Tensor:
        return self.reduce(cross_entropy(self.head(self.adapted(images)), targets), targets)

    def deployed(self) -> Iterable[nn.Module]:
        return [*super().deployed(), self.adapters]


@register("aper")
class APER(TunedFirst, SimpleCIL):
    """Cosine with the class means of untuned and tuned features side by side."""

    title = "APER"
    paper = "https://arxiv.org/abs/2303.07338"

    @property
    def feature_dim(self) -> int:
        return 2 * self.vit.feature_dim

    def features(self, images: Tensor) -> Tensor:
        return torch.cat([self.tuned(images), self.adapted(images)], dim=1)
