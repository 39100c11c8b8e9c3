"""DER: a new feature extractor at every step beside the frozen earlier ones, and one head over all features.

Yan et al., CVPR 2021, in the form that PyCIL and most later papers use: expansion without pruning, and weight alignment
instead of the balanced second stage.
"""

from collections.abc import Iterable, Iterator

import torch
from pydantic import Field
from torch import Tensor, nn

from ffcil.losses import cross_entropy
from ffcil.methods.conventional import REHEARSAL, Conventional
from ffcil.methods.learner import LearnerSettings, MethodConfig
from ffcil.methods.parts.expansion import AuxiliaryHead, FrozenExtractors
from ffcil.methods.registry import register
from ffcil.stream import Increment


class DERConfig(MethodConfig):
    """Fields of DER."""

    auxiliary_weight: float = Field(1.0, ge=0)
    """Weight of the auxiliary loss, which tells the new classes apart by the new extractor alone."""


@register("der")
class DER(Conventional):
    """`backbone` is the extractor that is trained; `frozen` has its copies from the end of each earlier step.

    A new extractor thus starts as a full copy of the previous one, batch-norm statistics included.
    """

    title = "DER"
    paper = "https://arxiv.org/abs/2103.16788"
    classifiers = REHEARSAL
    uses_memory = True
    own_alignment = "wa"
    Config = DERConfig
    config: DERConfig

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__(settings, config)
        self.frozen = FrozenExtractors(self.engine)
        self.auxiliary = AuxiliaryHead(self.backbone.feature_dim)

    def grow(self, increment: Increment) -> None:
        width = self.backbone.feature_dim
        if increment.seen_before:
            self.frozen.append(self.frozen_copy(self.backbone))
            self.auxiliary = AuxiliaryHead.for_step(increment, width, self.engine.device)
        self.head.grow(increment.seen_now, width * (len(self.frozen) + 1))
        self.reset_centres(increment)

    def features(self, images: Tensor) -> Tensor:
        """Features of all extractors, oldest first, [B, D * extractors]."""
        frozen = self.frozen.start(images)
        return torch.cat([*frozen(), self.newest_features(images)], dim=1)

    def newest_features(self, images: Tensor) -> Tensor:
        """Features of the newest extractor, [B, D]."""
        return self.through(self.backbone, images)

    def loss(self, images: Tensor, targets: Tensor) -> Tensor:
        features = self.features(images)
        per_sample = cross_entropy(self.head(features), targets, self.prior)
        if len(self.frozen):
            auxiliary = self.auxiliary.loss(features, targets, self.prior_of_groups)
            per_sample = per_sample + self.config.auxiliary_weight * auxiliary
        return self.classification_loss(features, per_sample, targets)

    def deployed(self) -> Iterable[nn.Module]:
        return [self.backbone, self.head, self.frozen]

    def test_scores(self, increment: Increment) -> Iterator[dict[str, Tensor]]:
        yield from map(self.scores, self.test_features(increment, self.frozen.networks(), self.newest_features))
