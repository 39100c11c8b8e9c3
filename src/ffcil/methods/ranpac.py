"""RanPAC: the first step tunes the network; then ridge regression on random features of it, in closed form.

McDonnell et al., "RanPAC: Random Projections and Pre-trained Models for Continual Learning", NeurIPS 2023.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from ffcil.losses import class_wise_mean, cross_entropy
from ffcil.methods.learner import LearnerSettings, MethodConfig
from ffcil.methods.parts.adapters import OptionalAdapterConfig
from ffcil.methods.parts.analytic import SCALE, AnalyticConfig, is_largest_step
from ffcil.methods.pretrained import Pretrained
from ffcil.methods.registry import register
from ffcil.models.analytic import AnalyticHead
from ffcil.models.heads import GrowingCosine
from ffcil.stream import Increment
from ffcil.training.fit import Training


class RanPACConfig(OptionalAdapterConfig, AnalyticConfig):
    """RanPAC's own fields."""


@register("ranpac")
class RanPAC(Pretrained):
    """The head is solved from sums over all steps. Every step chooses lambda again from its own images, unless
    `ridge_from` is `largest` or `flow.shared_ridge` lets the images of all steps choose it.

    Adapters and a cosine head are trained in the first step, or in the first with `flow.enough` classes, and then
    frozen.

    With the class-wise mean, all classes seen have equal weights in the sums, and all classes of a step have equal
    weights in the choice of lambda. In any case, the sums do not depend on how the images are divided into steps.
    """

    title = "RanPAC"
    paper = "https://arxiv.org/abs/2307.02251"
    classifiers: ClassVar[Mapping[str, str]] = {"analytic": "analytic head"}
    Config = RanPACConfig
    config: RanPACConfig
    training_only = ("head",)
    fixed_features = True
    any_network = True
    chooses_ridge = True

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__(settings, config)
        self.adapters = self.fresh_adapters(self.config.rank)
        self.head = GrowingCosine(self.feature_dim).to(self.engine.device)
        """Head for the training of the adapters."""
        balanced, shared = self.reduce is class_wise_mean, settings.framework.shared_ridge
        analytic = AnalyticHead(self.feature_dim, self.config.hidden, nn.init.normal_, shared, balanced)
        self.analytic = analytic.to(self.engine.device)

    @property
    def tunes_network(self) -> bool:
        return self.config.rank > 0

    def grow(self, increment: Increment) -> None:
        super().grow(increment)
        self.analytic.grow(increment.seen_now)
        if self.tunes_first:
            self.head.grow(len(increment.classes))
        for part in (self.adapters, self.head):
            part.requires_grad_(self.tunes_first)

    def training_plan(self, increment: Increment) -> Training | None:
        return self.train_on_images(increment) if self.tunes_first else None

    def loss(self, images: Tensor, targets: Tensor) -> Tensor:
        return self.reduce(cross_entropy(self.head(self.features(images)), targets - self.old_classes), targets)

    def features(self, images: Tensor) -> Tensor:
        return self.adapted(self.adapters, images)

    def classify(self, features: Tensor) -> Tensor:
        scores: Tensor = self.analytic(features)
        return SCALE * scores

    def restart(self) -> None:
        self.analytic.restart()

    def fit_classifier(self, increment: Increment, features: Tensor, targets: Tensor) -> dict[str, Any]:
        shared = self.settings.framework.shared_ridge
        if shared or self.config.ridge_from == "published" or is_largest_step(self.boundaries):
            self.analytic.choose(features, targets, self.generator(increment, "ridge"))
        self.analytic.add(features, targets)
        self.analytic.solve()
        return {"ridge": self.analytic.ridge.item()}
