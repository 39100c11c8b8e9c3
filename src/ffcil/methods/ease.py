"""EASE: a fresh set of adapters a step, each a subspace of its own; class means in all of them are the classifier.

Zhou et al., "Expandable Subspace Ensemble for Pre-Trained Model-Based Class-Incremental Learning", CVPR 2024.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ffcil.losses import cross_entropy
from ffcil.methods.aper import AdapterConfig
from ffcil.methods.learner import LearnerSettings, MethodConfig, register
from ffcil.methods.parts.step_adapters import AdaptersPerStep
from ffcil.methods.simplecil import SCALE
from ffcil.models.heads import GrowingCosine, cosine
from ffcil.stream import Increment


class EASEConfig(AdapterConfig):
    """EASE's own fields."""

    other_weight: float = Field(0.1, ge=0)
    """alpha: of the subspaces of all other steps together in a class's score; its own counts 1"""
    refresh: bool = False
    """make up prototypes anew at every step, from all classes that have come by then, as the authors' released code
    does; in the paper those that came with a subspace make them up once"""


def synthesise(old: Tensor, new: Tensor, new_there: Tensor) -> Tensor:
    """Prototypes of old classes in a subspace that came after them: [O, D]

    A mean of the new classes' prototypes there, by how like the old class they are in the subspace that both know.

    Args:
        old: prototypes of the old classes in their own subspace, [O, D]
        new: prototypes of the new classes in the same, [N, D]
        new_there: prototypes of the new classes in the subspace that is asked for, [N, D]
    """
    return cosine(old, new).softmax(dim=1) @ new_there


@register("ease")
class EASE(AdaptersPerStep):
    """A class's score: the cosine with its prototype in the subspace of its own step, and alpha times the mean of those
    in all others. Its prototypes in later subspaces are made up from those of the classes that came with them.

    A step of one class has nothing to tell apart: it is not trained, its subspace is the untuned network's, and all
    older classes have that class's prototype there.

    HA stands before every subspace's prototypes, and is trained through those of each class in its own subspace alone:
    features of a drawn class in the others cannot be had.
    """

    title = "EASE"
    paper = "https://arxiv.org/abs/2403.12030"
    Config = EASEConfig
    config: EASEConfig
    prototypes: Tensor

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__(settings, config)
        self.head = GrowingCosine(self.feature_dim).to(self.engine.device)
        """of the newest step's classes, for its training alone"""
        self.register_buffer("prototypes", torch.empty(0, 0, self.feature_dim, device=self.engine.device))
        """of each class in the subspace of each step, [classes, steps, D]: its mean feature, or made up"""

    def grow(self, increment: Increment) -> None:
        super().grow(increment)
        if increment.seen_before:
            self.adapters.load_state_dict(self.fresh_adapters().state_dict())
        self.head = GrowingCosine(self.feature_dim).to(self.engine.device)
        self.head.grow(len(increment.classes))
        for part in (self.adapters, self.head):
            part.requires_grad_(self.trains(increment))
        self.prototypes = F.pad(self.prototypes, (0, 0, 0, 1, 0, len(increment.classes)))

    # --- training -----------------------------------------------------------------------------------------------

    def trains(self, increment: Increment) -> bool:
        return len(increment.classes) > 1  # of one class cross-entropy is 0, and fresh adapters change nothing

    def loss(self, images: Tensor, targets: Tensor) -> Tensor:
        return self.reduce(cross_entropy(self.head(self.features(images)), targets - self.old_classes), targets)

    def settle(self, increment: Increment, features: Tensor, targets: Tensor) -> dict[str, Any]:
        self._remember(len(self.kept), features, targets)
        for step, network in enumerate(self.fixed_networks()[:-1]):
            self._remember(step, *self.sweep(increment, network))
        self._complete()
        return {}

    def _remember(self, step: int, features: Tensor, targets: Tensor) -> None:
        """The new classes' prototypes in a step's subspace, from all of their features in it."""
        for label in range(self.old_classes, self.boundaries[-1]):
            self.prototypes[label, step] = features[targets == label].mean(dim=0)

    def _complete(self) -> None:
        """Make up the old classes' prototypes in the newest subspace or, to refresh them, in all that came after them.
        Only mean features go into it: a class that comes later has them in all earlier subspaces."""
        newest, spans = len(self.boundaries) - 1, list(pairwise([0, *self.boundaries]))
        for later in range(1 if self.config.refresh else newest, newest + 1):
            new = self.prototypes[spans[later][0] :]
            for own, (first, last) in enumerate(spans[:later]):
                self.prototypes[first:last, later] = synthesise(
                    self.prototypes[first:last, own], new[:, own], new[:, later]
                )

    # --- prediction ---------------------------------------------------------------------------------------------

    def _steps(self) -> Tensor:
        """At which each class arrived, [classes]"""
        return self.step_of(torch.arange(len(self.prototypes), device=self.prototypes.device))

    def classify(self, features: Tensor) -> Tensor:
        """Of features that may be of any class in its own subspace, as HA's are."""
        own = self.prototypes[torch.arange(len(self.prototypes), device=self.prototypes.device), self._steps()]
        return SCALE * cosine(features, own)

    def subspace_weights(self) -> Tensor:
        """Of each subspace in the score of each class, [classes, steps]

        The others share alpha, as in the released code. The paper gives alpha to each: of 0.1, from twelve steps on
        they would outweigh a class's own subspace, and what they hold of it is mostly made up.
        """
        steps = len(self.boundaries)
        own = self._steps()[:, None] == torch.arange(steps, device=self.prototypes.device)
        return torch.where(own, 1.0, self.config.other_weight / max(steps - 1, 1))

    def cached_scores(self, features: Tensor) -> dict[str, Tensor]:
        by_step = F.normalize(self.aligned_by_step(features), dim=-1)  # [B, T, D]
        weighted = F.normalize(self.prototypes, dim=-1) * self.subspace_weights()[:, :, None]  # [C, T, D]
        return {self.classifiers[0]: SCALE * by_step.flatten(1) @ weighted.flatten(1).mT}
