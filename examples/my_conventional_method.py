"""Focal replay: exemplars and the focal loss, which gives less weight to samples that are already classified well.

A method that trains a network from scratch, in one file. It is used without installing it or editing another file:

    ffcil methods --import examples/my_conventional_method.py
    ffcil run glyphs --import examples/my_conventional_method.py --set method=focal --set options.gamma=1
"""

from pydantic import Field
from torch import Tensor

from ffcil.losses import cross_entropy
from ffcil.methods import MethodConfig, register
from ffcil.methods.conventional import REHEARSAL, Conventional


class FocalConfig(MethodConfig):
    """Fields of focal replay."""

    gamma: float = Field(2.0, ge=0)
    """Exponent of the factor (1 - p), where p is the probability of the true class; 0 gives the cross-entropy."""


@register("focal")
class FocalReplay(Conventional):
    """Loss of every sample, new or replayed: (1 - p)^gamma times its cross-entropy."""

    title = "Focal replay"
    paper = "https://arxiv.org/abs/1708.02002"
    classifiers = REHEARSAL
    uses_memory = True
    own_alignment = "wa"
    Config = FocalConfig
    config: FocalConfig

    def loss(self, images: Tensor, targets: Tensor) -> Tensor:
        features = self.features(images)
        loss = cross_entropy(self.head(features), targets)  # [B]
        focal = (1 - (-loss).exp()) ** self.config.gamma * loss
        return self.classification_loss(features, focal, targets)
