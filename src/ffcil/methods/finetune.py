"""Finetune: train on what arrives and nothing else. The lower bound; it forgets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from torch import Tensor, nn

from ffcil.alignment import row_norms
from ffcil.losses import cross_entropy
from ffcil.methods.learner import Learner, LearnerSettings, MethodConfig, register
from ffcil.models.heads import GrowingLinear
from ffcil.stream import Increment


@register("finetune")
class Finetune(Learner):
    """One backbone, one growing linear head, cross-entropy over all classes seen."""

    title = "Finetune"

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__(settings, config)
        self.backbone = self.build_backbone()
        self.head = GrowingLinear(self.backbone.feature_dim).to(self.engine.device)

    def grow(self, increment: Increment) -> None:
        self.grow_head(increment)

    def grow_head(self, increment: Increment) -> None:
        self.head.grow(increment.seen_now)

    def features(self, images: Tensor) -> Tensor:
        """[B, 3, H, W] -> [B, D]; the backbone alone runs in reduced precision."""
        with self.engine.autocast():
            features: Tensor = self.backbone(images)
        return features.float()

    def scores(self, features: Tensor) -> dict[str, Tensor]:
        """By classifier, [B, classes]."""
        return {"linear": self.head(features)}

    def loss(self, images: Tensor, targets: Tensor) -> Tensor:
        return self.reduce(cross_entropy(self.head(self.features(images)), targets), targets)

    def logits(self, images: Tensor) -> dict[str, Tensor]:
        return self.scores(self.features(images))

    def deployed(self) -> Iterable[nn.Module]:
        return [self.backbone, self.head]

    def finish(self, increment: Increment) -> dict[str, Any]:
        before = row_norms(self.head.weight, increment.seen_before) if increment.seen_before else None
        done = self.settings.robustness.align(self.head.weight, increment)
        return {"row_norms": before, "alignment": asdict(done) if done else None}
