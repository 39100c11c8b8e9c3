"""MEMO: DER with one shared lower network; only the last stage is added at every step.

Zhou et al., ICLR 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from pydantic import Field
from torch import Tensor, nn

from ffcil.methods.der import DER, DERConfig
from ffcil.methods.learner import register
from ffcil.models.resnet import pool


class MEMOConfig(DERConfig):
    """MEMO's own fields."""

    auxiliary_weight: float = Field(1.0, ge=0)
    """of the auxiliary loss, which tells the new classes apart by the new stage alone"""
    train_base: bool = True
    """go on training the shared lower network after the first step: for small first steps; false for large ones"""


@register("memo")
class MEMO(DER):
    """`backbone.lower` is shared, `backbone.upper` is the stage that is trained, `frozen` are the earlier stages.

    With `train_base` the frozen stages see inputs that drift, and the loss reaches the shared network through them.
    """

    title = "MEMO"
    paper = "https://arxiv.org/abs/2205.13218"
    Config = MEMOConfig
    config: MEMOConfig

    def freeze(self) -> None:
        self.frozen.append(self.frozen_copy(self.backbone.upper))
        self.backbone.lower.requires_grad_(self.config.train_base)

    def features(self, images: Tensor) -> Tensor:
        return self.through([*self.frozen, self.backbone.upper], images)

    def through(self, stages: Sequence[nn.Module], images: Tensor) -> Tensor:
        """[B, D * stages]"""
        with self.engine.autocast():
            maps = self.backbone.lower(images)
            features = torch.cat([pool(stage(maps)) for stage in stages], dim=1)
        return features.float()

    def fixed_networks(self) -> list[Callable[[Tensor], Tensor]]:
        if self.config.train_base:
            return []
        return [partial(self.through, [stage]) for stage in self.frozen]

    def moving_features(self, images: Tensor) -> Tensor:
        return self.features(images) if self.config.train_base else self.through([self.backbone.upper], images)
