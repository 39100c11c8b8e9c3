"""SimpleCIL: the class means of a frozen pre-trained network are the classifier; nothing is trained.

Zhou et al., "Revisiting Class-Incremental Learning with Pre-Trained Models", IJCV 2024.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ffcil.methods.learner import LearnerSettings, MethodConfig, register
from ffcil.methods.pretrained import Pretrained
from ffcil.models.heads import cosine
from ffcil.stream import Increment

SCALE = 20.0
"""on cosines, for the softmax that HA is trained by; the highest score does not depend on it"""


@register("simplecil")
class SimpleCIL(Pretrained):
    """Cosine of a feature with the mean feature of every class."""

    title = "SimpleCIL"
    paper = "https://arxiv.org/abs/2303.07338"

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__(settings, config)
        self.prototypes: Tensor
        self.register_buffer("prototypes", torch.empty(0, self.feature_dim, device=self.engine.device))
        """mean feature of each class, [classes, D]"""

    def grow(self, increment: Increment) -> None:
        super().grow(increment)
        room = self.prototypes.new_zeros(len(increment.classes), self.feature_dim)
        self.prototypes = torch.cat([self.prototypes, room])

    def trains(self, increment: Increment) -> bool:
        return False

    def features(self, images: Tensor) -> Tensor:
        return self.tuned(images)

    def classify(self, features: Tensor) -> Tensor:
        return SCALE * cosine(features, self.prototypes)

    def settle(self, increment: Increment, features: Tensor, targets: Tensor) -> dict[str, Any]:
        for label in increment.classes:
            self.prototypes[label] = features[targets == label].mean(dim=0)
        return {}

    def fixed_networks(self) -> Sequence[Callable[[Tensor], Tensor]]:
        return [self.features]
