"""MOS: adapters that are drawn towards the mean of the earlier ones while they train; retrieval that corrects itself.

Sun et al., "MOS: Model Surgery for Pre-Trained Model-Based Class-Incremental Learning", AAAI 2025.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from ffcil.losses import cross_entropy
from ffcil.methods.learner import LearnerSettings, MethodConfig, register
from ffcil.methods.parts.step_adapters import StepAdapters, StepAdaptersConfig
from ffcil.models.heads import GrowingLinear, cosine
from ffcil.stream import Increment
from ffcil.training.fit import Rate

HEAD_DEVIATION = 0.02
"""of the head's fresh weights, as timm's heads have it: at a tenth of the rate it cannot unlearn a larger start"""
HEAD_RATE = 0.1
"""of the head, as a share of the adapters' learning rate"""
EVALUATIONS = 4
"""of the head in an image's retrieval, at most"""


class MOSConfig(StepAdaptersConfig):
    """MOS's own fields. `released` draws adapters towards the mean once a block and once more in every optimiser step,
    and then goes on with the mean itself: that is where the released code's evaluation leaves them."""

    merge_rate: float = Field(0.1, ge=0, le=1)
    """how far an optimiser step's merge draws the adapters towards the mean of the earlier ones"""
    contrastive_weight: float = Field(0.1, ge=0)
    """of the term that makes features and earlier class means unlike each other"""
    contrastive_temperature: float = Field(0.8, gt=0)
    """by which that term's dot products are divided"""


def retrieve(first: Tensor, following: Tensor, evaluations: int = EVALUATIONS) -> Tensor:
    """The adapter under which each image's head is evaluated last: int64 [B].

    From an adapter, the head's prediction names the next one; an image stops where adapter and prediction agree, or at
    the last evaluation. One that has stopped names itself, so all images can walk on together.

    Args:
        first: the adapter to begin with, [B]
        following: the adapter that the prediction under each adapter names, [B, T]
    """
    adapter = first
    for _ in range(evaluations - 1):
        adapter = following.gather(1, adapter[:, None])[:, 0]
    return adapter


@register("mos")
class MOS(StepAdapters):
    """Prototypes under the first step's adapters choose an adapter; the head under it may choose another.

    The contrastive term takes dot products as they are. It is nearly idle where a class mean is most like itself; on a
    network with long features of which the means are much shorter it outweighs the cross-entropy (the loss then rises
    from step to step): set contrastive_weight=0 there. At a step of one class it is all that trains, the cross-entropy
    being constant. HA stands before both classifiers, as before every prediction, and is trained through the head.
    """

    title = "MOS"
    paper = "https://arxiv.org/abs/2412.09441"
    Config = MOSConfig
    config: MOSConfig
    prototypes: Tensor
    stepped: Tensor

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__(settings, config)
        device = self.engine.device
        self.earlier = self.fresh_adapters().requires_grad_(False)
        """mean of the adapters that earlier steps trained"""
        self.register_buffer("prototypes", torch.empty(0, self.feature_dim, device=device))
        """mean feature of each class under the first step's adapters, [classes, D]"""
        self.register_buffer("stepped", torch.zeros((), device=device))
        """1 once this step has begun to optimise: there is then an optimiser step that no merge has followed yet"""

    def build_head(self) -> GrowingLinear:
        return GrowingLinear(self.feature_dim, HEAD_DEVIATION)

    def grow(self, increment: Increment) -> None:
        super().grow(increment)
        room = self.prototypes.new_zeros(len(increment.classes), self.feature_dim)
        self.prototypes = torch.cat([self.prototypes, room])
        self.stepped.zero_()

    # --- training -----------------------------------------------------------------------------------------------

    def rates(self) -> list[Rate]:
        return [Rate(list(self.adapters.parameters())), Rate(list(self.head.parameters()), HEAD_RATE)]

    def loss(self, images: Tensor, targets: Tensor) -> Tensor:
        if self.training and self.kept:
            # A merge belongs behind every optimiser step, which lies outside the loss. So each loss does the merge that
            # is due from the step before it, and `finish` the last. All of it is tensors: a captured graph replays it.
            # The released code also merges in each block's forward; here those merges come before the whole forward.
            self.merge(self.stepped + self.vit.depth if self.config.released else self.stepped)
            self.stepped.fill_(1)
        features = self.features(images)
        # without the old classes' logits, which is the same as with them at minus infinity
        per_sample = cross_entropy(self.head(features)[:, self.old_classes :], targets - self.old_classes)
        loss = self.reduce(per_sample, targets)
        return loss + self.config.contrastive_weight * self.contrastive(features, targets)

    def contrastive(self, features: Tensor, targets: Tensor) -> Tensor:
        """Each row, of the earlier class means and the batch together, is to be like none of the others; dot products
        as they are, not normalised. Rows have classes, an earlier mean its own: so the reduction applies."""
        rows = torch.cat([self.gaussians.means[: self.old_classes], features])  # [C_old + B, D]
        classes = torch.cat([torch.arange(self.old_classes, device=targets.device), targets])
        similarity = rows @ rows.T / self.config.contrastive_temperature
        return self.reduce(cross_entropy(similarity, torch.arange(len(rows), device=rows.device)), classes)

    @torch.no_grad()
    def merge(self, times: Tensor) -> None:
        """A <- (1 - a) A + a (mean of the earlier), `times` (a tensor, 0 allowed) times at once."""
        rate = 1 - (1 - self.config.merge_rate) ** times
        for own, earlier in zip(self.adapters.parameters(), self.earlier.parameters(), strict=True):
            own.lerp_(earlier, rate)

    def finish(self, increment: Increment) -> dict[str, Any]:
        if self.kept:
            self.merge(self.stepped)  # of the last optimiser step
        self.remember_adapters()
        return super().finish(increment)

    @torch.no_grad()
    def remember_adapters(self) -> None:
        """Take this step's adapters into the mean. The released code's evaluation, which pulls stored adapters on
        towards the mean of those before them with every batch, is taken where it ends: at that mean."""
        steps = len(self.kept)
        for own, earlier in zip(self.adapters.parameters(), self.earlier.parameters(), strict=True):
            before = earlier.clone()
            earlier.lerp_(own, 1 / (steps + 1))
            if self.config.released and steps:
                own.copy_(before)

    def settle(self, increment: Increment, features: Tensor, targets: Tensor) -> dict[str, Any]:
        notes = super().settle(increment, features, targets)
        if self.kept:
            features, targets = self.sweep(increment, partial(self.adapted, self.kept[0]))  # type: ignore[arg-type]
        for label in increment.classes:
            self.prototypes[label] = features[targets == label].mean(dim=0)
        return notes

    # --- prediction ---------------------------------------------------------------------------------------------

    def cached_scores(self, features: Tensor) -> dict[str, Tensor]:
        """Softmax of the head under the retrieved adapter, and of the prototypes, sharper with every step."""
        by_step = self.aligned_by_step(features)  # [B, T, D]
        of_prototypes = cosine(by_step[:, 0], self.prototypes)  # [B, C]
        of_head = self.classify(by_step)  # [B, T, C]
        retrieved = retrieve(self.step_of(of_prototypes.argmax(dim=-1)), self.step_of(of_head.argmax(dim=-1)))
        refined = of_head[torch.arange(len(retrieved), device=retrieved.device), retrieved]  # [B, C]
        steps = len(self.boundaries)
        return {self.classifiers[0]: refined.softmax(dim=1) + (steps * of_prototypes).softmax(dim=1)}
