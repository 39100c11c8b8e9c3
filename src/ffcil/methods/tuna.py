"""TUNA: an image is classified by the adapters that are most certain of it, and by universal adapters fused from all.

Wang et al., "Integrating Task-Specific and Universal Adapters for Pre-Trained Model-based Class-Incremental Learning",
ICCV 2025.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from ffcil.losses import cross_entropy
from ffcil.methods.learner import LearnerSettings, MethodConfig
from ffcil.methods.parts.adapters import StepAdapters
from ffcil.methods.parts.gaussians import GaussianHeadConfig, HeadTraining, class_gaussians
from ffcil.methods.parts.spaces import step_of
from ffcil.methods.pretrained import Network, Pretrained
from ffcil.methods.registry import register
from ffcil.models.heads import GrowingCosine, cosine
from ffcil.stream import Increment


class TUNAConfig(GaussianHeadConfig):
    """TUNA's own fields. With `released`, predictions use the newest adapters instead of the universal ones, which the
    released code computes but never uses, and `mean_decay` shortens the means of newer classes instead of older ones.
    """

    scale: float = Field(20.0, gt=0)
    """Factor on cosines."""
    margin: float = Field(0.0, ge=0)
    """Margin that training subtracts from the cosine with an image's own class."""
    orthogonality: float = Field(0.001, ge=0)
    """Weight of the term that makes the adapters' up-projections dissimilar to earlier ones. Every step divides it by
    e."""
    mean_decay: bool = True
    """Whether the head's second training shortens the means of older classes, to no less than 0.9 of their length."""
    head_period: PositiveInt = 5
    """Number of epochs in which the learning rate of the second training falls to zero, after which it rises again."""


def cosface(cosines: Tensor, targets: Tensor, scale: float, margin: float) -> Tensor:
    """Cross-entropy of scale * cosine, with a margin subtracted from the cosine of the own class: [B, C], [B] -> [B]

    For a single class it is always 0."""
    own = targets[:, None] == torch.arange(cosines.shape[1], device=targets.device)
    return cross_entropy(scale * (cosines - margin * own), targets)


def fuse(values: Tensor) -> Tensor:
    """Fuse the same weight of T sets of adapters: [T, ...] -> [...]

    The sign is that of the mean (minus if the mean is 0). The magnitude is the largest among values of that sign, or 0
    if there are none."""
    sign = torch.where(values.mean(dim=0) > 0, 1.0, -1.0).to(values.dtype)
    return sign * (sign * values).clamp_min(0).amax(dim=0)


def mean_directions(adapters: Iterable[nn.Module]) -> Tensor:
    """Mean of the rows of each up-projection, scaled to length 1 before: [blocks, rank]

    The dot product of two such means is the mean cosine over all pairs of rows of the two projections."""
    rows = torch.stack([adapter.up.weight for adapter in adapters])  # type: ignore[union-attr, misc]
    return F.normalize(rows, dim=-1).mean(dim=1)


def decay_of_means(steps: Tensor, now: int) -> Tensor:
    """Factor on the mean of each class, [C], from its step and the newest step, counted from 0. It is 1 for the newest
    step and smaller for earlier ones."""
    return 0.9 + 0.1 * (steps + 1) / (now + 1)


