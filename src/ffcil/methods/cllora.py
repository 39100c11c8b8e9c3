"""CL-LoRA: the lower blocks share one LoRA through the stream, the upper blocks get a fresh one at every step.

He et al., "CL-LoRA: Continual Low-Rank Adaptation for Rehearsal-Free Class-Incremental Learning", CVPR 2025.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import cast

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from ffcil.errors import InputError
from ffcil.losses import cross_entropy, distillation
from ffcil.methods.learner import LearnerSettings, MethodConfig, register
from ffcil.methods.simplecil import SCALE, SimpleCIL
from ffcil.models.heads import GrowingCosine, cosine
from ffcil.models.tuners import LoRA, Tuning
from ffcil.stream import Increment


class CLLoRAConfig(MethodConfig):
    """CL-LoRA's own fields."""

    rank: PositiveInt = 10
    """of every LoRA"""
    shared_blocks: PositiveInt | None = None
    """how many of the lower blocks share their LoRA between the steps; null: half of the depth"""
    distillation_weight: NonNegativeFloat = 5.0
    """of the distillation that holds the shared part near what it was"""
    temperature: PositiveFloat = 2.0
    """of that distillation"""
    orthogonality: NonNegativeFloat = 1e-4
    """weight of the term that turns a step's block weights away from those of the steps before"""
    reassign_gradient: bool = True
    """let the distillation's gradient weigh most where the shared part was largest"""
    warm_start: bool = False
    """a step's own LoRA starts as the one before instead of at zero: a step of one class, which trains none, then has
    features like those of its neighbours"""


