"""APER with adapters: the first step tunes the network; then the means of tuned and untuned features classify.

Zhou et al., "Revisiting Class-Incremental Learning with Pre-Trained Models", IJCV 2024 (ADAM in its first version).
"""

from typing import Any

import torch
from torch import Tensor

from ffcil.losses import cross_entropy
from ffcil.methods.learner import LearnerSettings, MethodConfig
from ffcil.methods.parts.adapters import AdapterConfig
from ffcil.methods.parts.prototypes import SCALE, Prototypes
from ffcil.methods.pretrained import Pretrained
from ffcil.methods.registry import register
from ffcil.models.heads import GrowingCosine
from ffcil.stream import Increment
from ffcil.training.fit import Training


@register("aper")
class APER(Pretrained):
    """The score of a class is the cosine of a feature with the class mean; a feature is the untuned feature and the
    tuned one, side by side.

    Adapters and a cosine head are trained in the first step, or in the first with `flow.enough` classes, and then
    frozen. A step with a single class has nothing to discriminate: its adapters stay near their initial values, at
    which they change nothing.
    """

    title = "APER"
    paper = "https://arxiv.org/abs/2303.07338"
    Config = AdapterConfig
    config: AdapterConfig
    trains_prototypes = True
    compares_means = True
    training_only = ("head",)
    fixed_features = True

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__(settings, config)
        self.adapters = self.fresh_adapters(self.config.rank)
        self.head = GrowingCosine(self.vit.feature_dim).to(self.engine.device)
        """Head for the training of the adapters."""
        self.prototypes = Prototypes(self.feature_dim).to(self.engine.device)

    @property
    def feature_dim(self) -> int:
        return 2 * self.vit.feature_dim

    def grow(self, increment: Increment) -> None:
        super().grow(increment)
        self.prototypes.grow(increment.seen_now)
        if self.tunes_first:
            self.head.grow(len(increment.classes))
        for part in (self.adapters, self.head):
            part.requires_grad_(self.tunes_first)

    def training_plan(self, increment: Increment) -> Training | None:
        return self.train_on_images(increment) if self.tunes_first else None

    def loss(self, images: Tensor, targets: Tensor) -> Tensor:
        features = self.adapted(self.adapters, images)
        loss = self.reduce(cross_entropy(self.head(features), targets - self.old_classes), targets)
        return loss + self.centre_loss(features, targets)

    def features(self, images: Tensor) -> Tensor:
        return torch.cat([self.vit_features(images), self.adapted(self.adapters, images)], dim=1)

    def untuned_features(self, images: Tensor) -> Tensor:
        return self.vit_features(images).repeat(1, 2)

    def classify(self, features: Tensor) -> Tensor:
        return SCALE * self.similarity(features, self.prototypes.means)

    def fit_classifier(self, increment: Increment, features: Tensor, targets: Tensor) -> dict[str, Any]:
        self.prototypes.remember(features, targets)
        return {}
