"""BiC, bias correction: WA's loss, then two numbers a step that put the new classes' scores on a par with the old.

Wu et al., "Large Scale Incremental Learning", CVPR 2019. Where PyCIL's code departs from the paper, the paper is
followed: in the second stage the network is frozen, batch-norm statistics too, and the loss is a softmax cross-entropy
(in PyCIL the statistics move on there, and the loss takes a softmax twice).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from ffcil.losses import cross_entropy
from ffcil.methods.icarl import ICaRLConfig
from ffcil.methods.learner import LearnerSettings, MethodConfig, register
from ffcil.methods.wa import WA
from ffcil.models.heads import GrowingLinear
from ffcil.stream import Increment
from ffcil.training.fit import FitData, Rate, derive_seed, fit


class BiCConfig(ICaRLConfig):
    """BiC's own fields."""

    held_out: float = Field(0.1, gt=0, lt=1)
    """share of a class's exemplars that are kept from training, to learn the correction on"""
    correction_steps: int = Field(100, ge=1)
    """about how many optimiser steps the correction takes where the epochs of a step over so few images are fewer"""


class CorrectedLinear(GrowingLinear):
    """A growing head whose scores o are corrected step by step: q = alpha o + beta for the classes of a step, eq. (4).

    A copy of it is a corrected teacher.
    """

    def __init__(self, features: int) -> None:
        super().__init__(features)
        self.pairs = nn.ParameterList()
        """(alpha, beta) of each step, [2]; (1, 0) until it is learnt"""
        self.sizes: list[int] = []
        """classes of each step"""

    def grow(self, classes: int, features: int | None = None, blind: bool = False) -> None:
        self.sizes.append(classes - self.classes)
        super().grow(classes, features, blind)
        self.pairs.append(nn.Parameter(torch.tensor([1.0, 0.0], device=self.weight.device), requires_grad=False))

    def forward(self, features: Tensor) -> Tensor:
        """[B, D] -> [B, classes]"""
        of_class = torch.cat([pair.expand(size, 2) for pair, size in zip(self.pairs, self.sizes, strict=True)])
        return super().forward(features) * of_class[:, 0] + of_class[:, 1]


@register("bic")
class BiC(WA):
    """Stage one trains as WA, with corrected scores of teacher and student. Stage two learns alpha and beta of the new
    classes on images that stage one did not see, the same number of every class, with everything else frozen.
    """

    title = "BiC"
    paper = "https://arxiv.org/abs/1905.13260"
    Config = BiCConfig
    config: BiCConfig
    own_alignment = "none"  # the correction is there for the same bias

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__(settings, config)
        self.head: CorrectedLinear = CorrectedLinear(self.backbone.feature_dim).to(self.engine.device)

    def available(self, increment: Increment) -> list[Tensor]:
        """Rows of each class seen: exemplars of the old, all images of the new."""
        return [rows.to(increment.rows.device) for rows in (*self.memory.by_class, *increment.rows_by_class())]

    def held_out(self, increment: Increment) -> list[Tensor]:
        """Rows of each class seen on which a step's correction is learnt, at least one of every class.

        Drawn anew at each step from the memory that it began with, by seed and step alone. A class gives its share of
        the exemplars that it has, or, being new, would have had among the old classes: no more than it can spare where
        few classes share a large memory.
        """
        quota = self.memory.quota(increment.seen_before)
        shuffle = torch.Generator().manual_seed(derive_seed(self.settings.seed, increment.step, "held out"))
        chosen = []
        for rows in self.available(increment):
            count = max(1, int(self.config.held_out * min(quota, len(rows))))
            chosen.append(rows[torch.randperm(len(rows), generator=shuffle)[:count].to(rows.device)])
        return chosen

    def training_rows(self, increment: Increment) -> Tensor:
        if increment.seen_before == 0:  # nothing to correct
            return super().training_rows(increment)
        by_class = zip(self.available(increment), self.held_out(increment), strict=True)
        # the only image of a class cannot be spared: it is trained on and serves for the correction as well
        return torch.cat([rows[~torch.isin(rows, held)] if len(rows) > 1 else rows for rows, held in by_class])

    def finish(self, increment: Increment) -> dict[str, Any]:
        held_out = self.held_out(increment) if increment.seen_before else []  # before the memory changes
        notes = super().finish(increment)
        if held_out:
            self.correct(increment, held_out)
        return {**notes, "bias": [pair.tolist() for pair in self.head.pairs], "held_out": sum(map(len, held_out))}

    def correct(self, increment: Increment, held_out: list[Tensor]) -> None:
        """Stage two: minimise eq. (5) over alpha and beta of the newest step.

        Images are augmented and the schedule is that of stage one, as in PyCIL, drawn out where it is too short.
        A class with fewer images to spare gives them several times, so that the set stays balanced.
        """
        most = max(map(len, held_out))
        rows = torch.cat([held[torch.arange(most, device=held.device) % len(held)] for held in held_out])
        phase, steps = self.phase(increment), math.ceil(len(rows) / self.settings.train.batch)
        phase = phase.scaled(max(1.0, self.config.correction_steps / (steps * phase.epochs)))
        pair = self.head.pairs[-1].requires_grad_(True)
        with torch.enable_grad():
            fit(
                self.correction_loss,
                [Rate([pair])],
                FitData(increment.train, rows, self.settings.augmentation),
                phase,
                self.settings.train,
                self.engine,
                derive_seed(self.settings.seed, increment.step, "correction"),
            )
        pair.requires_grad_(False)

    def correction_loss(self, images: Tensor, targets: Tensor) -> Tensor:
        with torch.no_grad():
            features = self.features(images)
        return self.reduce(cross_entropy(self.head(features), targets), targets)
