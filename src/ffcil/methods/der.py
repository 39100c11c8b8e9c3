"""DER: a new feature extractor at every step beside the frozen earlier ones, one head over all of their features.

Yan et al., CVPR 2021, in the form in which PyCIL and the field run it: expansion without pruning, weight alignment in
place of the balanced second stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch
from pydantic import Field
from torch import Tensor, nn

from ffcil.losses import cross_entropy
from ffcil.methods.learner import LearnerSettings, MethodConfig, register
from ffcil.methods.replay import Replay
from ffcil.models.heads import GrowingLinear
from ffcil.stream import Increment


class DERConfig(MethodConfig):
    """DER's own fields."""

    auxiliary_weight: float = Field(1.0, ge=0)
    """of the auxiliary loss, which tells the new classes apart by the new extractor alone"""


@register("der")
class DER(Replay):
    """`backbone` is the extractor that is trained; `frozen` are copies of what it was at the end of each earlier step.

    So a new extractor starts as a full copy of the one before it, with its batch-norm statistics.
    """

    title = "DER"
    paper = "https://arxiv.org/abs/2103.16788"
    Config = DERConfig
    config: DERConfig
    own_alignment = "wa"

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__(settings, config)
        self.frozen = nn.ModuleList()
        self.auxiliary = GrowingLinear(self.backbone.feature_dim)
        self.old_classes = 0

    # --- growing --------------------------------------------------------------------------------------------------

    def grow(self, increment: Increment) -> None:
        self.old_classes = increment.seen_before
        if self.old_classes:
            self.freeze()
            # new classes, and one class for all old ones; made anew at every step
            self.auxiliary = GrowingLinear(self.backbone.feature_dim).to(self.engine.device)
            self.auxiliary.grow(len(increment.classes) + 1)
        super().grow(increment)

    def freeze(self) -> None:
        """Keep the extractor as it is; what is trained from now on is its successor."""
        self.frozen.append(self.frozen_copy(self.backbone))

    def grow_head(self, increment: Increment) -> None:
        self.head.grow(increment.seen_now, self.backbone.feature_dim * (len(self.frozen) + 1))

    # --- features -------------------------------------------------------------------------------------------------

    def features(self, images: Tensor) -> Tensor:
        """Of all extractors, oldest first, [B, D * extractors]."""
        frozen = self.frozen_features(images)
        return torch.cat([*frozen(), super().features(images)], dim=1)

    def frozen_features(self, images: Tensor) -> Callable[[], list[Tensor]]:
        """Starts the frozen extractors beside what follows; the returned function gives their features, [B, D] each."""
        started = [
            self.engine.aside(partial(self.without_gradients, extractor, images), lane)
            for lane, extractor in enumerate(self.frozen)
        ]
        return lambda: [join() for join in started]

    def without_gradients(self, extractor: nn.Module, images: Tensor) -> Tensor:
        with torch.no_grad(), self.engine.autocast():
            features: Tensor = extractor(images)
        return features.float()

    def newest(self, features: Tensor) -> Tensor:
        """The trained extractor's part of all features."""
        return features[:, -self.backbone.feature_dim :]

    # --- training and prediction ----------------------------------------------------------------------------------

    def loss(self, images: Tensor, targets: Tensor) -> Tensor:
        features = self.features(images)
        per_sample = cross_entropy(self.head(features), targets)
        if self.old_classes:
            per_sample = per_sample + self.config.auxiliary_weight * self.auxiliary_loss(features, targets)
        return self.reduce(per_sample, targets) + self.spread(features, targets)

    def auxiliary_loss(self, features: Tensor, targets: Tensor) -> Tensor:
        """[B]; under the class-wise mean a sample counts by its own class, not by `old` as one class."""
        among_new = (targets - self.old_classes + 1).clamp_min(0)
        return cross_entropy(self.auxiliary(self.newest(features)), among_new)

    def deployed(self) -> Iterable[nn.Module]:
        return [*super().deployed(), self.frozen]

    def test_scores(self, increment: Increment) -> Iterator[dict[str, Tensor]]:
        """What networks that no longer change say of a test image is computed once in a run."""
        networks = self.fixed_networks()
        fixed = self.cached_test_features(increment, networks) if networks else None
        done = 0
        for moving in self.over(increment.test.images, increment.test_rows, self.moving_features):
            features = moving if fixed is None else torch.cat([fixed[done : done + len(moving)], moving], dim=1)
            yield self.scores(features)
            done += len(moving)

    def fixed_networks(self) -> list[Callable[[Tensor], Tensor]]:
        """From images to the leading columns of `features` that will never change."""
        return [partial(self.without_gradients, extractor) for extractor in self.frozen]

    def moving_features(self, images: Tensor) -> Tensor:
        """The other columns of `features`."""
        return super().features(images)
