"""Joint: train anew at every step on all images of all classes seen. The upper bound; it costs most."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ffcil.config.settings import Phase
from ffcil.methods.finetune import Finetune
from ffcil.methods.learner import LearnerSettings, MethodConfig, register
from ffcil.models.heads import GrowingLinear
from ffcil.models.resnet import build_backbone
from ffcil.stream import Increment


@register("joint")
class Joint(Finetune):
    """Cross-entropy from scratch on everything, with the first step's schedule every time."""

    title = "Joint"

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__(settings, config)
        self.rows = torch.empty(0, dtype=torch.int64, device=self.engine.device)
        """training images of all earlier steps"""

    def grow(self, increment: Increment) -> None:
        self.backbone.load_state_dict(build_backbone(self.settings.backbone).state_dict())
        self.head = GrowingLinear(self.backbone.feature_dim).to(self.engine.device)
        self.head.grow(increment.seen_now)

    def phase(self, increment: Increment) -> Phase:
        return self.settings.train.first

    def training_rows(self, increment: Increment) -> Tensor:
        return torch.cat([self.rows, increment.rows])

    def kept_rows(self) -> Tensor:
        return self.rows

    def renumber(self, position: Tensor) -> None:
        self.rows = position.to(self.rows.device)[self.rows]

    def finish(self, increment: Increment) -> dict[str, Any]:
        self.rows = self.training_rows(increment)
        return {"alignment": None}  # it saw all classes alike: there is no old and new to align

    def state(self) -> dict[str, Any]:
        return {**super().state(), "rows": self.rows}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self.rows = state["rows"].to(self.engine.device)
