"""SLDA: linear discriminant analysis on the features of a frozen ViT, from class means and one shared covariance.

Hayes & Kanan, "Lifelong Machine Learning with Deep Streaming Linear Discriminant Analysis", CVPR Workshops 2020.

A method on a pre-trained network, in one file. It is used without installing it or editing another file:

    ffcil methods --import examples/my_pretrained_method.py
    ffcil run glyphs --import examples/my_pretrained_method.py --set method=slda --set framework=paper
"""

from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from ffcil.methods import LearnerSettings, MethodConfig, register
from ffcil.methods.pretrained import Pretrained
from ffcil.models.class_statistics import ClassMeans
from ffcil.stream import Increment


class SLDAConfig(MethodConfig):
    """Fields of SLDA."""

    shrinkage: float = Field(0.01, gt=0, le=1)
    """Weight of the identity matrix in the covariance."""


@register("slda")
class SLDA(Pretrained):
    """The score of a class is linear in the features h: w h - w mean / 2, with w = precision * mean."""

    title = "SLDA"
    paper = "https://arxiv.org/abs/1909.01520"
    classifiers: ClassVar = {"lda": "linear discriminant"}
    trains = False  # nothing is optimised, so there is no `loss`
    fixed_features = True  # test features are computed once
    any_network = True  # it only reads features, of a ViT or of any other network of timm
    Config = SLDAConfig
    config: SLDAConfig
    scatter: Tensor
    images: Tensor
    precision: Tensor

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__(settings, config)
        size, device = self.feature_dim, self.engine.device
        self.classes = ClassMeans(size).to(device)
        self.register_buffer("scatter", torch.zeros(size, size, device=device))
        self.register_buffer("images", torch.zeros((), device=device))
        self.register_buffer("precision", torch.eye(size, device=device))

    def grow(self, increment: Increment) -> None:
        super().grow(increment)
        self.classes.grow(increment.seen_now)

    def features(self, images: Tensor) -> Tensor:
        return self.network_features(images)

    def fit_classifier(self, increment: Increment, features: Tensor, targets: Tensor) -> dict[str, Any]:
        self.classes.remember(features, targets)
        centred = features - self.classes.means[targets]
        self.scatter += centred.T @ centred
        self.images += len(features)
        identity = torch.eye(self.feature_dim, device=features.device)
        shrinkage = self.config.shrinkage
        covariance = (1 - shrinkage) * self.scatter / self.images + shrinkage * identity
        self.precision.copy_(torch.linalg.inv(covariance))
        return {}

    def classify(self, features: Tensor) -> Tensor:
        weight = self.classes.means @ self.precision  # [classes, D]
        return features @ weight.T - (weight * self.classes.means).sum(dim=1) / 2
