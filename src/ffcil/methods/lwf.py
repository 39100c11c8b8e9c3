"""LwF, learning without forgetting: distillation from the network of the previous step on the new images, no memory.

Li & Hoiem, ECCV 2016, in the class-incremental form that PyCIL and most later papers use.
"""

from pydantic import Field
from torch import Tensor

from ffcil.losses import cross_entropy
from ffcil.methods.conventional import Conventional
from ffcil.methods.learner import LearnerSettings, MethodConfig
from ffcil.methods.parts.teacher import Teacher
from ffcil.methods.registry import register
from ffcil.stream import Increment


class LwFConfig(MethodConfig):
    """Fields of LwF."""

    temperature: float = Field(2.0, gt=0)
    """Temperature of the distillation loss."""
    distillation_weight: float = Field(3.0, ge=0)
    """Weight of the distillation loss; the cross-entropy has weight 1."""


@register("lwf")
class LwF(Conventional):
    """Loss of every sample: cross-entropy over the new classes only + distillation over the old ones.

    Old and new rows of the head are never in one softmax, so new images cannot lower the scores of old classes, and
    only the distillation changes the old rows. But the cross-entropy over a single class is 0, so the row of a class
    that arrives alone keeps its initial values, here as in the reference.
    """

    title = "LwF"
    paper = "https://arxiv.org/abs/1606.09282"
    Config = LwFConfig
    config: LwFConfig

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__(settings, config)
        self.teacher = Teacher(self.frozen_copy(self.backbone), self.engine)

    def grow(self, increment: Increment) -> None:
        self.teacher.copy_from(self.backbone, self.head)
        super().grow(increment)

    def loss(self, images: Tensor, targets: Tensor) -> Tensor:
        old = self.teacher.classes
        if not old:
            return super().loss(images, targets)
        teacher = self.teacher.start(images)
        logits = self.head(self.features(images))
        distilled = self.teacher.distillation(logits, teacher, self.config.temperature)
        classification = cross_entropy(logits[:, old:], targets - old, self.prior_of_new)
        per_sample = classification + self.config.distillation_weight * distilled
        return self.reduce(per_sample, targets)
