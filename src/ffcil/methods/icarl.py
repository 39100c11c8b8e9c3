"""iCaRL: cross-entropy, distillation from the network of the step before, herded exemplars, nearest-mean classifier.

Rebuffi et al., CVPR 2017, in the softmax form in which PyCIL and the field run it.
"""

from __future__ import annotations

import copy

import torch
from pydantic import Field
from torch import Tensor

from ffcil.losses import cross_entropy, distillation
from ffcil.methods.learner import LearnerSettings, MethodConfig, register
from ffcil.methods.replay import Replay
from ffcil.models.heads import GrowingLinear
from ffcil.stream import Increment


class ICaRLConfig(MethodConfig):
    """iCaRL's own fields."""

    temperature: float = Field(2.0, gt=0)
    """of the distillation"""
    distillation_weight: float = Field(1.0, ge=0)
    """of the distillation term against cross-entropy"""


@register("icarl")
class ICaRL(Replay):
    """Loss of every sample, new or replayed: cross-entropy over all classes + distillation over the old ones.

    The linear head is the scored classifier and is aligned (WA) in the original form, because the paper's DIWA, which
    replaces WA, moves this method's figures. PyCIL scores the nearest mean and does not align: `alignment=none`, and
    read `nearest-mean`.
    """

    title = "iCaRL"
    paper = "https://arxiv.org/abs/1611.07725"
    Config = ICaRLConfig
    config: ICaRLConfig
    own_alignment = "wa"

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__(settings, config)
        # One teacher for the whole stream, overwritten at each step, so that it is compiled once.
        self.teacher = self.build_backbone().requires_grad_(False)
        self.teacher_head = GrowingLinear(self.teacher.feature_dim).requires_grad_(False)

    def grow(self, increment: Increment) -> None:
        self.teacher.load_state_dict(self.backbone.state_dict())
        self.teacher_head = copy.deepcopy(self.head).requires_grad_(False)
        super().grow(increment)

    def teacher_logits(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            with self.engine.autocast():
                features = self.teacher(images)
            logits: Tensor = self.teacher_head(features.float())
        return logits

    def loss(self, images: Tensor, targets: Tensor) -> Tensor:
        old = self.teacher_head.classes
        if old == 0:
            return super().loss(images, targets)
        teacher = self.engine.aside(lambda: self.teacher_logits(images))
        features = self.features(images)
        logits = self.head(features)
        per_sample = cross_entropy(logits, targets)
        per_sample = per_sample + self.config.distillation_weight * distillation(
            logits[:, :old], teacher(), self.config.temperature
        )
        return self.reduce(per_sample, targets) + self.spread(features, targets)
