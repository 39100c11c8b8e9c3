"""FeCAM: the first step tunes the network, then the nearest class mean by a Mahalanobis distance of the class's own.

Goswami et al., "FeCAM: Exploiting the Heterogeneity of Class Distributions in Exemplar-Free Continual Learning",
NeurIPS 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from ffcil.errors import InputError
from ffcil.methods.aper import AdapterConfig, TunedFirst
from ffcil.methods.learner import LearnerSettings, MethodConfig, register
from ffcil.stream import Increment

SCALE = 10.0
"""on squared distances, for the softmax that HA is trained by: between features of length 1 they are 2 - 2 cosine, so
that without covariances scores would nearly be SimpleCIL's; the nearest class does not depend on it"""
RIDGE = 1e-10
"""on the variances of features of length 1, which are about 1 / D: of no weight where there is any spread"""
AT_ONCE = 2**24
"""numbers of the differences between features and class means that are held at a time"""


class FeCAMConfig(AdapterConfig):
    """FeCAM's own fields."""

    tukey: float = Field(1.0, gt=0, le=1)
    """lambda of Tukey's transformation, x^lambda, with the sign kept; 1: none, as the authors have it on a ViT, whose
    features have both signs; 0.5 where features are positive"""
    variance_shrinkage: float = Field(1.0, gt=0)
    """gamma_1: how many times the mean variance is added to every variance"""
    covariance_shrinkage: float = Field(0.0, ge=0)
    """gamma_2: how many times the mean covariance is added to every covariance; at most gamma_1. As much as gamma_1
    takes back what that adds along the direction in which all features move together: classes of few images need less
    """


def unit(features: Tensor, tukey: float) -> Tensor:
    """Transformed and of length 1: [..., D] -> [..., D]"""
    if tukey != 1:
        features = features.sign() * features.abs().clamp_min(torch.finfo(features.dtype).tiny) ** tukey
    return F.normalize(features, dim=-1)


def correlation(units: Tensor, variance_shrinkage: float, covariance_shrinkage: float) -> Tensor:
    """Of features of length 1, [n, D], shrunk and then normalised to ones on the diagonal: float64 [D, D]

    One image alone has no spread: the identity.
    """
    spread = torch.cov(units.double().mT, correction=0)  # over n or n - 1: correlations know no factor
    width = len(spread)
    variance = spread.trace() / width
    covariance = (spread.sum() - spread.trace()) / max(width * (width - 1), 1)
    spread = spread + covariance_shrinkage * covariance
    spread.diagonal().add_(variance_shrinkage * variance - covariance_shrinkage * covariance + RIDGE)
    deviations = spread.diagonal().sqrt()
    return spread / deviations / deviations[:, None]


class ClassMetrics(nn.Module):
    """Mean and metric of every class; the metric is the inverse of its correlation matrix, made once.

    They are C D^2 numbers: 470 MB for 200 classes of 768 features. A class of one image, or of copies of one, has no
    correlations to tell. It gets the mean metric of those that have, so that its distances are neither shorter nor
    longer than theirs; the paper has one covariance for all where images are few.
    """

    means: Tensor
    metrics: Tensor
    spread: Tensor

    def __init__(self, features: int, variance_shrinkage: float, covariance_shrinkage: float) -> None:
        super().__init__()
        self.shrinkage = (variance_shrinkage, covariance_shrinkage)
        self.register_buffer("means", torch.empty(0, features))
        self.register_buffer("metrics", torch.empty(0, features, features))
        self.register_buffer("spread", torch.empty(0, dtype=torch.bool))
        """of each class: whether its images differ"""

    def grow(self, classes: int) -> None:
        """Make room up to `classes`; `remember` fills it."""
        new = classes - len(self.means)
        self.means, self.metrics, self.spread = (
            torch.cat([known, known.new_zeros(new, *known.shape[1:])])
            for known in (self.means, self.metrics, self.spread)
        )

    @torch.no_grad()
    def remember(self, units: Tensor, targets: Tensor, classes: Iterable[int]) -> None:
        """Of `classes`, from all of their features of length 1 among [N, D]."""
        for label in classes:
            of_class = units[targets == label]
            self.spread[label] = (of_class != of_class[0]).any()
            self.means[label] = of_class.mean(dim=0)
            self.metrics[label] = torch.cholesky_inverse(torch.linalg.cholesky(correlation(of_class, *self.shrinkage)))
        if self.spread.any() and not self.spread.all():
            share = self.spread.to(self.metrics) / self.spread.sum()
            self.metrics[~self.spread] = torch.tensordot(share, self.metrics, dims=1)

    def forward(self, units: Tensor) -> Tensor:
        """Squared distances: [B, D] -> [B, classes]"""
        some = max(AT_ONCE // max(units.numel(), 1), 1)
        parts = zip(self.means.split(some), self.metrics.split(some), strict=True)
        return torch.cat([_distances(units, means, metrics) for means, metrics in parts], dim=1)


def _distances(units: Tensor, means: Tensor, metrics: Tensor) -> Tensor:
    """[B, D], [C, D], [C, D, D] -> [B, C], through [C, B, D]"""
    apart = units - means[:, None]
    return (torch.bmm(apart, metrics) * apart).sum(dim=-1).mT


@register("fecam")
class FeCAM(TunedFirst):
    """Every class has its own covariance of features: the paper's form for many images.

    Features are brought to length 1 before anything is taken of them, as in the authors' scripts for a ViT, and shrunk
    once, as in the paper.

    HA is trained on features drawn of earlier classes that have their variances and not their correlations, which the
    distance goes by: it can cost more than it brings.
    """

    title = "FeCAM"
    paper = "https://arxiv.org/abs/2309.14062"
    classifiers = ("mahalanobis",)
    Config = FeCAMConfig
    config: FeCAMConfig

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__(settings, config)
        by_variance, by_covariance = self.config.variance_shrinkage, self.config.covariance_shrinkage
        if by_covariance > by_variance:
            raise InputError(
                f"options.covariance_shrinkage={by_covariance} is above options.variance_shrinkage={by_variance}: what "
                "comes of it need not be a covariance; take at most as much."
            )
        self.metrics = ClassMetrics(self.feature_dim, by_variance, by_covariance).to(self.engine.device)

    def grow(self, increment: Increment) -> None:
        super().grow(increment)
        self.metrics.grow(increment.seen_now)

    def features(self, images: Tensor) -> Tensor:
        return self.adapted(images)

    def classify(self, features: Tensor) -> Tensor:
        distances: Tensor = self.metrics(unit(features, self.config.tukey))
        return -SCALE * distances

    def settle(self, increment: Increment, features: Tensor, targets: Tensor) -> dict[str, Any]:
        self.metrics.remember(unit(features, self.config.tukey), targets, increment.classes)
        return {}

    def fixed_networks(self) -> Sequence[Callable[[Tensor], Tensor]]:
        return [self.features]

    def deployed(self) -> Iterable[nn.Module]:
        return [*super().deployed(), self.metrics]