@register("cllora")
class CLLoRA(SimpleCIL):
    """A class is scored by the cosine of its mean feature with the feature under the LoRA of the step it came at.

    Departures from the authors' code: distillation and cross-entropy are one loss and one optimiser step, where theirs
    takes a step on the one and then a step on the other with the same momentum (each gradient still moves the weights
    by learning rate / (1 - momentum) in all, but weight decay counts once a batch); the teacher's outputs pass no
    gradient to the head; block weights are those of queries and values alone, without idle ones for keys.

    Class means are made with the shared part of their step and are compared with features by that of now, as in the
    paper; the shared part moves, so test features cannot be kept from one step to the next.

    HA is trained on the newest features, and on features drawn of each class in its own space, against the means of all
    classes. A prediction compares a class with the feature of its own step alone; features of a drawn class under the
    other steps' LoRA cannot be had.

    A step of one class has nothing to tell apart: cross-entropy and distillation are constant, and its LoRA stays near
    what it was, which is no change at all. Features of the untuned network are more alike than tuned ones, so that such
    a class is then taken for many others; `warm_start` is against that.
    """

    title = "CL-LoRA"
    paper = "https://arxiv.org/abs/2505.24816"
    Config = CLLoRAConfig
    config: CLLoRAConfig

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__(settings, config)
        depth = self.vit.depth
        shared_blocks = self.config.shared_blocks or depth // 2
        if not 0 < shared_blocks < depth:
            raise InputError(
                f"options.shared_blocks={shared_blocks} leaves no block of {depth} on one side: "
                f"choose 1 to {depth - 1}."
            )
        self.shared = self._fresh(shared_blocks, weighted=False)
        for lora in self.shared:
            cast(LoRA, lora).down.requires_grad_(False)  # random and orthonormal for good
        self.specific = nn.ModuleList()
        """a set of LoRA a step; all but the last are frozen"""
        self.head = GrowingCosine(self.feature_dim)
        """of the newest step's classes, for its training alone"""
        self.teacher: Tensor
        self.register_buffer("teacher", torch.stack(self._shared_ups()).detach())
        """`up` of the shared LoRA at the end of the step before, [blocks, 2, rank, width]"""

    def _fresh(self, blocks: int, weighted: bool) -> nn.ModuleList:
        loras = (LoRA(self.vit.width, self.config.rank, weighted) for _ in range(blocks))
        return nn.ModuleList(loras).to(self.engine.device)

    def _shared_ups(self) -> list[Tensor]:
        return [cast(LoRA, lora).up for lora in self.shared]

    def grow(self, increment: Increment) -> None:
        super().grow(increment)
        self.teacher.copy_(torch.stack(self._shared_ups()).detach())
        self.specific.requires_grad_(False)
        fresh = self._fresh(self.vit.depth - len(self.shared), weighted=True)
        if self.config.warm_start and len(self.specific):
            fresh.load_state_dict(self.specific[-1].state_dict())
        self.specific.append(fresh)
        self.head = GrowingCosine(self.feature_dim).to(self.engine.device)
        self.head.grow(len(increment.classes))

    def trains(self, increment: Increment) -> bool:
        return True

    # --- training -----------------------------------------------------------------------------------------------

    def loss(self, images: Tensor, targets: Tensor) -> Tensor:
        old_classes = len(self.prototypes) - self.head.classes
        per_sample = cross_entropy(self.head(self.features(images)), targets - old_classes)
        if len(self.specific) == 1:
            return self.reduce(per_sample, targets)
        with torch.no_grad():
            teacher = self.head(self.early(images, list(self.teacher)))
        student = self.head(self.early(images, self._distilled_ups()))
        apart = distillation(student, teacher, self.config.temperature)
        per_sample = per_sample + self.config.distillation_weight * apart
        return self.reduce(per_sample, targets) + self.config.orthogonality * self.block_similarity()

    def early(self, images: Tensor, ups: Sequence[Tensor]) -> Tensor:
        """What the shared blocks alone give, read as a feature, with `ups` in their LoRA: [B, D]"""
        tunings = [Tuning(lora=partial(lora, up=up)) for lora, up in zip(self.shared, ups, strict=True)]
        return self.tuned(images, tunings, len(self.shared))

    def _distilled_ups(self) -> list[Tensor]:
        """The shared `up`s bit-equal, but gradients reach them times the shares, where these are on."""
        ups = self._shared_ups()
        if not self.config.reassign_gradient:
            return ups
        shares = gradient_shares(self.teacher)
        # what is added is 0 in value, and share * up to a gradient
        return [up.detach() + share * (up - up.detach()) for up, share in zip(ups, shares, strict=True)]

    def block_similarity(self) -> Tensor:
        """Mean |cosine| of the newest step's block weights, all as one vector, with those of each step before."""
        weights = [torch.cat([cast(Tensor, lora.weight) for lora in cast(nn.ModuleList, s)]) for s in self.specific]
        return cosine(weights[-1], torch.stack(weights[:-1])).abs().mean()

    # --- prediction ---------------------------------------------------------------------------------------------

    def features(self, images: Tensor) -> Tensor:
        return self.tuned(images, [*_tunings(self.shared), *_tunings(self.specific[-1])])

    def features_by_step(self, images: Tensor) -> list[Tensor]:
        """Features under the LoRA of every step, [B, D] each; the shared blocks are passed once, and all LoRA are
        folded into the weights: nothing is trained here."""
        first = len(self.shared)
        with self.engine.autocast():
            trunk = self.vit.through(self.vit.embed(images), _folded(self.shared), 0, first)
            read = [self.vit.read(self.vit.through(trunk, _folded(loras), first)) for loras in self.specific]
        return [features.float() for features in read]

    def logits(self, images: Tensor) -> dict[str, Tensor]:
        spans = pairwise([0, *self.boundaries])  # the classes of each step
        scores = [
            SCALE * cosine(self.aligned(features), self.prototypes[first:last])
            for features, (first, last) in zip(self.features_by_step(images), spans, strict=True)
        ]
        return {self.classifiers[0]: torch.cat(scores, dim=1)}

    def fixed_networks(self) -> Sequence[Callable[[Tensor], Tensor]]:
        return ()  # the shared part moves at every step

    def deployed(self) -> Iterable[nn.Module]:
        return [*super().deployed(), self.shared, self.specific]


def gradient_shares(ups: Tensor) -> Tensor:
    """The weight of every output's gradient, by the norm of what leads to it: [blocks, 2, rank, D] -> [blocks, 2, 1, D]

    They are 1 in the mean; where there is nothing yet (`up` is zero, as after a first step of one class) all are 1.
    """
    norms = ups.norm(dim=2, keepdim=True)
    total = norms.sum(dim=3, keepdim=True)
    return torch.where(total > 0, norms.shape[3] * norms / torch.where(total > 0, total, 1.0), 1.0)


def _folded(loras: nn.Module) -> list[Tuning]:
    return [Tuning(folded=cast(LoRA, lora).folded()) for lora in loras.children()]


def _tunings(loras: nn.Module) -> list[Tuning]:
    return [Tuning(lora=cast(LoRA, lora)) for lora in loras.children()]
