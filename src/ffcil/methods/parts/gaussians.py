"""Gaussians of the classes' features, and a head's second training on features drawn from them.

The classifier alignment that SLCA began (Zhang et al., ICCV 2023) and that several methods on pre-trained networks
share. A class's Gaussian is of the feature space in which the class was learned, and is never brought up to date.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ffcil.losses import Reduction, cross_entropy, mean
from ffcil.training.fit import Engine, set_rates

RIDGE = 1e-4
"""on the diagonal of every covariance"""


def covariance(features: Tensor) -> Tensor:
    """Unbiased, with the ridge: [n, D] -> float64 [D, D]. One image alone has no spread (the references divide by
    zero): the ridge is all."""
    centred = features.double() - features.double().mean(dim=0)
    spread = centred.mT @ centred / max(len(features) - 1, 1)
    return spread + RIDGE * torch.eye(features.shape[1], dtype=spread.dtype, device=spread.device)


class ClassGaussians(nn.Module):
    """Mean and covariance of every class, the latter as a factor L with L L^T = covariance, made once a class.

    A diagonal covariance keeps [C, D] numbers instead of [C, D, D].
    """

    means: Tensor
    factors: Tensor

    def __init__(self, features: int, diagonal: bool = False) -> None:
        super().__init__()
        self.diagonal = diagonal
        self.register_buffer("means", torch.empty(0, features))
        self.register_buffer("factors", torch.empty(0, features, *([] if diagonal else [features])))

    @property
    def classes(self) -> int:
        return len(self.means)

    def grow(self, classes: int) -> None:
        """Make room up to `classes`; `remember` fills it."""
        new = classes - self.classes
        self.means, self.factors = (
            torch.cat([known, known.new_zeros(new, *known.shape[1:])]) for known in (self.means, self.factors)
        )

    @torch.no_grad()
    def remember(self, features: Tensor, targets: Tensor, classes: Iterable[int]) -> None:
        """Of `classes`, from all of their features among [N, D]."""
        rows = list(classes)
        by_class = [features[targets == label] for label in rows]
        self.means[rows] = torch.stack([of_class.mean(dim=0) for of_class in by_class])
        if self.diagonal:
            variances = torch.stack([covariance(of_class).diagonal() for of_class in by_class])
            self.factors[rows] = variances.sqrt().to(self.factors.dtype)
            return
        # in double precision: with fewer images than features the smallest eigenvalues are the ridge alone
        factors = torch.linalg.cholesky(torch.stack([covariance(of_class) for of_class in by_class]))
        self.factors[rows] = factors.to(self.factors.dtype)

    def draw(self, each: int, generator: torch.Generator, mean_scale: Tensor | None = None) -> Tensor:
        """`each` features of every class, [C, each, D]; `mean_scale` [C] is a factor on the means."""
        means = self.means if mean_scale is None else self.means * mean_scale[:, None]
        shape = (self.classes, each, self.means.shape[1])
        noise = torch.randn(shape, generator=generator, device=means.device)
        if self.diagonal:
            return means[:, None] + noise * self.factors[:, None]
        return torch.baddbmm(means[:, None], noise, self.factors.mT)


@dataclass(frozen=True)
class HeadTraining:
    """How a head is trained a second time."""

    epochs: int
    learning_rate: float
    weight_decay: float
    draws: int
    """features of each class an epoch, and the size of a batch: an epoch has as many batches as there are classes"""
    period: int
    """epochs until the cosine schedule has come down to zero; with more epochs than that it rises again"""


def train_head(
    head: nn.Module,
    gaussians: ClassGaussians,
    training: HeadTraining,
    generator: torch.Generator,
    engine: Engine,
    reduce: Reduction = mean,
    mean_scale: Tensor | None = None,
) -> float:
    """Train `head` alone on drawn features of all classes; returns the last epoch's mean loss.

    Args:
        head: from features [B, D] to scores of all classes, [B, C]
        mean_scale: factor on each class's mean before drawing, [C]
    """
    classes, device = gaussians.classes, gaussians.means.device
    parameters = [parameter for parameter in head.parameters() if parameter.requires_grad]
    rate = torch.tensor(training.learning_rate, device=device) if engine.graph else training.learning_rate
    optimiser = torch.optim.SGD(
        parameters, rate, momentum=0.9, weight_decay=training.weight_decay, fused=device.type == "cuda"
    )
    labels = torch.arange(classes, device=device).repeat_interleave(training.draws)
    # written anew in every epoch, in place: a captured step reads them where they are
    drawn = torch.empty(len(labels), gaussians.means.shape[1], device=device)
    order = torch.empty(classes, training.draws, dtype=torch.int64, device=device)
    batch = torch.zeros(1, dtype=torch.int64, device=device)
    total = torch.zeros((), device=device)

    def train_step() -> None:
        rows = order.index_select(0, batch)[0]
        batch.add_(1)
        with torch.enable_grad():
            loss = reduce(cross_entropy(head(drawn[rows]), labels[rows]), labels[rows])
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
        optimiser.step()
        total.add_(loss.detach())

    step = engine.captured(train_step)
    for epoch in range(training.epochs):
        set_rates(optimiser, [cosine_rate(training, epoch)])
        drawn.copy_(gaussians.draw(training.draws, generator, mean_scale).flatten(0, 1))
        order.view(-1).copy_(torch.randperm(len(labels), generator=generator, device=device))
        batch.zero_()
        total.zero_()
        for _ in range(classes):
            step()
    optimiser.zero_grad(set_to_none=True)
    return total.item() / classes


def cosine_rate(training: HeadTraining, epoch: int) -> float:
    """The learning rate of an epoch counted from 0."""
    return training.learning_rate * 0.5 * (1 + math.cos(math.pi * epoch / training.period))
