"""CL-LoRA: the lower blocks share one LoRA over the whole stream, the upper blocks get a fresh one at every step.

He et al., "CL-LoRA: Continual Low-Rank Adaptation for Rehearsal-Free Class-Incremental Learning", CVPR 2025.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal, Self, cast

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn

from ffcil.errors import InputError
from ffcil.losses import cross_entropy, distillation
from ffcil.methods.learner import LearnerSettings, MethodConfig
from ffcil.methods.parts.prototypes import SCALE, Prototypes
from ffcil.methods.pretrained import Network, Pretrained
from ffcil.methods.registry import register
from ffcil.models.analytic import fit_drift
from ffcil.models.class_statistics import class_means
from ffcil.models.heads import GrowingCosine, cosine
from ffcil.models.tuners import LoRA, Tuning
from ffcil.stream import Increment
from ffcil.training.fit import Training


class CLLoRAConfig(MethodConfig):
    """CL-LoRA's own fields. `released` has these departures, all from the authors' code:

    - A batch takes two optimiser steps with one momentum: on the distillation, then on the rest of the loss.
    - The teacher's outputs pass a gradient to the head, which can thus make the targets of the distillation easy.
    - The shares of the gradient are 0 / 0 if the shared part is still zero, as after a first step with a single class.
      Then all weights are NaN from the second step on, and predictions are at the level of chance. The run continues.
    - The code assumes that all steps after the first have the same size; see `released_increment`.
    """

    rank: PositiveInt = 10
    """Rank of every LoRA."""
    shared_blocks: PositiveInt | None = None
    """Number of lower blocks whose LoRA all steps share; null: half of the depth."""
    distillation_weight: NonNegativeFloat = 5.0
    """Weight of the distillation loss, which keeps the shared part near its state after the previous step."""
    temperature: PositiveFloat = 2.0
    """Temperature of the distillation loss."""
    orthogonality: NonNegativeFloat = 1e-4
    """Weight of the term that makes a step's block weights dissimilar to those of earlier steps."""
    reassign_gradient: bool = True
    """Whether the gradient of the distillation loss is strongest where the shared part was largest."""
    warm_start: bool = False
    """Whether the LoRA of a step starts as a copy of that of the previous step instead of at zero. A step with a single
    class, which trains no LoRA, then has features like those of its neighbours."""
    released: bool = False
    """Whether to follow the authors' released code where it departs from their algorithm and results change."""
    released_increment: PositiveInt | Literal["newest"] | None = None
    """Size that every step after the first is assumed to have, as in the released code. A class is then scored in the
    space of the step to which it would belong. In a space earlier than its own it has a mean; in a later one its score
    is 0; classes beyond the last assumed step are never predicted. A number is a fixed size: the head of a smaller step
    has rows without images. With a larger step the released code stops, and here the head has the rows that it needs.
    `newest` is the size of the newest step, as in code that passes on the size of each step. Null: the true sizes."""

    @model_validator(mode="after")
    def _of_released_code(self) -> Self:
        if self.released_increment is not None and not self.released:
            raise ValueError("released_increment belongs to the released code: set released=true")
        return self


