"""Replay: Finetune with an exemplar memory chosen by herding, and a nearest-mean classifier beside the linear head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ffcil.losses import ClassCentres, cross_entropy
from ffcil.methods.finetune import Finetune
from ffcil.methods.learner import LearnerSettings, MethodConfig, register
from ffcil.methods.parts.exemplars import ExemplarMemory, unit
from ffcil.stream import Increment


@register("replay")
class Replay(Finetune):
    """Cross-entropy on new images and exemplars together."""

    title = "Replay"
    classifiers = ("linear", "nearest-mean")
    uses_memory = True

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__(settings, config)
        self.memory = ExemplarMemory(settings.memory.budget, settings.memory.per_class)
        self.means = torch.empty(0, self.backbone.feature_dim, device=self.engine.device)
        """of normalised exemplar features, normalised again, [classes, D]"""
        self.centres = ClassCentres(0, self.backbone.feature_dim)

    def grow(self, increment: Increment) -> None:
        super().grow(increment)
        if self.settings.robustness.centre_weight:  # anew at every step: training moves all features
            self.centres = ClassCentres(increment.seen_now, self.head.weight.shape[1]).to(self.engine.device)

    def loss(self, images: Tensor, targets: Tensor) -> Tensor:
        features = self.features(images)
        per_sample = cross_entropy(self.head(features), targets)
        return self.reduce(per_sample, targets) + self.spread(features, targets)

    def spread(self, features: Tensor, targets: Tensor) -> Tensor | float:
        """The centre loss of a batch, paper eq. (8), for the nearest-mean classifier; 0 where it is not asked for."""
        if weight := self.settings.robustness.centre_weight:
            distances: Tensor = self.centres(features, targets)
            return weight * distances.mean()
        return 0.0

    def training_rows(self, increment: Increment) -> Tensor:
        return torch.cat([increment.rows, self.memory.rows().to(increment.rows.device)])

    def kept_rows(self) -> Tensor:
        return self.memory.rows()

    def renumber(self, position: Tensor) -> None:
        self.memory.by_class = [position.to(rows.device)[rows] for rows in self.memory.by_class]

    def finish(self, increment: Increment) -> dict[str, Any]:
        notes = super().finish(increment)
        self.refresh_memory(increment)
        return {**notes, "memory": len(self.memory)}

    def refresh_memory(self, increment: Increment) -> None:
        """Choose exemplars of the new classes and compute all class means, from one pass over memory and new images."""
        new_rows = increment.rows_by_class()
        old_rows = self.memory.by_class
        groups = [*old_rows, *new_rows]
        rows = torch.cat([group.to(self.engine.device) for group in groups])
        features = torch.cat(list(self.over(increment.train.images, rows, self.features)))
        by_class = features.split([len(group) for group in groups])
        self.memory.update(new_rows, by_class[len(old_rows) :])
        self.means = self.class_means(groups, by_class)

    def class_means(self, groups: list[Tensor], by_class: tuple[Tensor, ...]) -> Tensor:
        means = []
        for kept, rows, features in zip(self.memory.by_class, groups, by_class, strict=True):
            chosen = torch.isin(rows.to(kept.device), kept).to(features.device)
            means.append(unit(features[chosen]).mean(dim=0))
        return unit(torch.stack(means))

    def scores(self, features: Tensor) -> dict[str, Tensor]:
        # the nearest mean by Euclidean distance: both sides have length one
        return {"linear": self.head(features), "nearest-mean": unit(features) @ self.means.T}

    def state(self) -> dict[str, Any]:
        return {**super().state(), "memory": self.memory.by_class, "means": self.means}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self.memory.by_class = [rows.to(self.engine.device) for rows in state["memory"]]
        self.means = state["means"].to(self.engine.device)
