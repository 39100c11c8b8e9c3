"""LwF, learning without forgetting: distillation from the network of the step before on the new images, no memory.

Li & Hoiem, ECCV 2016, in the class-incremental form in which PyCIL and the field run it.
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from ffcil.losses import cross_entropy, distillation
from ffcil.methods.learner import MethodConfig, register
from ffcil.methods.parts.teacher import Distilling


class LwFConfig(MethodConfig):
    """LwF's own fields."""

    temperature: float = Field(2.0, gt=0)
    """of the distillation"""
    distillation_weight: float = Field(3.0, ge=0)
    """of the distillation term against cross-entropy"""


@register("lwf")
class LwF(Distilling):
    """Loss of every sample: cross-entropy over the new classes alone + distillation over the old ones.

    Old and new rows of the head so meet in no softmax: the new images cannot push the old classes down, and nothing
    but distillation moves the old rows. The price: cross-entropy over a single class is 0, so the row of a class that
    arrives alone stays as it was drawn, here as in the reference.
    """

    title = "LwF"
    paper = "https://arxiv.org/abs/1606.09282"
    Config = LwFConfig
    config: LwFConfig

    def loss(self, images: Tensor, targets: Tensor) -> Tensor:
        old = self.teacher.classes
        if old == 0:
            return super().loss(images, targets)
        teacher = self.engine.aside(lambda: self.teacher(images))
        logits = self.head(self.features(images))
        learnt = cross_entropy(logits[:, old:], targets - old)
        kept = distillation(logits[:, :old], teacher(), self.config.temperature)
        return self.reduce(learnt + self.config.distillation_weight * kept, targets)