@register("cllora")
class CLLoRA(Pretrained):
    """The score of a class is the cosine of its mean feature with the feature under the LoRA of its own step.

    Departures from the authors' code, unless `released` is set:
    - Distillation and cross-entropy are one loss with one optimiser step. The code takes one step on each, with the
      same momentum. A gradient moves the weights by learning rate / (1 - momentum) in total in both forms, but weight
      decay counts only once per batch here.
    - The outputs of the teacher pass no gradient to the head.

    Departures in both forms: block weights exist for queries and values only, without unused ones for keys, and with
    `released` the cross-entropy is computed after the step on the distillation, not before it.

    Class means are computed with the shared part of their own step and are compared with features of the present shared
    part, as in the paper. The shared part changes, so test features cannot be reused in the next step. With
    `flow.follow`, the means of old classes are moved as the features of the newest images move with the shared part.

    HA is trained on the newest features, and on drawn features of each class in its own space, against the means of all
    classes. A prediction compares a class with the feature of its own step only, but the features of a drawn class
    under the LoRA of other steps are not available.

    A step with a single class has nothing to discriminate: cross-entropy and distillation are constant, and its LoRA
    stays near its initial values, at which it changes nothing. Features of the untuned network are more similar to each
    other than tuned ones, so images of other classes are often assigned to such a class. `warm_start` prevents that,
    and so do `flow.enough` and `flow.comparable`.
    """

    title = "CL-LoRA"
    paper = "https://arxiv.org/abs/2505.24816"
    Config = CLLoRAConfig
    config: CLLoRAConfig
    trains_prototypes = True
    compares_means = True
    compares_spaces = True
    drifts = True
    training_only = ("head",)
    teacher: Tensor
    everywhere: Tensor

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__(settings, config)
        depth = self.vit.depth
        shared_blocks = self.config.shared_blocks or depth // 2
        if not 0 < shared_blocks < depth:
            raise InputError(
                f"options.shared_blocks={shared_blocks} leaves no other block of {depth}: choose 1 to {depth - 1}."
            )
        self.prototypes = Prototypes(self.feature_dim).to(self.engine.device)
        self.shared = self._fresh(shared_blocks, weighted=False)
        for lora in self.shared:
            cast(LoRA, lora).down.requires_grad_(False)  # stays random and orthonormal
        self.specific = nn.ModuleList()
        """LoRA of the upper blocks, one list per tuning step. All but the last are frozen."""
        self.head = GrowingCosine(self.feature_dim)
        """Head for the training of the newest step."""
        self.register_buffer("teacher", torch.stack(self._shared_ups()).detach())
        """Parameters `up` of the shared LoRA at the end of the previous step, [blocks, 2, rank, width]"""
        flow = settings.framework
        if self.config.released and (flow.whiten or flow.follow):
            raise InputError(
                "options.released=true goes on if numbers are not finite, which flow.whiten and flow.follow cannot: "
                "set both of them to false."
            )
        if self.config.released_increment is not None:
            if flow.enough > 1 or flow.share or flow.comparable:
                raise InputError(
                    "options.released_increment scores as the authors' code does, without the parts of flow: set "
                    "framework=none, and leave flow.enough, flow.share and flow.comparable at null."
                )
            self.register_buffer("everywhere", torch.empty(0, 0, self.feature_dim, device=self.engine.device))
            """Mean of each class in the space of each step, [classes, steps, D]; 0 in the spaces of later steps"""

    @property
    def may_collapse(self) -> bool:
        return self.config.released

    def _fresh(self, blocks: int, weighted: bool) -> nn.ModuleList:
        loras = (LoRA(self.vit.width, self.config.rank, weighted) for _ in range(blocks))
        return nn.ModuleList(loras).to(self.engine.device)

    def _shared_ups(self) -> list[Tensor]:
        return [cast(LoRA, lora).up for lora in self.shared]

    def grow(self, increment: Increment) -> None:
        super().grow(increment)
        self.prototypes.grow(increment.seen_now)
        self.teacher.copy_(torch.stack(self._shared_ups()).detach())
        self.specific.requires_grad_(False)
        for up in self._shared_ups():
            up.requires_grad_(self.tunes)
        if not self.tunes:
            self.head.requires_grad_(False)
            return
        fresh = self._fresh(self.vit.depth - len(self.shared), weighted=True)
        if self.config.warm_start and len(self.specific):
            fresh.load_state_dict(self.specific[-1].state_dict())
        self.specific.append(fresh)
        self.head = GrowingCosine(self.feature_dim).to(self.engine.device)
        self.head.grow(self._head_rows(increment))
        if self.config.released_increment is not None:
            self.everywhere = F.pad(self.everywhere, (0, 0, 0, 1, 0, len(increment.classes)))

    def _head_rows(self, increment: Increment) -> int:
        """Number of rows of the head: one for each new class, or more with a fixed `released_increment`."""
        assumed = self.config.released_increment
        fixed = assumed if isinstance(assumed, int) and increment.seen_before else 0
        return max(fixed, len(increment.classes))

    def training_plan(self, increment: Increment) -> Training | None:
        plan = super().training_plan(increment)
        if plan is None or not (self.config.released and len(self.specific) > 1):
            return plan
        return replace(plan, preceding=self.distillation_loss)

    def loss(self, images: Tensor, targets: Tensor) -> Tensor:
        features = self.features(images)
        per_sample = cross_entropy(self.head(features), targets - self.old_classes)
        centre_loss = self.centre_loss(features, targets)
        if len(self.specific) == 1:
            return self.reduce(per_sample, targets) + centre_loss
        if not self.config.released:
            per_sample = per_sample + self.distilled(images)
        separation = self.config.orthogonality * self.block_similarity()
        return self.reduce(per_sample, targets) + centre_loss + separation

    def distilled(self, images: Tensor) -> Tensor:
        """Weighted distillation loss of each image, [B]."""
        with torch.no_grad():
            early = self.early(images, list(self.teacher))
        teacher = self.head(early) if self.config.released else self.head(early).detach()
        student = self.head(self.early(images, self._distilled_ups()))
        return self.config.distillation_weight * distillation(student, teacher, self.config.temperature)

    def distillation_loss(self, images: Tensor, targets: Tensor) -> Tensor:
        """The loss of the released code's first optimiser step on a batch."""
        return self.reduce(self.distilled(images), targets)

    def early(self, images: Tensor, ups: Sequence[Tensor]) -> Tensor:
        """Features of the shared blocks only, with `ups` in their LoRA: [B, D]"""
        return self.vit_features(images, self._shared_with(ups), len(self.shared))

    def _shared_with(self, ups: Iterable[Tensor]) -> list[Tuning]:
        return [Tuning(lora=partial(lora, up=up)) for lora, up in zip(self.shared, ups, strict=True)]

    def _distilled_ups(self) -> list[Tensor]:
        """Parameters `up` of the shared LoRA. With `reassign_gradient`, their values are bit-equal, but their gradients
        are multiplied by `gradient_shares`."""
        ups = self._shared_ups()
        if not self.config.reassign_gradient:
            return ups
        shares = gradient_shares(self.teacher, of_zeros=torch.nan if self.config.released else 1.0)
        # the second term has the value 0, and the gradient of share * up
        return [up.detach() + share * (up - up.detach()) for up, share in zip(ups, shares, strict=True)]

    def block_similarity(self) -> Tensor:
        """Mean absolute cosine between the block weights of the newest step, as one vector, and those of each earlier
        step."""
        by_step = [cast(nn.ModuleList, loras) for loras in self.specific]
        weights = [torch.cat([cast(Tensor, lora.weight) for lora in loras]) for loras in by_step]
        return cosine(weights[-1], torch.stack(weights[:-1])).abs().mean()

    def finish(self, increment: Increment) -> dict[str, Any]:
        if self.settings.framework.follow and self.opens_space:
            self._follow(increment)
        return super().finish(increment)

    def _follow(self, increment: Increment) -> None:
        """Move the means of old classes, each in its own space, as the changed shared part moves features."""
        before = self.applied(
            increment.train, increment.rows, partial(self.features_by_step, shared=self._shared_with(self.teacher))
        )
        after = self.applied(increment.train, increment.rows, self.features_by_step)
        spans = list(pairwise([0, *self.spaces]))[:-1]
        by_space = (features.split(self.feature_dim, dim=1) for features in (before, after))
        for space, ((first, last), old, new) in enumerate(zip(spans, *by_space, strict=False)):
            drift = fit_drift(old, new, self.generator(increment, f"drift of space {space}"))
            for means in (self.prototypes.means, self.statistics.means):
                means[first:last] = drift(means[first:last])
            if self.whitening is not None:
                self.whitening.move(drift, space)

    def fit_classifier(self, increment: Increment, features: Tensor, targets: Tensor) -> dict[str, Any]:
        self.prototypes.remember(features, targets)
        if self.config.released_increment is not None:
            by_step, _ = self.extract_features(increment, self.features_by_step)
            means = class_means(by_step, targets, increment.classes)
            self.everywhere[increment.seen_before :] = means.unflatten(1, (-1, self.feature_dim))
        return {"collapsed": not bool(self.prototypes.means.isfinite().all())} if self.config.released else {}

    def features(self, images: Tensor) -> Tensor:
        if not self.specific:  # no step has tuned the network
            return self.untuned_features(images)
        return self.vit_features(images, [*_tunings(self.shared), *_tunings(self.specific[-1])])

    def features_by_step(self, images: Tensor, shared: Sequence[Tuning] | None = None) -> Tensor:
        """Features under the LoRA of every tuning step side by side, [B, T * D].

        The shared blocks are computed once. All LoRA are added to the weights, because nothing is trained here.

        Args:
            shared: Tunings of the shared blocks; None for the present ones.
        """
        if not self.specific:
            return self.untuned_features(images)
        first = len(self.shared)
        with self.engine.autocast():
            trunk = self.vit.through(self.vit.embed(images), shared or _folded(self.shared), 0, first)
            read = [self.vit.read(self.vit.through(trunk, _folded(loras), first)) for loras in self.specific]
        return torch.cat([features.float() for features in read], dim=1)

    def changing_network(self) -> Network:
        return self.features_by_step

    def classify(self, features: Tensor) -> Tensor:
        return self.compared(self.prototypes.scores(features))

    def score_features(self, features: Tensor) -> Tensor:
        if self.config.released_increment is not None:
            return self._released_scores(features, self.config.released_increment)
        return super().score_features(features)

    def space_scores(self, features: Tensor) -> Tensor:
        """Scaled cosine of each class in its own space: [B, T * D] -> [B, classes]"""
        by_step = features.split(self.feature_dim, dim=1)
        spans = pairwise([0, *self.spaces])  # the classes of each space
        scores = [
            SCALE * self.similarity(self.aligned(own), self.prototypes.means[first:last], space)
            for space, (own, (first, last)) in enumerate(zip(by_step, spans, strict=True))
        ]
        return torch.cat(scores, dim=1)

    def _released_scores(self, features: Tensor, increment: int | Literal["newest"]) -> Tensor:
        """Scores [B, classes] in the spaces to which classes would belong if all steps after the first had `increment`
        classes. Classes beyond the last of these steps have the score -inf."""
        size = self.boundaries[-1] - self.old_classes if increment == "newest" else increment
        spans = assumed_spans(self.boundaries, size)
        by_step = features.split(self.feature_dim, dim=1)
        scores = [
            SCALE * cosine(self.aligned(by_step[step]), self.everywhere[first:last, step])
            for step, (first, last) in enumerate(spans)
        ]
        return F.pad(torch.cat(scores, dim=1), (0, self.boundaries[-1] - spans[-1][1]), value=-torch.inf)


