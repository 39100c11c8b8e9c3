"""WA: distillation weighted by the share of old classes, then weight alignment of the head.

Zhao et al., "Maintaining Discrimination and Fairness in Class Incremental Learning", CVPR 2020, in PyCIL's form: the
head's weights are not clipped to be positive, and the head has biases, which the alignment does not change.
"""

from torch import Tensor

from ffcil.losses import cross_entropy
from ffcil.methods.conventional import REHEARSAL, Conventional
from ffcil.methods.icarl import ICaRLConfig
from ffcil.methods.learner import LearnerSettings, MethodConfig
from ffcil.methods.parts.teacher import Teacher
from ffcil.methods.registry import register
from ffcil.stream import Increment


@register("wa")
class WA(Conventional):
    """Loss of every sample, new or replayed: (1 - share) * cross-entropy + share * distillation, where `share` is the
    share of old classes among all classes seen. So one new class beside many old ones hardly changes the network.

    The fields are those of iCaRL. `distillation_weight`, 1 in the paper, is another factor on the distillation.
    """

    title = "WA"
    paper = "https://arxiv.org/abs/1911.07053"
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
        distilled = self.config.distillation_weight * self.teacher.distillation(
            logits, teacher, self.config.temperature
        )
        classification = cross_entropy(logits, targets, self.prior)
        per_sample = self.teacher.weigh_by_share(classification, distilled, self.head.classes)
        return self.classification_loss(features, per_sample, targets)
