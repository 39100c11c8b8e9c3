"""EASE: every step adds fresh adapters, a subspace of its own; class means in all subspaces are the classifier.

Zhou et al., "Expandable Subspace Ensemble for Pre-Trained Model-Based Class-Incremental Learning", CVPR 2024.
"""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ffcil.losses import cross_entropy
from ffcil.methods.learner import LearnerSettings, MethodConfig
from ffcil.methods.parts.adapters import AdapterConfig, StepAdapters
from ffcil.methods.parts.prototypes import SCALE
from ffcil.methods.pretrained import Network, Pretrained
from ffcil.methods.registry import register
from ffcil.models.class_statistics import class_means
from ffcil.models.heads import GrowingCosine, cosine
from ffcil.stream import Increment
from ffcil.training.fit import Training


class EASEConfig(AdapterConfig):
    """EASE's own fields."""

    other_weight: float = Field(0.1, ge=0)
    """Weight alpha of the subspaces of all other steps together in the score of a class. The subspace of its own step
    has the weight 1."""
    refresh: bool = False
    """Whether prototypes are synthesised again at every step, from all classes seen by then, as in the authors'
    released code. In the paper they are synthesised once, from the classes that arrive with a subspace."""


def synthesise(old: Tensor, new: Tensor, new_in_later: Tensor) -> Tensor:
    """Prototypes of old classes in a later subspace: [O, D]

    They are weighted means of the new classes' prototypes in the later subspace. The weights are the similarities of
    old and new classes in the old classes' own subspace.

    Args:
        old: Prototypes of the old classes in their own subspace, [O, D].
        new: Prototypes of the new classes in the same subspace, [N, D].
        new_in_later: Prototypes of the new classes in the later subspace, [N, D].
    """
    return cosine(old, new).softmax(dim=1) @ new_in_later


@register("ease")
class EASE(Pretrained):
    """The score of a class is the cosine with its prototype in the subspace of its own step, plus alpha times the mean
    cosine in all other subspaces. Its prototypes in later subspaces are synthesised from the classes of those steps.

    A step with a single class has nothing to discriminate. It is not trained, its subspace is that of the untuned
    network, and all older classes get the prototype of that class there.

    HA is applied to the features of every subspace. It is trained only with the prototype of each class in its own
    subspace, because features of a drawn class in other subspaces are not available.
    """

    title = "EASE"
    paper = "https://arxiv.org/abs/2403.12030"
    Config = EASEConfig
    config: EASEConfig
    trains_prototypes = True
    compares_means = True
    compares_spaces = True
    training_only = ("head",)
    prototypes: Tensor

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__(settings, config)
        self.steps = StepAdapters(self.fresh_adapters(self.config.rank))
        self.head = GrowingCosine(self.feature_dim).to(self.engine.device)
        """Head for the training of the newest step."""
        self.register_buffer("prototypes", torch.empty(0, 0, self.feature_dim, device=self.engine.device))
        """Prototype of each class in the subspace of each step, [classes, steps, D]: a mean feature, or a synthesised
        one."""

    def grow(self, increment: Increment) -> None:
        super().grow(increment)
        if self.opens_space:
            self.steps.keep_newest()
            self.steps.newest.load_state_dict(self.fresh_adapters(self.config.rank).state_dict())
        self.head = GrowingCosine(self.feature_dim).to(self.engine.device)
        self.head.grow(len(increment.classes))
        for part in (self.steps.newest, self.head):
            part.requires_grad_(self.tunes and len(increment.classes) > 1)
        new_spaces = len(self.spaces) - self.prototypes.shape[1]
        self.prototypes = F.pad(self.prototypes, (0, 0, 0, new_spaces, 0, len(increment.classes)))

    def training_plan(self, increment: Increment) -> Training | None:
        # the cross-entropy of a single class is 0, and fresh adapters change nothing
        return super().training_plan(increment) if len(increment.classes) > 1 else None

    def features(self, images: Tensor) -> Tensor:
        return self.adapted(self.steps.newest, images)

    def loss(self, images: Tensor, targets: Tensor) -> Tensor:
        features = self.features(images)
        loss = self.reduce(cross_entropy(self.head(features), targets - self.old_classes), targets)
        return loss + self.centre_loss(features, targets)

    def fit_classifier(self, increment: Increment, features: Tensor, targets: Tensor) -> dict[str, Any]:
        *earlier, _ = self.networks()
        for space, network in enumerate(earlier):
            means = class_means(*self.extract_features(increment, network), increment.classes)
            self.prototypes[increment.seen_before :, space] = means
        classes = targets.unique()
        self.prototypes[classes, -1] = class_means(features, targets, classes.tolist())
        self._synthesise_missing()
        return {}

    def _synthesise_missing(self) -> None:
        """Synthesise the old classes' prototypes in the newest subspace or, with `refresh`, in all later subspaces.

        They are made from mean features only, which a class has in its own subspace and in all earlier ones."""
        newest, spans = len(self.spaces) - 1, list(pairwise([0, *self.spaces]))
        for later in range(1 if self.config.refresh else newest, newest + 1):
            new = self.prototypes[spans[later][0] :]
            for own, (first, last) in enumerate(spans[:later]):
                self.prototypes[first:last, later] = synthesise(
                    self.prototypes[first:last, own], new[:, own], new[:, later]
                )

    def networks(self) -> list[Network]:
        """One network per space. After its training, the newest one will not change either: the next space copies
        it."""
        return [partial(self.adapted, adapters) for adapters in self.steps]

    def fixed_networks(self) -> Sequence[Network]:
        return self.networks() if self.is_tuned else []

    def classify(self, features: Tensor) -> Tensor:
        """Scores [B, classes], where each class is compared in its own subspace. HA is trained with them."""
        return self.compared(SCALE * cosine(features, self.prototypes[self._classes_and_spaces()]))

    def subspace_weights(self) -> Tensor:
        """Weight of each subspace in the score of each class, [classes, steps]

        The other subspaces share alpha, as in the released code. In the paper each of them has the weight alpha. With
        alpha = 0.1 and twelve steps or more, they would outweigh a class's own subspace, although their prototypes are
        mostly synthesised.
        """
        classes, steps = self.prototypes.shape[:2]
        weights = self.prototypes.new_full((classes, steps), self.config.other_weight / max(steps - 1, 1))
        weights[self._classes_and_spaces()] = 1.0
        return weights

    def _classes_and_spaces(self) -> tuple[Tensor, Tensor]:
        """All classes, and the space of each."""
        return torch.arange(len(self.prototypes), device=self.prototypes.device), self.space_of_classes()

    def space_scores(self, features: Tensor) -> Tensor:
        """Scaled, weighted cosines of each class over all spaces: [B, T * D] -> [B, classes]"""
        by_step = self.aligned(features.unflatten(1, (-1, self.feature_dim)))  # [B, T, D]
        prototypes = self.prototypes  # [C, T, D]
        if self.whitening is not None:
            spaces = torch.arange(prototypes.shape[1], device=prototypes.device)
            by_step, prototypes = self.whitening(by_step, spaces), self.whitening(prototypes, spaces)
        weighted = F.normalize(prototypes, dim=-1) * self.subspace_weights()[:, :, None]
        return SCALE * F.normalize(by_step, dim=-1).flatten(1) @ weighted.flatten(1).mT