def assumed_spans(boundaries: Sequence[int], size: int) -> list[tuple[int, int]]:
    """First and last (exclusive) class of each step if all steps after the first had `size` classes, up to the number
    of classes seen.

    Args:
        boundaries: Number of classes seen after each step.
    """
    first, seen = boundaries[0], boundaries[-1]
    ends = [min(first + step * size, seen) for step in range(len(boundaries))]
    return list(pairwise([0, *ends]))


def gradient_shares(ups: Tensor, of_zeros: float = 1.0) -> Tensor:
    """Factor on the gradient of every output, in proportion to the norm of its weights in `ups`:
    [blocks, 2, rank, D] -> [blocks, 2, 1, D]

    The mean over the outputs is 1. Where `ups` is zero, as after a first step with a single class, it is `of_zeros`.
    """
    norms = ups.norm(dim=2, keepdim=True)
    total = norms.sum(dim=3, keepdim=True)
    return torch.where(total > 0, norms.shape[3] * norms / torch.where(total > 0, total, 1.0), of_zeros)


def _folded(loras: nn.Module) -> list[Tuning]:
    """Tunings that add each LoRA to the weights of its block."""
    return [Tuning(folded=cast(LoRA, lora).folded()) for lora in loras.children()]


def _tunings(loras: nn.Module) -> list[Tuning]:
    return [Tuning(lora=cast(LoRA, lora)) for lora in loras.children()]
