"""Per-sample losses, and the reductions that make one number of them: mean and class-wise mean (CWM).

A reduction has the signature `(per_sample, targets, weights=None) -> scalar`. Any loss that is a sum over samples can
go through either, so a training loop changes from one to the other in one place. Nothing here waits for the device or
branches on a tensor, so all of it can sit inside a captured CUDA graph.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Reduction(Protocol):
    """From per-sample losses to one number."""

    def __call__(self, per_sample: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor: ...


def mean(per_sample: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """The ordinary mean over samples, paper eq. (4); with `weights` the weighted mean (0 where all weights are 0)."""
    if weights is None:
        return per_sample.mean()
    losses, weights = _masked(per_sample, weights)
    return (weights * losses).sum() / weights.sum().clamp_min(torch.finfo(losses.dtype).tiny)


def class_wise_mean(per_sample: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """The mean over the classes of the batch of each class's mean loss (CWM, paper eq. (6)).

    Sample i counts `w_i / (n_y * |C_batch|)`, where n_y is the weight of its class in the batch and C_batch the classes
    of non-zero weight. Use `weights` as a mask for a loss that concerns part of a batch only; a batch with no weight
    at all gives 0, not NaN.

    Args:
        per_sample: losses, float [B]
        targets: classes, int [B]; any values
        weights: non-negative, [B]
    """
    if weights is None:
        losses = per_sample.to(torch.promote_types(per_sample.dtype, torch.float32))
        share = _weight_of_class(targets, None, losses.dtype).reciprocal()  # sums to 1 within every class present
        return torch.dot(share / share.sum(), losses)
    losses, weights = _masked(per_sample, weights)
    of_class = _weight_of_class(targets, weights, losses.dtype)  # n_y of each sample
    share = weights / torch.where(of_class > 0, of_class, 1.0)
    return (share * losses).sum() / share.sum().clamp_min(1.0)


def _weight_of_class(targets: Tensor, weights: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The weight that each sample's class has in the batch, [B]; on a GPU, unlike `bincount`, without a wait."""
    if len(targets) <= 1024:  # all pairs: the fewest kernels, which is what a small batch on a GPU costs
        same = targets.unsqueeze(0) == targets.unsqueeze(1)
        return (same if weights is None else same * weights).sum(dim=1, dtype=dtype)
    weights = torch.ones_like(targets, dtype=dtype) if weights is None else weights
    in_order, order = targets.sort()  # linear in memory
    number = torch.zeros_like(targets)
    number[order[1:]] = (in_order[1:] != in_order[:-1]).cumsum(0)  # of each sample's class: 0, 1, ...
    return torch.zeros_like(weights).index_add(0, number, weights)[number]


def _masked(per_sample: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Both in float32 at least, for counts to be exact; a loss of weight 0 counts as 0 even where it is infinite."""
    dtype = torch.promote_types(per_sample.dtype, torch.float32)
    weights = weights.to(dtype)
    return torch.where(weights > 0, per_sample.to(dtype), 0.0), weights


REDUCTIONS: dict[str, Reduction] = {"mean": mean, "class_wise_mean": class_wise_mean}


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Softmax cross-entropy of every sample, [B]."""
    return F.cross_entropy(logits, targets, reduction="none")


def distillation(student: Tensor, teacher: Tensor, temperature: float = 2.0) -> Tensor:
    """Cross-entropy of every sample between the softened outputs of teacher and student, [B].

    No factor T^2, as in the published iCaRL baselines.
    """
    soft = F.softmax(teacher / temperature, dim=1)
    return -(soft * F.log_softmax(student / temperature, dim=1)).sum(dim=1)


def centre_loss(features: Tensor, targets: Tensor, centres: Tensor) -> Tensor:
    """Squared distance of every feature [B, D] to its class's centre, centres [C, D]; paper eq. (8) before the mean.

    Complements the class-wise mean for learners that score by prototypes (eq. (9)).
    """
    return (features - centres[targets]).square().sum(dim=1)


class ClassCentres(nn.Module):
    """Running feature centres of classes, for `centre_loss`.

    A class's centre begins as the mean of its first batch and then moves by `rate` towards the mean of each batch that
    has the class, as in Wen et al., ECCV 2016; no gradient flows through it.
    """

    centres: Tensor
    seen: Tensor

    def __init__(self, classes: int, features: int, rate: float = 0.5) -> None:
        super().__init__()
        self.rate = rate
        self.register_buffer("centres", torch.zeros(classes, features))
        self.register_buffer("seen", torch.zeros(classes, dtype=torch.bool))

    def forward(self, features: Tensor, targets: Tensor) -> Tensor:
        """Move the centres by a batch, then give every sample's squared distance to its own, [B]."""
        self._move(features.detach(), targets)
        return centre_loss(features, targets, self.centres.clone())  # a later batch moves what backward would read

    def _move(self, features: Tensor, targets: Tensor) -> None:
        classes = torch.arange(len(self.centres), device=targets.device)
        member = (targets == classes[:, None]).to(features.dtype)  # [C, B]
        count = member.sum(dim=1)
        means = member @ features / count.clamp_min(1)[:, None]
        rate = torch.where(self.seen, self.rate, 1.0) * (count > 0)
        self.centres.lerp_(means, rate[:, None].to(means.dtype))
        self.seen |= count > 0
