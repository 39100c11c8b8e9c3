"""RanPAC: the first step tunes the network, then ridge regression on random features of it, in closed form.

McDonnell et al., "RanPAC: Random Projections and Pre-trained Models for Continual Learning", NeurIPS 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, Literal

from pydantic import PositiveInt
from torch import Tensor, nn

from ffcil.losses import class_wise_mean
from ffcil.methods.aper import AdapterConfig, TunedFirst
from ffcil.methods.learner import LearnerSettings, MethodConfig, register
from ffcil.models.analytic import AnalyticHead, class_balanced
from ffcil.stream import Increment

SCALE = 20.0
"""on scores that regress to 0 and 1, for the softmax that HA is trained by; the highest score does not depend on it"""


class RanPACConfig(AdapterConfig):
    """RanPAC's own fields."""

    hidden: PositiveInt = 10000
    """random features"""
    ridge_from: Literal["published", "largest"] = "published"
    """whose images choose lambda. `published`: each step's own (RanPAC), the first step's (MoAL). `largest`: those of
    the step of the most classes so far, for streams of unequal steps: one or two classes choose badly for all others"""


@register("ranpac")
class RanPAC(TunedFirst):
    """Sums over all steps; lambda is chosen anew at every step, by its own images alone, or as `ridge_from` says.

    Under class-wise mean the classes of a step weigh the same in the sums and in the choice of lambda; the step as a
    whole weighs what its images do.
    """

    title = "RanPAC"
    paper = "https://arxiv.org/abs/2307.02251"
    classifiers = ("analytic",)
    Config = RanPACConfig
    config: RanPACConfig

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__(settings, config)
        self.analytic = AnalyticHead(self.feature_dim, self.config.hidden, self.draw_projection)
        self.analytic.to(self.engine.device)

    @staticmethod
    def draw_projection(projection: Tensor) -> Tensor:
        """Of the random features, [H, D], in place."""
        return nn.init.normal_(projection)

    def grow(self, increment: Increment) -> None:
        super().grow(increment)
        self.analytic.grow(increment.seen_now)

    def features(self, images: Tensor) -> Tensor:
        return self.adapted(images)

    def classify(self, features: Tensor) -> Tensor:
        scores: Tensor = self.analytic(features)
        return SCALE * scores

    def weights(self, targets: Tensor) -> Tensor | None:
        """Of samples in the sums; None: one each."""
        return class_balanced(targets) if self.reduce is class_wise_mean else None

    def chooses_as_published(self, increment: Increment) -> bool:
        """Whether the step's images choose lambda in the published method."""
        return True

    def chooses(self, increment: Increment) -> bool:
        """Whether they choose it here."""
        if self.config.ridge_from == "published":
            return self.chooses_as_published(increment)
        earlier = [last - first for first, last in pairwise([0, *self.boundaries[:-1]])]
        return len(increment.classes) > max(earlier, default=0)

    def settle(self, increment: Increment, features: Tensor, targets: Tensor) -> dict[str, Any]:
        weights = self.weights(targets)
        if self.chooses(increment):
            self.analytic.choose(features, targets, self.generator(increment, "ridge"), weights)
        self.analytic.add(features, targets, weights)
        self.analytic.solve()
        return {"ridge": self.analytic.ridge.item()}

    def fixed_networks(self) -> Sequence[Callable[[Tensor], Tensor]]:
        return [self.features]

    def deployed(self) -> Iterable[nn.Module]:
        return [*super().deployed(), self.analytic]
