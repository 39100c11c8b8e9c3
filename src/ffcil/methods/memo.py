"""MEMO: DER with one shared lower network; only the last stage is added at every step.

Zhou et al., ICLR 2023.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import torch
from pydantic import Field
from torch import Tensor, nn

from ffcil.losses import cross_entropy
from ffcil.methods.conventional import REHEARSAL, Conventional
from ffcil.methods.learner import LearnerSettings, MethodConfig
from ffcil.methods.parts.expansion import AuxiliaryHead
from ffcil.methods.registry import register
from ffcil.models.resnet import pool
from ffcil.stream import Increment


class MEMOConfig(MethodConfig):
    """Fields of MEMO."""

    auxiliary_weight: float = Field(1.0, ge=0)
    """Weight of the auxiliary loss, which tells the new classes apart by the new stage alone."""
    train_base: bool = True
    """Whether the shared lower network is trained after the first step. True suits small first steps, false large
    ones."""


@register("memo")
class MEMO(Conventional):
    """`backbone.lower` is shared, `backbone.upper` is the stage that is trained, `frozen` has the earlier stages.

    With `train_base` the inputs of the frozen stages change, and gradients reach the shared network through these
    stages, too.
    """

    title = "MEMO"
    paper = "https://arxiv.org/abs/2205.13218"
    classifiers = REHEARSAL
    uses_memory = True
    own_alignment = "wa"
    Config = MEMOConfig
    config: MEMOConfig

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__(settings, config)
        self.frozen = nn.ModuleList()
        self.auxiliary = AuxiliaryHead(self.backbone.feature_dim)

    def grow(self, increment: Increment) -> None:
        width = self.backbone.feature_dim
        if increment.seen_before:
            self.frozen.append(self.frozen_copy(self.backbone.upper))
            self.backbone.lower.requires_grad_(self.config.train_base)
            self.auxiliary = AuxiliaryHead.for_step(increment, width, self.engine.device)
        self.head.grow(increment.seen_now, width * (len(self.frozen) + 1))
        self.reset_centres(increment)

    def features(self, images: Tensor) -> Tensor:
        return self.stage_features([*self.frozen, self.backbone.upper], images)

    def stage_features(self, stages: Sequence[nn.Module], images: Tensor) -> Tensor:
        """Features of some stages on top of the shared network, [B, D * stages]."""
        with self.engine.autocast():
            maps = self.backbone.lower(images)
            features = torch.cat([pool(stage(maps)) for stage in stages], dim=1)
        return features.float()

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
        """Scores of the test images. Without `train_base`, features of frozen stages are computed once per run."""
        if self.config.train_base:
            yield from super().test_scores(increment)
            return
        fixed = [partial(self.stage_features, [stage]) for stage in self.frozen]
        newest = partial(self.stage_features, [self.backbone.upper])
        yield from map(self.scores, self.test_features(increment, fixed, newest))
