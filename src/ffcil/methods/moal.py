"""MoAL: adapters that follow every step slowly, and ridge regression in closed form that goes over old classes again.

Gao et al., "Knowledge Memorization and Rumination for Pre-trained Model-based Class-Incremental Learning", CVPR 2025.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from ffcil.methods.learner import LearnerSettings, MethodConfig, register
from ffcil.methods.ranpac import RanPAC, RanPACConfig
from ffcil.models.analytic import fit_drift
from ffcil.models.heads import cosine
from ffcil.models.tuners import Tuning
from ffcil.stream import Increment


class MoALConfig(RanPACConfig):
    """MoAL's own fields."""

    hidden: PositiveInt = 15000
    """random features"""
    momentum: float = Field(0.999, ge=0, le=1)
    """alpha of eq. (5): share of the adapters that an epoch leaves as they were"""
    first_targets: float = Field(0.9, gt=0, le=1)
    """what features of the first step regress to; 0.9 in the published code, which the paper does not mention"""


@register("moal")
class MoAL(RanPAC):
    """One set of adapters; after each step's training it is the running mean of what the epochs left, eq. (5).

    Then: the means of the old classes are moved to where features are now; the step's features are memorised, eq. (9);
    features of old classes are made up from those of new ones and, where the new weights get them wrong, memorised too
    (ruminated, eq. (14)). `statistics.means` are the prototypes, so HA draws old features where they are now.

    Where paper and published code differ we follow the code: the map of the prototypes is linear (an MLP in the paper),
    features move from the new class's mean to the old one's (eq. (12) has the signs exchanged), and real features of
    the new classes are ruminated as well.

    Departures from the code:
    - Sums and two solutions a step in place of many small recursive updates: the same weights.
    - The map of the prototypes is found by ridge regression (`fit_drift`), not by 1000 epochs of SGD.
    - All features are of untouched images, as at test time; there, those that are memorised are of augmented ones.
    - Rows of new classes in the cosine head start random: from zero, the first gradient is about 1e12. The rows of the
      first step stay, where a new head is drawn there.

    Under class-wise mean all classes of a step weigh the same in the sums, and all classes seen in what may be
    ruminated. Lambda is chosen once, by the first step, unless `ridge_from` says otherwise.
    """

    title = "MoAL"
    paper = (
        "https://openaccess.thecvf.com/content/CVPR2025/html/Gao_Knowledge_Memorization_and_Rumination_for_"
        "Pre-trained_Model-based_Class-Incremental_Learning_CVPR_2025_paper.html"
    )
    Config = MoALConfig
    config: MoALConfig

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__(settings, config)
        self.running = copy.deepcopy(self.adapters).requires_grad_(False)
        """mean of the adapters over the epochs of a step, from the step before on"""
        self.earlier = copy.deepcopy(self.adapters).requires_grad_(False)
        """the adapters as the step before left them"""

    @staticmethod
    def draw_projection(projection: Tensor) -> Tensor:
        bound = projection.shape[1] ** -0.5
        return nn.init.uniform_(projection, -bound, bound)

    def trains(self, increment: Increment) -> bool:
        return True

    def grow(self, increment: Increment) -> None:
        super().grow(increment)
        for kept in (self.running, self.earlier):
            kept.load_state_dict(self.adapters.state_dict())

    def fixed_networks(self) -> Sequence[Callable[[Tensor], Tensor]]:
        return ()

    @torch.no_grad()
    def epoch_ended(self, increment: Increment) -> None:
        if increment.seen_before == 0:  # the first step adapts freely
            return
        for mean, now in zip(self.running.parameters(), self.adapters.parameters(), strict=True):
            mean.lerp_(now, 1 - self.config.momentum)

    def finish(self, increment: Increment) -> dict[str, Any]:
        if increment.seen_before:
            self.adapters.load_state_dict(self.running.state_dict())
        return super().finish(increment)

    def chooses_as_published(self, increment: Increment) -> bool:
        return increment.seen_before == 0

    def settle(self, increment: Increment, features: Tensor, targets: Tensor) -> dict[str, Any]:
        self.statistics.remember(features, targets)
        weights = self.weights(targets)
        if self.chooses(increment):
            self.analytic.choose(features, targets, self.generator(increment, "ridge"), weights)
        if increment.seen_before == 0:
            self.analytic.add(features, targets, weights)
            self.analytic.moments.mul_(self.config.first_targets)
            self.analytic.solve()
            return {"ridge": self.analytic.ridge.item(), "ruminated": 0}
        self._move_means(increment, features)
        self.analytic.add(features, targets, weights)
        self.analytic.solve()
        return {"ridge": self.analytic.ridge.item(), "ruminated": self._ruminate(increment, features, targets)}

    def _move_means(self, increment: Increment, features: Tensor) -> None:
        """The old classes' means to where the images of the step say that features went."""
        before, _ = self.sweep(increment, self._earlier_features)
        old = self.statistics.means[: increment.seen_before]
        old.copy_(fit_drift(before, features, self.generator(increment, "drift"))(old))

    def _earlier_features(self, images: Tensor) -> Tensor:
        return self.tuned(images, [Tuning(adapter) for adapter in self.earlier])  # type: ignore[arg-type]

    def _ruminate(self, increment: Increment, features: Tensor, targets: Tensor) -> int:
        """Memorise what the weights of now get wrong, of old and new classes; returns how much that was."""
        made_up, of_class = pseudo_features(features, targets, self.statistics.means, increment.seen_before)
        pool, labels = torch.cat([made_up, features]), torch.cat([of_class, targets])
        weights = self.weights(labels)
        wrong = self.analytic.predict(pool) != labels
        self.analytic.add(pool[wrong], labels[wrong], None if weights is None else weights[wrong])
        self.analytic.solve()
        return int(wrong.sum())


def pseudo_features(features: Tensor, targets: Tensor, means: Tensor, old_classes: int) -> tuple[Tensor, Tensor]:
    """Features of each old class: those of the new class whose mean is most like its own, moved to its mean.

    Args:
        features: of the new classes, [N, D]
        targets: their classes, [N]
        means: of all classes, [C, D], the first `old_classes` of them old

    Returns:
        features and their classes, old class by old class
    """
    like = old_classes + cosine(means[:old_classes], means[old_classes:]).argmax(dim=1)  # a new class for each old one
    moved = [features[targets == new] - means[new] + means[old] for old, new in enumerate(like.tolist())]
    classes = [torch.full((len(rows),), old, device=targets.device) for old, rows in enumerate(moved)]
    return torch.cat(moved), torch.cat(classes)
