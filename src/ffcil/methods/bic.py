"""BiC, bias correction: WA's loss, then two numbers per step that correct the scores of the step's classes.

Wu et al., "Large Scale Incremental Learning", CVPR 2019. Where PyCIL's code departs from the paper, this follows the
paper: in the second stage the network is frozen, batch-norm statistics included, and the loss is a softmax
cross-entropy (in PyCIL the statistics change there, and the loss applies a softmax twice).
"""

import math
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from ffcil.losses import cross_entropy
from ffcil.methods.conventional import REHEARSAL, Conventional
from ffcil.methods.icarl import ICaRLConfig
from ffcil.methods.learner import LearnerSettings, MethodConfig
from ffcil.methods.parts.exemplars import exemplars_per_class
from ffcil.methods.parts.teacher import Teacher
from ffcil.methods.registry import register
from ffcil.models.heads import GrowingLinear
from ffcil.stream import Increment
from ffcil.training.batches import ImageSource
from ffcil.training.fit import Optimisation, ParameterGroup, Training, fit
from ffcil.training.seeds import derive_seed


class BiCConfig(ICaRLConfig):
    """Fields of BiC."""

    held_out: float = Field(0.1, gt=0, lt=1)
    """Share of a class's exemplars that is held out from training for learning the correction."""
    correction_steps: int = Field(100, ge=1)
    """Approximate minimum of the correction's optimiser steps. If its epochs have fewer, there are more epochs."""


class CorrectedLinear(GrowingLinear):
    """A growing head with corrected scores, q = alpha o + beta, with one alpha and one beta per step, eq. (4).

    The teacher has a copy of it, so that its scores are corrected as well.
    """

    def __init__(self, features: int) -> None:
        super().__init__(features)
        self.pairs = nn.ParameterList()
        """(alpha, beta) of each step, [2]; (1, 0) until it is learned."""
        self.sizes: list[int] = []
        """Number of classes of each step."""

    def grow(self, classes: int, features: int | None = None, blind: bool = False) -> None:
        self.sizes.append(classes - self.classes)
        super().grow(classes, features, blind)
        self.pairs.append(nn.Parameter(torch.tensor([1.0, 0.0], device=self.weight.device), requires_grad=False))

    def forward(self, features: Tensor) -> Tensor:
        """[B, D] -> [B, classes]"""
        by_class = torch.cat([pair.expand(size, 2) for pair, size in zip(self.pairs, self.sizes, strict=True)])
        return super().forward(features) * by_class[:, 0] + by_class[:, 1]


@register("bic")
class BiC(Conventional):
    """Stage one trains like WA, with corrected scores of teacher and student. Stage two learns alpha and beta of the
    new classes on held-out images, the same number of every class, with everything else frozen.
    """

    title = "BiC"
    paper = "https://arxiv.org/abs/1905.13260"
    classifiers = REHEARSAL
    uses_memory = True
    retrains = True
    own_alignment = "none"  # the correction removes the same bias
    Config = BiCConfig
    config: BiCConfig

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__(settings, config)
        self.head: CorrectedLinear = CorrectedLinear(self.backbone.feature_dim).to(self.engine.device)
        self.teacher = Teacher(self.frozen_copy(self.backbone), self.engine)

    def grow(self, increment: Increment) -> None:
        self.teacher.copy_from(self.backbone, self.head)
        super().grow(increment)

    def loss(self, images: Tensor, targets: Tensor) -> Tensor:
        if not self.teacher.classes:
            return super().loss(images, targets)
        teacher = self.teacher.start(images)
        features = self.features(images)
        logits = self.head(features)
        distilled = self.config.distillation_weight * self.teacher.distillation(
            logits, teacher, self.config.temperature
        )
        classification = cross_entropy(logits, targets, self.prior)
        per_sample = self.teacher.weigh_by_share(classification, distilled, self.head.classes)
        return self.classification_loss(features, per_sample, targets)

    def available(self, increment: Increment) -> list[Tensor]:
        """Rows of each class seen, int64 [N_c]: exemplars of old classes, all images of new ones."""
        return [rows.to(increment.rows.device) for rows in (*self.exemplars.by_class, *increment.rows_by_class())]

    def held_out(self, increment: Increment) -> list[Tensor]:
        """Rows of each class seen on which the correction of a step is learned, at least one of every class.

        They are drawn again at each step, and depend only on the seed, the step and the memory at its start. Of an old
        class, a share of the exemplars is held out. Of a new class, the same share of the number of exemplars that it
        would have as an old class is held out.
        """
        quota = exemplars_per_class(self.settings.memory, increment.seen_before)
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
        # the only image of a class is used for both training and correction
        return torch.cat([rows[~torch.isin(rows, held)] if len(rows) > 1 else rows for rows, held in by_class])

    def finish(self, increment: Increment) -> dict[str, Any]:
        corrects = increment.seen_before > 0 and not self.waits
        held_out = self.held_out(increment) if corrects else []  # before the memory changes
        notes = super().finish(increment)
        if held_out:
            self.correct(increment, held_out)
        return {**notes, "bias": [pair.tolist() for pair in self.head.pairs], "held_out": sum(map(len, held_out))}

    def correct(self, increment: Increment, held_out: list[Tensor]) -> None:
        """Stage two: minimise eq. (5) over alpha and beta of the newest step.

        As in PyCIL, images are augmented, and the schedule is that of stage one, here prolonged if it is too short. The
        images of a class with fewer held-out images are repeated, so that the set is balanced.
        """
        most = max(map(len, held_out))
        rows = torch.cat([held[torch.arange(most, device=held.device) % len(held)] for held in held_out])
        batches = math.ceil(len(rows) / self.settings.train.batch)
        phase = self.phase(increment).lasting(batches, self.config.correction_steps)
        pair = self.head.pairs[-1].requires_grad_(True)
        settings = self.settings
        correction = Training(
            self.correction_loss,
            [ParameterGroup([pair])],
            ImageSource(increment.train, rows, settings.augmentation, settings.train.batch),
            Optimisation.of_phase(phase, settings.train.momentum),
            derive_seed(settings.seed, increment.step, "correction"),
        )
        fit(correction, self.engine)
        pair.requires_grad_(False)

    def correction_loss(self, images: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy of corrected scores. Only alpha and beta get gradients."""
        with torch.no_grad():
            features = self.features(images)
        return self.reduce(cross_entropy(self.head(features), targets), targets)
