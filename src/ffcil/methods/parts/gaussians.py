"""The second training of a head, on features drawn from a Gaussian per class.

SLCA introduced this classifier alignment (Zhang et al., ICCV 2023); several methods on pre-trained networks use it. The
Gaussian of a class describes the feature space in which the class was learned and is never updated.
"""

from dataclasses import dataclass
from functools import partial
from typing import Self

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor, nn

from ffcil.losses import Reduction, cross_entropy
from ffcil.methods.learner import LearnerSettings
from ffcil.methods.parts.adapters import AdapterConfig
from ffcil.models.class_statistics import ClassStatistics, cholesky_factor, ridge_deviation
from ffcil.training.batches import FeatureSource
from ffcil.training.engine import Engine
from ffcil.training.fit import Optimisation, ParameterGroup, Training, cosine_rate, fit
from ffcil.training.progress import FitProgress


class GaussianHeadConfig(AdapterConfig):
    """Fields of a method with adapters per step and one head that is trained a second time."""

    rank: PositiveInt = 16
    """Rank of the adapters."""
    head_epochs: NonNegativeInt = 30
    """Epochs of the head's second training, on drawn features; 0 turns it off."""
    head_learning_rate: float = Field(0.005, gt=0)
    """Learning rate of the first epoch of the head's second training."""
    head_draws: PositiveInt | None = None
    """Number of features drawn per class in each epoch of the second training; null: five times the batch size."""
    diagonal: bool = False
    """Whether features are drawn from diagonal covariances instead of full ones."""
    released: bool = False
    """Whether to follow the authors' released code where it departs from their algorithm and results change."""


def class_gaussians(features: int, diagonal: bool) -> ClassStatistics:
    """A Gaussian per class. A diagonal covariance takes [C, D] numbers instead of [C, D, D]."""
    return ClassStatistics(features, ridge_deviation if diagonal else cholesky_factor, matrix=not diagonal)


@dataclass(frozen=True)
class HeadTraining:
    """Trains a head a second time, on features drawn from the Gaussians of all classes."""

    draws: int
    """Number of features per class and epoch, and size of a batch: an epoch has one batch per class."""
    optimisation: Optimisation
    reduce: Reduction
    engine: Engine

    @classmethod
    def create(cls, settings: LearnerSettings, config: GaussianHeadConfig, period: int) -> Self:
        """`period` is the number of epochs in which the cosine schedule falls to zero, after which it rises again."""
        rate = partial(cosine_rate, config.head_learning_rate, period)
        optimisation = Optimisation(config.head_epochs, rate, settings.train.later.weight_decay)
        draws = config.head_draws or 5 * settings.train.batch
        return cls(draws, optimisation, settings.framework.reduction, settings.engine)

    def train(
        self, head: nn.Module, gaussians: ClassStatistics, generator: torch.Generator, mean_scale: Tensor | None = None
    ) -> float:
        """Train `head`, from features [B, D] to scores [B, C], and return the mean loss of the last epoch.

        `generator` draws and shuffles the features; `mean_scale` [C] is a factor on the mean of each class."""
        device = gaussians.means.device
        shape = (gaussians.classes, self.draws, gaussians.means.shape[1])
        targets = torch.arange(gaussians.classes, device=device).repeat_interleave(self.draws)

        def draw() -> tuple[Tensor, Tensor]:
            noise = torch.randn(shape, generator=generator, device=device)
            return gaussians.draw(noise, mean_scale).flatten(0, 1), targets

        def loss(features: Tensor, targets: Tensor) -> Tensor:
            return self.reduce(cross_entropy(head(features), targets), targets)

        training = Training(
            loss,
            [ParameterGroup([parameter for parameter in head.parameters() if parameter.requires_grad])],
            FeatureSource(draw, len(targets), self.draws, generator),
            self.optimisation,
            generator.initial_seed(),
            remedy="lower options.head_learning_rate",
        )
        return fit(training, self.engine, FitProgress(loss=0.0)).loss
