"""TUNA: an image takes the adapters that are surest of it, and one universal set fused from those of all steps.

Wang et al., "Integrating Task-Specific and Universal Adapters for Pre-Trained Model-based Class-Incremental Learning",
ICCV 2025.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from ffcil.losses import cross_entropy
from ffcil.methods.learner import LearnerSettings, MethodConfig, register
from ffcil.methods.parts.step_adapters import StepAdapters, StepAdaptersConfig
from ffcil.models.heads import GrowingCosine, cosine
from ffcil.stream import Increment


class TUNAConfig(StepAdaptersConfig):
    """TUNA's own fields. `released` takes the newest adapters in place of the universal ones, which the released code
    makes but never reaches, and lowers the means of newer classes where `mean_decay` is to lower those of older ones.
    """

    scale: float = Field(20.0, gt=0)
    """on cosines"""
    margin: float = Field(0.0, ge=0)
    """taken from the cosine with the own class in training"""
    orthogonality: float = Field(0.001, ge=0)
    """weight of the term that keeps the adapters' up-projections apart from the earlier ones'; it fades by e a step"""
    mean_decay: bool = True
    """in the head's second training, draw the older classes around shorter means: from 0.9 of them up to all"""
    head_period: PositiveInt = 5
    """epochs in which the second training's learning rate goes down to zero; then it rises again, and so on"""


def cosface(cosines: Tensor, targets: Tensor, scale: float, margin: float) -> Tensor:
    """Cross-entropy of scale * cosine, the own class's cosine less a margin: [B, C], [B] -> [B].

    Of one class alone it is 0 whatever the cosine."""
    own = targets[:, None] == torch.arange(cosines.shape[1], device=targets.device)
    return cross_entropy(scale * (cosines - margin * own), targets)


def fuse(values: Tensor) -> Tensor:
    """Of the same weight in T adapters, [T, ...] -> [...]: the sign is that of the mean, minus where that is 0; the
    magnitude is the largest among those of that sign, 0 where there is none."""
    sign = torch.where(values.mean(dim=0) > 0, 1.0, -1.0).to(values.dtype)
    return sign * (sign * values).clamp_min(0).amax(dim=0)


def mean_directions(by_block: Iterable[nn.Module]) -> Tensor:
    """Mean of the up-projection's rows, each at length 1: [blocks, rank].

    The mean over all pairs of rows of two projections' cosines is the product of two such means, with no table of
    [D, D]."""
    rows = torch.stack([adapter.up.weight for adapter in by_block])  # type: ignore[union-attr, misc]
    return F.normalize(rows, dim=-1).mean(dim=1)


def decay_of_means(steps: Tensor, now: int) -> Tensor:
    """Factor on the mean of a class, from the step at which it arrived (from 0) and the newest step: rises to 1."""
    return 0.9 + 0.1 * (steps + 1) / (now + 1)


