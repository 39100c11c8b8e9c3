"""SimpleCIL: the class means of a frozen pre-trained network are the classifier. Nothing is trained.

Zhou et al., "Revisiting Class-Incremental Learning with Pre-Trained Models", IJCV 2024.
"""

from typing import Any

from torch import Tensor

from ffcil.methods.learner import LearnerSettings, MethodConfig
from ffcil.methods.parts.prototypes import SCALE, Prototypes
from ffcil.methods.pretrained import Pretrained
from ffcil.methods.registry import register
from ffcil.stream import Increment


@register("simplecil")
class SimpleCIL(Pretrained):
    """The score of a class is the cosine of a feature with the class mean."""

    title = "SimpleCIL"
    paper = "https://arxiv.org/abs/2303.07338"
    trains = False
    any_network = True
    compares_means = True
    fixed_features = True

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__(settings, config)
        self.prototypes = Prototypes(self.feature_dim).to(self.engine.device)

    def grow(self, increment: Increment) -> None:
        super().grow(increment)
        self.prototypes.grow(increment.seen_now)

    def features(self, images: Tensor) -> Tensor:
        return self.network_features(images)

    def classify(self, features: Tensor) -> Tensor:
        return SCALE * self.similarity(features, self.prototypes.means)

    def fit_classifier(self, increment: Increment, features: Tensor, targets: Tensor) -> dict[str, Any]:
        self.prototypes.remember(features, targets)
        return {}
