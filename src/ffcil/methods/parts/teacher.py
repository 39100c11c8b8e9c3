"""`Teacher`: what a network was at the end of the step before; `Distilling`: what methods have that learn from it."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from ffcil.methods.finetune import Finetune
from ffcil.methods.learner import LearnerSettings, MethodConfig
from ffcil.models.heads import GrowingLinear
from ffcil.stream import Increment


class Teacher(nn.Module):
    """A frozen backbone and head. It has no classes before the second step."""

    head: GrowingLinear

    def __init__(self, learner: Finetune) -> None:
        super().__init__()
        # one backbone for the whole stream, overwritten at each step, so that it is compiled once
        self.backbone = learner.frozen_copy(learner.backbone)
        self.head = GrowingLinear(self.backbone.feature_dim).requires_grad_(False)
        self.engine = learner.engine

    @property
    def classes(self) -> int:
        return self.head.classes

    def become(self, learner: Finetune) -> None:
        """Take over what the learner's network is now."""
        self.backbone.load_state_dict(learner.backbone.state_dict())
        self.head = copy.deepcopy(learner.head).requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        """[B, 3, H, W] -> [B, classes]"""
        with torch.no_grad():
            with self.engine.autocast():
                features = self.backbone(images)
            logits: Tensor = self.head(features.float())
        return logits


class Distilling(Finetune):
    """A learner with a teacher, which at every step becomes what the learner was."""

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__(settings, config)
        self.teacher = Teacher(self)

    def grow(self, increment: Increment) -> None:
        self.teacher.become(self)
        super().grow(increment)