@register("tuna")
class TUNA(StepAdapters):
    """At a step of one class the loss is constant: its adapters stay what the step before left, but for weight decay
    and, from the second step on, orthogonality. The class is then learned in the head's second training."""

    title = "TUNA"
    paper = "https://arxiv.org/abs/2508.08165"
    Config = TUNAConfig
    config: TUNAConfig
    directions: Tensor

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__(settings, config)
        self.universal = self.fresh_adapters().requires_grad_(False)
        """fused from the adapters of all steps, anew at each"""
        room = torch.empty(0, self.vit.depth, self.config.rank, device=self.engine.device)
        self.register_buffer("directions", room)
        """`mean_directions` of the adapters of each earlier step, [T - 1, blocks, rank]"""

    def build_head(self) -> GrowingCosine:
        return GrowingCosine(self.feature_dim, self.config.scale, learn_scale=False)

    @torch.no_grad()
    def grow(self, increment: Increment) -> None:
        super().grow(increment)
        if increment.seen_before:
            self.directions = torch.cat([self.directions, mean_directions(self.adapters)[None]])

    # --- training -----------------------------------------------------------------------------------------------

    def loss(self, images: Tensor, targets: Tensor) -> Tensor:
        cosines = cosine(self.features(images), self.head.weight[self.old_classes :])  # of the new classes alone
        per_sample = cosface(cosines, targets - self.old_classes, self.config.scale, self.config.margin)
        loss = self.reduce(per_sample, targets)
        if not self.kept or not self.config.orthogonality:
            return loss
        return loss + self.config.orthogonality * math.exp(-len(self.boundaries)) * self.overlap()

    def overlap(self) -> Tensor:
        """Of the up-projections with those of each earlier step: the mean over blocks, the sum over steps.

        The earlier ones are constants; in the released code this term moves them too, behind their statistics' back.
        """
        products = (self.directions * mean_directions(self.adapters)).sum(dim=-1)  # [T - 1, blocks]
        return products.abs().mean(dim=1).sum()

    def finish(self, increment: Increment) -> dict[str, Any]:
        self.fuse_adapters()
        return super().finish(increment)

    @torch.no_grad()
    def fuse_adapters(self) -> None:
        sets = [list(by.parameters()) for by in (*self.kept, self.adapters)]
        for universal, *of_steps in zip(self.universal.parameters(), *sets, strict=True):
            universal.copy_(fuse(torch.stack(of_steps)))

    @property
    def head_period(self) -> int:
        return self.config.head_period

    def mean_scale(self) -> Tensor | None:
        if not self.config.mean_decay:
            return None
        classes = torch.arange(self.gaussians.classes, device=self.engine.device)
        now = len(self.boundaries) - 1
        if self.config.released:  # it divides by the newest step's size with the wrong sign, whatever the others' were
            return decay_of_means(classes // (self.old_classes - self.boundaries[-1]), now)
        return decay_of_means(self.step_of(classes), now)

    # --- prediction ---------------------------------------------------------------------------------------------

    @property
    def uses_universal(self) -> bool:
        """At the first step the universal adapters are the only ones."""
        return bool(self.kept) and not self.config.released

    def universal_features(self, images: Tensor) -> Tensor:
        return self.adapted(self.universal, images)

    def scores(self, features: Tensor, universal: Tensor | None) -> dict[str, Tensor]:
        """From features under the adapters of every step, [B, T * D], and under the universal ones, [B, D]."""
        probabilities = self.classify(self.aligned_by_step(features)).softmax(dim=-1)  # [B, T, C]
        surest = torch.special.entr(probabilities).sum(dim=-1).argmin(dim=1)  # least entropy, [B]
        chosen = probabilities[torch.arange(len(surest), device=surest.device), surest]  # [B, C]
        if universal is not None:
            return {self.classifiers[0]: chosen + self.classify(self.aligned(universal)).softmax(dim=-1)}
        return {self.classifiers[0]: chosen + probabilities[:, -1]}

    def logits(self, images: Tensor) -> dict[str, Tensor]:
        return self.scores(self.side_by_side(images), self.universal_features(images) if self.uses_universal else None)

    def cached_scores(self, features: Tensor) -> dict[str, Tensor]:
        return self.scores(features, None)

    def test_scores(self, increment: Increment) -> Iterator[dict[str, Tensor]]:
        """As of every method with fixed networks; the universal adapters change at each step and are never cached."""
        if not self.uses_universal:
            yield from super().test_scores(increment)
            return
        fixed = self.cached_test_features(increment, self.fixed_networks()).split(self.settings.evaluate_batch)
        universal = self.over(increment.test.images, increment.test_rows, self.universal_features)
        for batch, fresh in zip(fixed, universal, strict=False):  # without test images the first still has one, of none
            yield self.scores(batch, fresh)

    def deployed(self) -> Iterable[nn.Module]:
        return [*super().deployed(), *([self.universal] if self.uses_universal else [])]
