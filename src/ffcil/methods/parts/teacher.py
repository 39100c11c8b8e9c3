"""`Teacher`: the network as it was at the end of the previous step."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ffcil.losses import distillation
from ffcil.models.heads import GrowingLinear
from ffcil.models.resnet import Backbone
from ffcil.training.engine import Engine


class Teacher(nn.Module):
    """A frozen copy of backbone and head. It has no classes before the second step."""

    head: GrowingLinear

    def __init__(self, backbone: Backbone, engine: Engine) -> None:
        """`backbone` is a frozen copy of the student's. Each step overwrites its values, so that it compiles once."""
        super().__init__()
        self.backbone = backbone
        self.head = GrowingLinear(backbone.feature_dim).requires_grad_(False)
        self.engine = engine

    @property
    def classes(self) -> int:
        return self.head.classes

    def copy_from(self, backbone: Backbone, head: GrowingLinear) -> None:
        """Copy the student as it is now."""
        self.backbone.load_state_dict(backbone.state_dict())
        self.head = copy.deepcopy(head).requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        """[B, 3, H, W] -> [B, classes]"""
        with torch.no_grad():
            with self.engine.autocast():
                features = self.backbone(images)
            logits: Tensor = self.head(features.float())
        return logits

    def start(self, images: Tensor) -> Callable[[], Tensor]:
        """Start the teacher in parallel to what follows. The returned function waits for its logits."""
        return self.engine.aside(lambda: self(images))

    def distillation(self, student: Tensor, logits: Callable[[], Tensor], temperature: float) -> Tensor:
        """Distillation loss of every sample over the old classes, [B].

        Args:
            student: Logits of the student, [B, all classes].
            logits: Function that waits for the logits of the teacher, as `start` returns it.
        """
        return distillation(student[:, : self.classes], logits(), temperature)

    def weigh_by_share(self, classification: Tensor, distilled: Tensor, classes: int) -> Tensor:
        """Weighted sum of two losses [B]. Distillation has the share of old classes among all `classes` as its
        weight."""
        old_share = self.classes / classes
        return (1 - old_share) * classification + old_share * distilled
