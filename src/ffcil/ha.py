"""Head-Agnostic Alignment (HA): a small residual map on the features of a frozen learner, whatever its classifier is.

It is trained after a step on the step's own features and on features drawn from the remembered mean and standard
deviation of every earlier class, so that one correction serves all classes seen. It stands alone: torch, and losses.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ffcil.losses import Reduction, cross_entropy, mean


class HeadAgnosticAlignment(nn.Module):
    """h + W_up GELU(W_down LN(h)), paper eq. (14). W_up starts at zero: it begins as the identity."""

    def __init__(self, features: int, bottleneck: int = 64) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.down = nn.Linear(features, bottleneck)
        self.up = nn.Linear(bottleneck, features)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, features: Tensor) -> Tensor:
        """[..., D] -> [..., D]"""
        correction: Tensor = self.up(F.gelu(self.down(self.norm(features))))
        return features + correction


class ClassStatistics(nn.Module):
    """Mean and standard deviation of every class's features, in the space in which the class was learned."""

    means: Tensor
    deviations: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("means", torch.empty(0, features))
        self.register_buffer("deviations", torch.empty(0, features))

    @property
    def classes(self) -> int:
        return len(self.means)

    def grow(self, classes: int) -> None:
        """Make room up to `classes`; `remember` fills it."""
        room = self.means.new_zeros(classes - self.classes, self.means.shape[1])
        self.means, self.deviations = torch.cat([self.means, room]), torch.cat([self.deviations, room])

    @torch.no_grad()
    def remember(self, features: Tensor, targets: Tensor) -> None:
        """Of all classes in `targets`, from all of their features [N, D]. One image alone has no deviation: 0."""
        classes, position, count = targets.unique(return_inverse=True, return_counts=True)
        share = (position == torch.arange(len(classes), device=position.device)[:, None]) / count[:, None]  # [C, N]
        means = share.to(features.dtype) @ features
        squares = share.to(features.dtype) @ (features - means[position]).square()
        unbiased = squares * (count / (count - 1).clamp_min(1))[:, None]
        self.means[classes], self.deviations[classes] = means, unbiased.sqrt()

    def surrogates(self, classes: int, each: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """`each` features of every one of the first `classes` classes, paper eq. (15), and their classes."""
        means, deviations = self.means[:classes], self.deviations[:classes]
        noise = torch.randn(each, *means.shape, generator=generator, device=means.device)
        drawn = (means + noise * deviations).flatten(0, 1)
        return drawn, torch.arange(classes, device=means.device).repeat(each)


@dataclass(frozen=True)
class AlignmentTraining:
    """How HA is trained after a step."""

    surrogates: int = 20
    """features drawn of each earlier class; 0: the step's own features alone"""
    identity: bool = True
    """hold the aligned features near the features themselves"""
    identity_weight: float = 1.0
    """of the term that does so"""
    epochs: int = 10
    batch: int = 128
    learning_rate: float = 1e-3


def align_features(
    alignment: HeadAgnosticAlignment,
    features: Tensor,
    targets: Tensor,
    earlier: ClassStatistics,
    old_classes: int,
    classify: Callable[[Tensor], Tensor],
    training: AlignmentTraining,
    generator: torch.Generator,
    reduce: Reduction = mean,
) -> float:
    """Train `alignment` after a step, everything else as it is, paper eq. (16); returns the last epoch's mean loss.

    Args:
        features: of the step's training images, [N, D]
        targets: their classes, [N]
        classify: from aligned features to scores of all classes seen, by the learner's own rule; it must let gradients
            through to its argument
        generator: on the features' device
    """
    optimiser = torch.optim.Adam(alignment.parameters(), training.learning_rate)
    weight = training.identity_weight if training.identity else 0.0
    total, batches = torch.zeros((), device=features.device), 1
    for _ in range(training.epochs):
        drawn, of_class = earlier.surrogates(old_classes, training.surrogates, generator)
        pool, labels = torch.cat([features, drawn]), torch.cat([targets, of_class])
        order = torch.randperm(len(pool), generator=generator, device=features.device)
        total.zero_()
        for rows in order.split(training.batch):
            loss = _loss(alignment, pool[rows], labels[rows], classify, weight, reduce)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            total += loss.detach()
        batches = len(order.split(training.batch))
    return total.item() / batches


def _loss(
    alignment: HeadAgnosticAlignment,
    features: Tensor,
    targets: Tensor,
    classify: Callable[[Tensor], Tensor],
    identity_weight: float,
    reduce: Reduction,
) -> Tensor:
    aligned = alignment(features)
    per_sample = cross_entropy(classify(aligned), targets)
    if identity_weight:
        per_sample = per_sample + identity_weight * (aligned - features).square().sum(dim=1)
    return reduce(per_sample, targets)
