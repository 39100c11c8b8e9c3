"""FeCAM: the first step tunes the network; then the nearest class mean by a Mahalanobis distance of each class.

Goswami et al., "FeCAM: Exploiting the Heterogeneity of Class Distributions in Exemplar-Free Continual Learning",
NeurIPS 2023.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ffcil.errors import InputError
from ffcil.losses import cross_entropy
from ffcil.methods.learner import LearnerSettings, MethodConfig
from ffcil.methods.parts.adapters import OptionalAdapterConfig
from ffcil.methods.pretrained import Pretrained
from ffcil.methods.registry import register
from ffcil.models.class_statistics import ClassStatistics
from ffcil.models.heads import GrowingCosine
from ffcil.stream import Increment
from ffcil.training.fit import Training

SCALE = 10.0
"""Factor on squared distances, for the softmax through which HA is trained. It does not change which class is nearest.
Squared distances of features of length 1 are 2 - 2 cosine, so without covariances the scores would be nearly those of
SimpleCIL."""
RIDGE = 1e-10
"""Constant added to the variances of features of length 1, which are about 1 / D. It has an effect only if all images
of a class have the same features."""
AT_ONCE = 2**24
"""Largest number of elements of the differences between features and class means that are computed at a time."""


class FeCAMConfig(OptionalAdapterConfig):
    """FeCAM's own fields."""

    tukey: float = Field(1.0, gt=0, le=1)
    """Exponent lambda of Tukey's transformation x^lambda, which here keeps the sign. 1 turns it off, as the authors do
    for a ViT, whose features have both signs. They use 0.5 for positive features."""
    variance_shrinkage: float = Field(1.0, gt=0)
    """Factor gamma_1 of the mean variance, which is added to every variance."""
    covariance_shrinkage: float = Field(0.0, ge=0)
    """Factor gamma_2 of the mean covariance, which is added to every covariance; at most gamma_1. Classes with few
    images need a value below gamma_1: if the two are equal, shrinkage adds no variance along the direction in which all
    features vary together."""


def unit(features: Tensor, tukey: float) -> Tensor:
    """Transform features and scale them to length 1: [..., D] -> [..., D]"""
    if tukey != 1:
        features = features.sign() * features.abs().clamp_min(torch.finfo(features.dtype).tiny) ** tukey
    return F.normalize(features, dim=-1)


def correlation(units: Tensor, variance_shrinkage: float, covariance_shrinkage: float) -> Tensor:
    """Correlation matrix of features of length 1, from their shrunk covariance: [n, D] -> float64 [D, D]

    It is the identity for a single image.
    """
    covariance = torch.cov(units.double().mT, correction=0)  # a correction would cancel out in the correlations
    width = len(covariance)
    mean_variance = covariance.trace() / width
    mean_covariance = (covariance.sum() - covariance.trace()) / max(width * (width - 1), 1)
    covariance = covariance + covariance_shrinkage * mean_covariance
    covariance.diagonal().add_(variance_shrinkage * mean_variance - covariance_shrinkage * mean_covariance + RIDGE)
    deviations = covariance.diagonal().sqrt()
    return covariance / deviations / deviations[:, None]


class ClassMetrics(ClassStatistics):
    """Mean of every class and its metric, the inverse of its correlation matrix.

    The metrics take C D^2 numbers: 470 MB for 200 classes and 768 features. A class with a single image, or with copies
    of one image, has no correlations. It gets the mean metric of the other classes, so that its distances are
    comparable with theirs. (The paper uses one covariance for all classes if there are few images.)
    """

    varied: Tensor

    def __init__(self, features: int, variance_shrinkage: float, covariance_shrinkage: float) -> None:
        def metric(units: Tensor) -> Tensor:
            matrix = correlation(units, variance_shrinkage, covariance_shrinkage)
            return torch.cholesky_inverse(torch.linalg.cholesky(matrix))

        super().__init__(features, metric, matrix=True)
        self.register_buffer("varied", torch.empty(0, dtype=torch.bool))
        """Whether the images of each class differ."""

    @torch.no_grad()
    def remember(self, features: Tensor, targets: Tensor) -> None:
        super().remember(features, targets)
        for label in targets.unique():
            own = features[targets == label]
            self.varied[label] = (own != own[0]).any()
        if self.varied.any() and not self.varied.all():
            share = self.varied.to(self.spreads) / self.varied.sum()
            self.spreads[~self.varied] = torch.tensordot(share, self.spreads, dims=1)

    def forward(self, units: Tensor) -> Tensor:
        """Squared distances: [B, D] -> [B, classes]"""
        classes = max(AT_ONCE // max(units.numel(), 1), 1)  # that are compared at a time
        parts = zip(self.means.split(classes), self.spreads.split(classes), strict=True)
        return torch.cat([_distances(units, means, metrics) for means, metrics in parts], dim=1)


def _distances(units: Tensor, means: Tensor, metrics: Tensor) -> Tensor:
    """Squared distances to class means: [B, D], [C, D], [C, D, D] -> [B, C]"""
    difference = units - means[:, None]  # [C, B, D]
    return (torch.bmm(difference, metrics) * difference).sum(dim=-1).mT


@register("fecam")
class FeCAM(Pretrained):
    """Every class has its own covariance of features: the paper's form for many images.

    Adapters and a cosine head are trained in the first step, or in the first with `flow.enough` classes, and then
    frozen. Features are scaled to length 1 before statistics are computed, as in the authors' scripts for a ViT, and
    covariances are shrunk once, as in the paper.

    HA is trained on drawn features of earlier classes, which have the variances of these classes but not their
    correlations. The distances depend on correlations, so HA can lower the accuracy.
    """

    title = "FeCAM"
    paper = "https://arxiv.org/abs/2309.14062"
    classifiers: ClassVar[Mapping[str, str]] = {"mahalanobis": "mahalanobis"}
    Config = FeCAMConfig
    config: FeCAMConfig
    training_only = ("head",)
    fixed_features = True
    any_network = True

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__(settings, config)
        variance, covariance = self.config.variance_shrinkage, self.config.covariance_shrinkage
        if covariance > variance:
            raise InputError(
                f"options.covariance_shrinkage={covariance} is above options.variance_shrinkage={variance}, so that "
                "the result may not be a covariance: lower it."
            )
        self.adapters = self.fresh_adapters(self.config.rank)
        self.head = GrowingCosine(self.feature_dim).to(self.engine.device)
        """Head for the training of the adapters."""
        self.metrics = ClassMetrics(self.feature_dim, variance, covariance).to(self.engine.device)

    @property
    def tunes_network(self) -> bool:
        return self.config.rank > 0

    def grow(self, increment: Increment) -> None:
        super().grow(increment)
        self.metrics.grow(increment.seen_now)
        if self.tunes_first:
            self.head.grow(len(increment.classes))
        for part in (self.adapters, self.head):
            part.requires_grad_(self.tunes_first)

    def training_plan(self, increment: Increment) -> Training | None:
        return self.train_on_images(increment) if self.tunes_first else None

    def loss(self, images: Tensor, targets: Tensor) -> Tensor:
        return self.reduce(cross_entropy(self.head(self.features(images)), targets - self.old_classes), targets)

    def features(self, images: Tensor) -> Tensor:
        return self.adapted(self.adapters, images)

    def classify(self, features: Tensor) -> Tensor:
        distances: Tensor = self.metrics(unit(features, self.config.tukey))
        return -SCALE * distances

    def fit_classifier(self, increment: Increment, features: Tensor, targets: Tensor) -> dict[str, Any]:
        self.metrics.remember(unit(features, self.config.tukey), targets)
        return {}
