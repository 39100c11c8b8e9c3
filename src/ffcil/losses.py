"""Per-sample losses and their reductions to a scalar: mean and class-wise mean (CWM).

A reduction has the signature `(per_sample, targets, weights=None) -> scalar`. All per-sample losses work with both
reductions, so a training loop can switch between them in one place. Nothing here synchronises with the device or
branches on a tensor, so everything can be part of a captured CUDA graph.
"""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Reduction(Protocol):
    """Reduction of per-sample losses to a scalar."""

    def __call__(self, per_sample: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor: ...


def mean(per_sample: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """The mean over samples, paper eq. (4), or with `weights` the weighted mean (0 if all weights are 0)."""
    if weights is None:
        return per_sample.mean()
    losses, weights = _masked(per_sample, weights)
    return (weights * losses).sum() / weights.sum().clamp_min(torch.finfo(losses.dtype).tiny)


def class_wise_mean(per_sample: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """The mean loss of each class, averaged over the classes in the batch (CWM, paper eq. (6)).

    Sample i has the weight `w_i / (n_y * |C_batch|)`, where n_y is the total weight of its class in the batch and
    C_batch is the set of classes with non-zero weight. Use `weights` as a mask for a loss that applies to a part of a
    batch. If all weights are 0, the result is 0.

    Args:
        per_sample: Losses, float [B].
        targets: Classes, int [B]; any values.
        weights: Non-negative weights of the samples, [B].
    """
    if weights is None:
        losses = per_sample.to(torch.promote_types(per_sample.dtype, torch.float32))
        share = _weight_of_class(targets, None, losses.dtype).reciprocal()  # sums to 1 over each class in the batch
        return torch.dot(share / share.sum(), losses)
    losses, weights = _masked(per_sample, weights)
    of_class = _weight_of_class(targets, weights, losses.dtype)  # n_y of each sample
    share = weights / torch.where(of_class > 0, of_class, 1.0)
    return (share * losses).sum() / share.sum().clamp_min(1.0)


def _weight_of_class(targets: Tensor, weights: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Total weight in the batch of each sample's class, [B]. Unlike `bincount`, it does not synchronise with a GPU."""
    if len(targets) <= 1024:  # all pairs: the fewest kernels, which dominate the time of small batches on a GPU
        same = targets.unsqueeze(0) == targets.unsqueeze(1)
        return (same if weights is None else same * weights).sum(dim=1, dtype=dtype)
    weights = torch.ones_like(targets, dtype=dtype) if weights is None else weights
    in_order, order = targets.sort()  # linear in memory
    number = torch.zeros_like(targets)
    number[order[1:]] = (in_order[1:] != in_order[:-1]).cumsum(0)  # number of each sample's class: 0, 1, ...
    return torch.zeros_like(weights).index_add(0, number, weights)[number]


def _masked(per_sample: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Losses and weights in float32 or better, so that counts are exact. An infinite loss of weight 0 becomes 0."""
    dtype = torch.promote_types(per_sample.dtype, torch.float32)
    weights = weights.to(dtype)
    return torch.where(weights > 0, per_sample.to(dtype), 0.0), weights


REDUCTIONS: dict[str, Reduction] = {"mean": mean, "class_wise_mean": class_wise_mean}


def cross_entropy(logits: Tensor, targets: Tensor, prior: Tensor | None = None) -> Tensor:
    """Softmax cross-entropy of each sample, [B]. With a `prior` [C] it is count-aware; see `log_prior`."""
    return F.cross_entropy(logits if prior is None else logits + prior, targets, reduction="none")


def log_prior(counts: Tensor, strength: float = 1.0) -> Tensor:
    """`strength * log(N_c / N)` of each class, [C], to add to logits in the training loss and nowhere else.

    Some classes have more training images than others, for example new classes more than replayed ones. With the prior,
    the logits do not learn this imbalance: predict by the argmax of the logits alone. With strength 1 it is the
    balanced softmax of Ren et al., NeurIPS 2020, or the logit adjustment of Menon et al., ICLR 2021. A class without
    images has minus infinity, so that it has no effect on the loss.

    Args:
        counts: Number of training images of each class, [C]. Compute it again for every step.
        strength: The temperature tau of the logit adjustment, above 0.
    """
    if strength <= 0:
        raise ValueError(f"strength must be above 0, not {strength}")
    return strength * (counts / counts.sum()).log()


def distillation(student: Tensor, teacher: Tensor, temperature: float = 2.0) -> Tensor:
    """Cross-entropy of each sample between the softened outputs of teacher and student, [B].

    As in the published iCaRL baselines, there is no factor T^2.
    """
    soft = F.softmax(teacher / temperature, dim=1)
    return -(soft * F.log_softmax(student / temperature, dim=1)).sum(dim=1)


def centre_loss(features: Tensor, targets: Tensor, centres: Tensor) -> Tensor:
    """Squared distance of each feature [B, D] to the centre [C, D] of its class; paper eq. (8) before the mean.

    It complements the class-wise mean for learners that classify by prototypes (eq. (9)).
    """
    return (features - centres[targets]).square().sum(dim=1)


class ClassCentres(nn.Module):
    """Running feature centres of classes, for `centre_loss`.

    The centre of a class starts as the mean of the class in its first batch. It then moves by `rate` towards the mean
    in each batch that contains the class. (In Wen et al., ECCV 2016, the movement has the additional factor n / (n + 1)
    if n samples of the batch are of the class.) No gradient flows through the centres.
    """

    centres: Tensor
    seen: Tensor

    def __init__(self, classes: int, features: int, rate: float = 0.5) -> None:
        super().__init__()
        self.rate = rate
        self.register_buffer("centres", torch.zeros(classes, features))
        self.register_buffer("seen", torch.zeros(classes, dtype=torch.bool))

    def forward(self, features: Tensor, targets: Tensor) -> Tensor:
        """Update the centres, then return the squared distance of each sample to its centre, [B]."""
        self._update(features.detach(), targets)
        # a copy, because the centres may change again before backward
        return centre_loss(features, targets, self.centres.clone())

    def _update(self, features: Tensor, targets: Tensor) -> None:
        classes = torch.arange(len(self.centres), device=targets.device)
        member = (targets == classes[:, None]).to(features.dtype)  # [C, B]
        count = member.sum(dim=1)
        means = member @ features / count.clamp_min(1)[:, None]
        rate = torch.where(self.seen, self.rate, 1.0) * (count > 0)
        self.centres.lerp_(means, rate[:, None].to(means.dtype))
        self.seen |= count > 0
