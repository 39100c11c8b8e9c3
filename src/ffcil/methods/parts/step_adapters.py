"""`AdaptersPerStep`: a set of adapters a step, as EASE, MOS and TUNA have it. `StepAdapters`: what MOS and TUNA have in
common besides, one head that is trained a second time.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor, nn

from ffcil.methods.aper import AdapterConfig
from ffcil.methods.learner import LearnerSettings, MethodConfig
from ffcil.methods.parts.gaussians import ClassGaussians, HeadTraining, train_head
from ffcil.methods.pretrained import Pretrained
from ffcil.models.heads import GrowingCosine, GrowingLinear
from ffcil.models.tuners import Tuning, adapters
from ffcil.stream import Increment


class AdaptersPerStep(Pretrained):
    """The adapters of every step stay behind as they are, frozen, and give features of their own."""

    Config = AdapterConfig
    config: AdapterConfig

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__(settings, config)
        self.adapters = self.fresh_adapters()
        """of the newest step: the one object that is ever trained, so that a compiled network is compiled once"""
        self.kept = nn.ModuleList()
        """the adapters of every earlier step"""

    @property
    def old_classes(self) -> int:
        return self.boundaries[-2] if len(self.boundaries) > 1 else 0

    def step_of(self, classes: Tensor) -> Tensor:
        """The step, from 0, at which each class arrived."""
        return torch.bucketize(classes, torch.tensor(self.boundaries, device=classes.device), right=True)

    def fresh_adapters(self) -> nn.ModuleList:
        return adapters(self.vit.depth, self.vit.width, self.config.rank).to(self.engine.device)

    def grow(self, increment: Increment) -> None:
        super().grow(increment)
        if increment.seen_before:
            self.kept.append(copy.deepcopy(self.adapters).requires_grad_(False).eval())

    def adapted(self, by: Iterable[nn.Module], images: Tensor) -> Tensor:
        """Features under a set of adapters: [B, D]"""
        return self.tuned(images, [Tuning(adapter) for adapter in by])  # type: ignore[arg-type]

    def features(self, images: Tensor) -> Tensor:
        return self.adapted(self.adapters, images)

    def fixed_networks(self) -> Sequence[Callable[[Tensor], Tensor]]:
        """One a step: the newest adapters, too, are as they will be kept."""
        return [partial(self.adapted, by) for by in (*self.kept, self.adapters)]

    def side_by_side(self, images: Tensor) -> Tensor:
        """Features under the adapters of every step: [B, T * D]"""
        return torch.cat([network(images) for network in self.fixed_networks()], dim=1)

    def aligned_by_step(self, features: Tensor) -> Tensor:
        """[B, T * D] -> as the classifier gets them, [B, T, D]"""
        return self.aligned(features.unflatten(1, (-1, self.feature_dim)))

    def logits(self, images: Tensor) -> dict[str, Tensor]:
        return self.cached_scores(self.side_by_side(images))

    def deployed(self) -> Iterable[nn.Module]:
        return [*super().deployed(), self.adapters, self.kept]


class StepAdaptersConfig(AdapterConfig):
    """Fields of MOS and TUNA."""

    rank: PositiveInt = 16
    """of the adapters"""
    head_epochs: NonNegativeInt = 30
    """of the head's second training, on drawn features; 0: none"""
    head_learning_rate: float = Field(0.005, gt=0)
    """of the head's second training"""
    head_draws: PositiveInt | None = None
    """features drawn of every class in each of its epochs; left out: five times the batch"""
    diagonal: bool = False
    """draw from diagonal covariances instead of full ones"""
    released: bool = False
    """do as the authors' released code where it departs from their algorithm and results change"""


class StepAdapters(AdaptersPerStep):
    """A step's adapters go on from those of the step before.

    After a step's training, the Gaussians of its classes are taken under its own adapters, and the one head of all
    classes is trained again on features drawn from the Gaussians of all classes, each in its own space.
    """

    classifiers = ("ensemble",)
    Config = StepAdaptersConfig
    config: StepAdaptersConfig

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__(settings, config)
        self.gaussians = ClassGaussians(self.feature_dim, self.config.diagonal).to(self.engine.device)
        self.head = self.build_head().to(self.engine.device)

    # --- what a method says -------------------------------------------------------------------------------------

    @abstractmethod
    def build_head(self) -> GrowingLinear | GrowingCosine:
        """The classifier of all classes, with none yet."""

    @property
    def head_period(self) -> int:
        """Epochs in which the second training's learning rate goes down to zero."""
        return max(self.config.head_epochs, 1)

    def mean_scale(self) -> Tensor | None:
        """Factor on the mean of each class from which the second training draws, [C]; None: as they are."""
        return None

    # --- what both have -----------------------------------------------------------------------------------------

    def grow(self, increment: Increment) -> None:
        super().grow(increment)
        self.gaussians.grow(increment.seen_now)
        self.head.grow(increment.seen_now)

    def classify(self, features: Tensor) -> Tensor:
        scores: Tensor = self.head(features)
        return scores

    def settle(self, increment: Increment, features: Tensor, targets: Tensor) -> dict[str, Any]:
        self.gaussians.remember(features, targets, increment.classes)
        if not increment.seen_before:  # all of the head's classes were just learned together
            return {}
        training = HeadTraining(
            epochs=self.config.head_epochs,
            learning_rate=self.config.head_learning_rate,
            weight_decay=self.phase(increment).weight_decay,
            draws=self.config.head_draws or 5 * self.settings.train.batch,
            period=self.head_period,
        )
        draws = self.generator(increment, "drawn features")
        loss = train_head(self.head, self.gaussians, training, draws, self.engine, self.reduce, self.mean_scale())
        return {"head_loss": loss}

    def deployed(self) -> Iterable[nn.Module]:
        return [*super().deployed(), self.head]
