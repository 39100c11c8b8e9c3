"""MOS: adapters are pulled towards the mean of the earlier ones while they train; adapter retrieval refines itself.

Sun et al., "MOS: Model Surgery for Pre-Trained Model-Based Class-Incremental Learning", AAAI 2025.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from ffcil.losses import cross_entropy
from ffcil.methods.learner import LearnerSettings, MethodConfig
from ffcil.methods.parts.adapters import StepAdapters
from ffcil.methods.parts.gaussians import GaussianHeadConfig, HeadTraining, class_gaussians
from ffcil.methods.parts.prototypes import Prototypes
from ffcil.methods.parts.spaces import step_of
from ffcil.methods.pretrained import Network, Pretrained
from ffcil.methods.registry import register
from ffcil.models.heads import GrowingLinear, cosine
from ffcil.stream import Increment
from ffcil.training.fit import ParameterGroup, Training

HEAD_DEVIATION = 0.02
"""Standard deviation of the head's initial weights, as in timm. At a tenth of the learning rate, the head would not
unlearn larger ones."""
HEAD_RATE = 0.1
"""Factor on the learning rate for the head."""
EVALUATIONS = 4
"""Largest number of times that the head is evaluated in the retrieval for an image."""


class MOSConfig(GaussianHeadConfig):
    """MOS's own fields. With `released`, every optimiser step merges the adapters with the mean once per block and once
    more. After the training, the mean replaces them, because the evaluation in the released code ends there."""

    merge_rate: float = Field(0.1, ge=0, le=1)
    """Weight of the mean of the earlier adapters in the merge after every optimiser step."""
    contrastive_weight: float = Field(0.1, ge=0)
    """Weight of the term that makes features and earlier class means dissimilar."""
    contrastive_temperature: float = Field(0.8, gt=0)
    """Temperature of the contrastive term, by which its dot products are divided."""


def retrieve(first: Tensor, following: Tensor, evaluations: int = EVALUATIONS) -> Tensor:
    """Step of the adapters that are retrieved for each image, int64 [B].

    The prediction of the head under a set of adapters names the next set: that of the predicted class's step. An image
    stops if both sets are the same, or at the last evaluation. An image that has stopped names the same set again, so
    all images can proceed together.

    Args:
        first: Step of the adapters to start from, [B].
        following: Step that the prediction under the adapters of each step names, [B, T].
    """
    adapters = first
    for _ in range(evaluations - 1):
        adapters = following.gather(1, adapters[:, None])[:, 0]
    return adapters


@register("mos")
class MOS(Pretrained):
    """Prototypes under the first step's adapters choose adapters for an image, and the head refines the choice.

    The adapters of a step start from those of the step before. After a step's training, the head of all classes is
    trained again on features drawn from the Gaussians of all classes, each in the space of its own step.

    The contrastive term uses dot products without normalisation. It has little effect if a class mean is most similar
    to itself. On a network whose features are long and whose class means are much shorter, it outweighs the
    cross-entropy, and the loss rises from step to step: set contrastive_weight=0 there. In a step with a single class
    only this term trains, because the cross-entropy is constant. HA precedes both classifiers. It is trained through
    the head.
    """

    title = "MOS"
    paper = "https://arxiv.org/abs/2412.09441"
    classifiers: ClassVar[Mapping[str, str]] = {"ensemble": "ensemble"}
    Config = MOSConfig
    config: MOSConfig
    training_only = ("earlier",)
    stepped: Tensor

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__(settings, config)
        device, width = self.engine.device, self.feature_dim
        self.steps = StepAdapters(self.fresh_adapters(self.config.rank))
        self.gaussians = class_gaussians(width, self.config.diagonal).to(device)
        self.head = GrowingLinear(width, HEAD_DEVIATION).to(device)
        self.head_training = HeadTraining.create(settings, self.config, period=max(self.config.head_epochs, 1))
        self.earlier = self.fresh_adapters(self.config.rank).requires_grad_(False)
        """Mean of the adapters that earlier steps trained."""
        self.prototypes = Prototypes(width).to(device)
        """Prototypes under the first step's adapters."""
        self.register_buffer("stepped", torch.zeros((), device=device))
        """1 if this step has taken an optimiser step, after which a merge is due; else 0."""

    def grow(self, increment: Increment) -> None:
        super().grow(increment)
        if self.opens_space:
            self.steps.keep_newest()
        self.steps.newest.requires_grad_(self.tunes)
        for part in (self.gaussians, self.head, self.prototypes):
            part.grow(increment.seen_now)
        self.stepped.zero_()

    def training_plan(self, increment: Increment) -> Training | None:
        if not self.tunes:
            return None
        adapters, head = list(self.steps.newest.parameters()), list(self.head.parameters())
        return self.train_on_images(increment, groups=[ParameterGroup(adapters), ParameterGroup(head, HEAD_RATE)])

    def features(self, images: Tensor) -> Tensor:
        return self.adapted(self.steps.newest, images)

    def loss(self, images: Tensor, targets: Tensor) -> Tensor:
        if self.training and self.steps.kept:
            # A merge follows every optimiser step, which is outside the loss. So each loss does the merge that is due
            # after the previous optimiser step, and `finish` does the last one. A captured graph can replay that. The
            # released code also merges in the forward pass of each block; here, these merges precede the whole pass.
            self.merge(self.stepped + self.vit.depth if self.config.released else self.stepped)
            self.stepped.fill_(1)
        features = self.features(images)
        # leaving out the logits of the old classes is the same as setting them to minus infinity
        per_sample = cross_entropy(self.head(features)[:, self.old_classes :], targets - self.old_classes)
        loss = self.reduce(per_sample, targets)
        return loss + self.config.contrastive_weight * self.contrastive(features, targets)

    def contrastive(self, features: Tensor, targets: Tensor) -> Tensor:
        """Loss that makes earlier class means and features of the batch dissimilar, by dot products of all pairs. Means
        count as samples of their classes in the reduction."""
        rows = torch.cat([self.gaussians.means[: self.old_classes], features])  # [C_old + B, D]
        classes = torch.cat([torch.arange(self.old_classes, device=targets.device), targets])
        similarity = rows @ rows.T / self.config.contrastive_temperature
        return self.reduce(cross_entropy(similarity, torch.arange(len(rows), device=rows.device)), classes)

    @torch.no_grad()
    def merge(self, times: Tensor) -> None:
        """A <- (1 - a) A + a (mean of the earlier adapters), applied `times` times at once; 0 changes nothing."""
        rate = 1 - (1 - self.config.merge_rate) ** times
        for own, earlier in zip(self.steps.newest.parameters(), self.earlier.parameters(), strict=True):
            own.lerp_(earlier, rate)

    def finish(self, increment: Increment) -> dict[str, Any]:
        if self.tunes:
            if self.steps.kept:
                self.merge(self.stepped)  # after the last optimiser step
            self.remember_adapters()
        return super().finish(increment)

    @torch.no_grad()
    def remember_adapters(self) -> None:
        """Add the adapters of this step to the mean.

        In the released code, every batch of an evaluation pulls stored adapters towards the mean of those before them.
        With `released`, they are set to that mean, to which they converge."""
        steps = len(self.steps.kept)
        for own, earlier in zip(self.steps.newest.parameters(), self.earlier.parameters(), strict=True):
            before = earlier.clone()
            earlier.lerp_(own, 1 / (steps + 1))
            if self.config.released and steps:
                own.copy_(before)

    def fit_classifier(self, increment: Increment, features: Tensor, targets: Tensor) -> dict[str, Any]:
        self.gaussians.remember(features, targets)
        notes = {}
        if increment.seen_before or not self.tunes:  # otherwise this step has trained all classes of the head together
            generator = self.generator(increment, "drawn features")
            notes["head_loss"] = self.head_training.train(self.head, self.gaussians, generator)
        if self.steps.kept:
            features, targets = self.extract_features(increment, self.networks()[0])
        self.prototypes.remember(features, targets)
        return notes

    def networks(self) -> list[Network]:
        """One network per set of adapters."""
        return [partial(self.adapted, adapters) for adapters in self.steps]

    def fixed_networks(self) -> Sequence[Network]:
        return self.networks() if self.is_tuned else []

    def classify(self, features: Tensor) -> Tensor:
        scores: Tensor = self.head(features)
        return scores

    def score_features(self, features: Tensor) -> Tensor:
        """Softmax of the head under the retrieved adapters, plus a softmax of the prototypes' cosines, whose factor is
        the number of spaces: [B, T * D] -> [B, C]"""
        by_step = self.aligned(features.unflatten(1, (-1, self.feature_dim)))  # [B, T, D]
        cosines = cosine(by_step[:, 0], self.prototypes.means)  # [B, C]
        scores = self.classify(by_step)  # [B, T, C]
        first, following = (step_of(each.argmax(dim=-1), self.spaces) for each in (cosines, scores))
        retrieved = retrieve(first, following)
        refined = scores[torch.arange(len(retrieved), device=retrieved.device), retrieved]  # [B, C]
        return refined.softmax(dim=1) + (len(self.spaces) * cosines).softmax(dim=1)