@register("tuna")
class TUNA(Pretrained):
    """A score is the sum of two probabilities: under the most certain adapters of a step, and under the universal ones.

    The adapters of a step start from those of the step before. After a step's training, the head of all classes is
    trained again on features drawn from the Gaussians of all classes, each in the space of its own step.

    In a step with a single class the cross-entropy is constant, so only weight decay and, from the second step on, the
    term of orthogonality change its adapters. The second training of the head then learns the class."""

    title = "TUNA"
    paper = "https://arxiv.org/abs/2508.08165"
    classifiers: ClassVar[Mapping[str, str]] = {"ensemble": "ensemble"}
    Config = TUNAConfig
    config: TUNAConfig
    trains_prototypes = True
    directions: Tensor

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__(settings, config)
        device, config = self.engine.device, self.config
        self.steps = StepAdapters(self.fresh_adapters(config.rank))
        self.gaussians = class_gaussians(self.feature_dim, config.diagonal).to(device)
        self.head = GrowingCosine(self.feature_dim, config.scale, learn_scale=False).to(device)
        self.head_training = HeadTraining.create(settings, config, config.head_period)
        self.universal = self.fresh_adapters(config.rank).requires_grad_(False)
        """Adapters fused from those of all steps. Every step fuses them again."""
        self.register_buffer("directions", torch.empty(0, self.vit.depth, config.rank, device=device))
        """`mean_directions` of the adapters of each earlier step, [T - 1, blocks, rank]"""

    @torch.no_grad()
    def grow(self, increment: Increment) -> None:
        super().grow(increment)
        if self.opens_space:
            self.steps.keep_newest()
            self.directions = torch.cat([self.directions, mean_directions(self.steps.newest)[None]])
        self.steps.newest.requires_grad_(self.tunes)
        self.gaussians.grow(increment.seen_now)
        self.head.grow(increment.seen_now)

    def features(self, images: Tensor) -> Tensor:
        return self.adapted(self.steps.newest, images)

    def loss(self, images: Tensor, targets: Tensor) -> Tensor:
        features = self.features(images)
        cosines = cosine(features, self.head.weight[self.old_classes :])  # with the new classes only
        per_sample = cosface(cosines, targets - self.old_classes, self.config.scale, self.config.margin)
        loss = self.reduce(per_sample, targets) + self.centre_loss(features, targets)
        if not self.steps.kept or not self.config.orthogonality:
            return loss
        return loss + self.config.orthogonality * math.exp(-len(self.boundaries)) * self.overlap()

    def overlap(self) -> Tensor:
        """Overlap of the up-projections with those of earlier steps: the mean over blocks, summed over steps.

        The earlier ones are constants here. In the released code this term changes them, too, but not the Gaussians of
        their classes.
        """
        products = (self.directions * mean_directions(self.steps.newest)).sum(dim=-1)  # [T - 1, blocks]
        return products.abs().mean(dim=1).sum()

    def finish(self, increment: Increment) -> dict[str, Any]:
        self.fuse_adapters()
        return super().finish(increment)

    @torch.no_grad()
    def fuse_adapters(self) -> None:
        """Fuse the adapters of all steps into the universal ones."""
        sets = [list(adapters.parameters()) for adapters in self.steps]
        for universal, *of_steps in zip(self.universal.parameters(), *sets, strict=True):
            universal.copy_(fuse(torch.stack(of_steps)))

    def fit_classifier(self, increment: Increment, features: Tensor, targets: Tensor) -> dict[str, Any]:
        self.gaussians.remember(features, targets)
        if not increment.seen_before and self.tunes:  # this step has trained all classes of the head together
            return {}
        generator = self.generator(increment, "drawn features")
        return {"head_loss": self.head_training.train(self.head, self.gaussians, generator, self.mean_scale())}

    def mean_scale(self) -> Tensor | None:
        """Factor on the mean of each class in the second training of the head, [C]; None if `mean_decay` is off."""
        if not self.config.mean_decay:
            return None
        classes = torch.arange(self.gaussians.classes, device=self.engine.device)
        now = len(self.boundaries) - 1
        if self.config.released:
            # it computes the step of a class with the newest step's size, of the wrong sign, for all classes
            return decay_of_means(classes // (self.old_classes - self.boundaries[-1]), now)
        return decay_of_means(step_of(classes, self.boundaries), now)

    def fixed_networks(self) -> Sequence[Network]:
        return [partial(self.adapted, adapters) for adapters in self.steps] if self.is_tuned else []

    @property
    def uses_universal(self) -> bool:
        """Whether predictions use the universal adapters. In the first step they equal those of the step."""
        return bool(self.steps.kept) and not self.config.released

    def changing_network(self) -> Network | None:
        if self.uses_universal:
            return partial(self.adapted, self.universal)
        return super().changing_network()

    def classify(self, features: Tensor) -> Tensor:
        scores: Tensor = self.head(features)
        return scores

    def score_features(self, features: Tensor) -> Tensor:
        by_step = features.unflatten(1, (-1, self.feature_dim))[:, : len(self.spaces)]  # [B, T, D]
        probabilities = self.classify(self.aligned(by_step)).softmax(dim=-1)  # [B, T, C]
        surest = torch.special.entr(probabilities).sum(dim=-1).argmin(dim=1)  # least entropy, [B]
        chosen = probabilities[torch.arange(len(surest), device=surest.device), surest]  # [B, C]
        if not self.uses_universal:
            return chosen + probabilities[:, -1]
        universal = features[:, -self.feature_dim :]
        return chosen + self.classify(self.aligned(universal)).softmax(dim=-1)

    def deployed(self) -> Iterable[nn.Module]:
        return [module for module in super().deployed() if self.uses_universal or module is not self.universal]
