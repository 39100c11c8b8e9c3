"""Joint: train from scratch at every step on all images of all classes seen. It is the upper bound and costs most."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ffcil.methods.conventional import Conventional
from ffcil.methods.learner import LearnerSettings, MethodConfig
from ffcil.methods.registry import register
from ffcil.models.heads import GrowingLinear
from ffcil.models.resnet import build_backbone
from ffcil.stream import Increment
from ffcil.training.fit import Training


@register("joint")
class Joint(Conventional):
    """Cross-entropy from scratch on all images seen. Every step has the schedule of the first step."""

    title = "Joint"
    bound = "upper"

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__(settings, config)
        self.rows = torch.empty(0, dtype=torch.int64, device=self.engine.device)
        """Rows of the training images of all earlier steps."""

    def grow(self, increment: Increment) -> None:
        self.backbone.load_state_dict(build_backbone(self.settings.backbone).state_dict())
        self.head = GrowingLinear(self.backbone.feature_dim).to(self.engine.device)
        self.head.grow(increment.seen_now)

    def training_plan(self, increment: Increment) -> Training:
        return self.train_on_images(increment, phase=self.settings.train.first)

    def training_rows(self, increment: Increment) -> Tensor:
        return torch.cat([self.rows, increment.rows])

    def kept_rows(self) -> Tensor:
        return self.rows

    def renumber(self, position: Tensor) -> None:
        self.rows = position.to(self.rows.device)[self.rows]

    def finish(self, increment: Increment) -> dict[str, Any]:
        self.rows = self.training_rows(increment)
        return {"alignment": None}  # all classes were trained alike: there are no old and new rows to align

    def state(self) -> dict[str, Any]:
        return {**super().state(), "rows": self.rows}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self.rows = state["rows"].to(self.engine.device)
