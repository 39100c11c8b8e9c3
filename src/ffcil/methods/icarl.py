"""iCaRL: cross-entropy, distillation from the network of the previous step, exemplars, nearest-mean classifier.

Rebuffi et al., CVPR 2017, in the softmax form that PyCIL and most later papers use.
"""

from pydantic import Field
from torch import Tensor

from ffcil.losses import cross_entropy
from ffcil.methods.conventional import REHEARSAL, Conventional
from ffcil.methods.learner import LearnerSettings, MethodConfig
from ffcil.methods.parts.teacher import Teacher
from ffcil.methods.registry import register
from ffcil.stream import Increment


class ICaRLConfig(MethodConfig):
    """Fields of iCaRL."""

    temperature: float = Field(2.0, gt=0)
    """Temperature of the distillation loss."""
    distillation_weight: float = Field(1.0, ge=0)
    """Weight of the distillation loss; the cross-entropy has weight 1."""


@register("icarl")
class ICaRL(Conventional):
    """Loss of every sample, new or replayed: cross-entropy over all classes + distillation over the old ones.

    The linear head is the scored classifier and is aligned (WA) in the original form, because the paper's DIWA, which
    replaces WA, changes this method's figures. PyCIL scores the nearest mean and does not align: set `alignment=none`
    and read `nearest-mean`.
    """

    title = "iCaRL"
    paper = "https://arxiv.org/abs/1611.07725"
    classifiers = REHEARSAL
    uses_memory = True
    retrains = True
    own_alignment = "wa"
    Config = ICaRLConfig
    config: ICaRLConfig

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__(settings, config)
        self.teacher = Teacher(self.frozen_copy(self.backbone), self.engine)

    def grow(self, increment: Increment) -> None:
        self.teacher.copy_from(self.backbone, self.head)
        super().grow(increment)

    def loss(self, images: Tensor, targets: Tensor) -> Tensor:
        if not self.teacher.classes:
            return super().loss(images, targets)
        teacher = self.teacher.start(images)
        features = self.features(images)
        logits = self.head(features)
        distilled = self.teacher.distillation(logits, teacher, self.config.temperature)
        per_sample = cross_entropy(logits, targets, self.prior) + self.config.distillation_weight * distilled
        return self.classification_loss(features, per_sample, targets)
