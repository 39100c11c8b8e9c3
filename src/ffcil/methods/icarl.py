"""iCaRL: cross-entropy, distillation from the network of the step before, herded exemplars, nearest-mean classifier.

Rebuffi et al., CVPR 2017, in the softmax form in which PyCIL and the field run it.
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from ffcil.losses import cross_entropy, distillation
from ffcil.methods.learner import MethodConfig, register
from ffcil.methods.parts.teacher import Distilling
from ffcil.methods.replay import Replay


class ICaRLConfig(MethodConfig):
    """iCaRL's own fields."""

    temperature: float = Field(2.0, gt=0)
    """of the distillation"""
    distillation_weight: float = Field(1.0, ge=0)
    """of the distillation term against cross-entropy"""


@register("icarl")
class ICaRL(Distilling, Replay):
    """Loss of every sample, new or replayed: cross-entropy over all classes + distillation over the old ones.

    The linear head is the scored classifier and is aligned (WA) in the original form, because the paper's DIWA, which
    replaces WA, moves this method's figures. PyCIL scores the nearest mean and does not align: `alignment=none`, and
    read `nearest-mean`.
    """

    title = "iCaRL"
    paper = "https://arxiv.org/abs/1611.07725"
    Config = ICaRLConfig
    config: ICaRLConfig
    own_alignment = "wa"

    def loss(self, images: Tensor, targets: Tensor) -> Tensor:
        old = self.teacher.classes
        if old == 0:
            return super().loss(images, targets)
        teacher = self.engine.aside(lambda: self.teacher(images))
        features = self.features(images)
        logits = self.head(features)
        kept = self.config.distillation_weight * distillation(logits[:, :old], teacher(), self.config.temperature)
        per_sample = self.mixed(cross_entropy(logits, targets), kept)
        return self.reduce(per_sample, targets) + self.spread(features, targets)

    def mixed(self, learnt: Tensor, kept: Tensor) -> Tensor:
        """Cross-entropy and distillation of every sample, [B] each, as one loss."""
        return learnt + kept
