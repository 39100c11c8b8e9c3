"""WA: distillation weighed by the share of old classes, then weight alignment of the head.

Zhao et al., "Maintaining Discrimination and Fairness in Class Incremental Learning", CVPR 2020, in PyCIL's form: the
head's weights are not clipped to be positive, and the head has biases, which the alignment leaves as they are.
"""

from __future__ import annotations

from torch import Tensor

from ffcil.losses import cross_entropy, distillation
from ffcil.methods.icarl import ICaRL
from ffcil.methods.learner import register


@register("wa")
class WA(ICaRL):
    """Loss of every sample, new or replayed: (1 - share) * cross-entropy + share * distillation, where `share` is that
    of the old classes among all seen: one new class beside many old ones hardly moves the network. The fields are
    iCaRL's; its weight of the distillation, 1 in the paper, comes on top of the share.
    """

    title = "WA"
    paper = "https://arxiv.org/abs/1911.07053"
    own_alignment = "wa"

    def loss(self, images: Tensor, targets: Tensor) -> Tensor:
        old = self.teacher.classes
        if old == 0:
            return super().loss(images, targets)
        teacher = self.engine.aside(lambda: self.teacher(images))
        features = self.features(images)
        logits = self.head(features)
        share = old / self.head.classes
        kept = self.config.distillation_weight * distillation(logits[:, :old], teacher(), self.config.temperature)
        per_sample = (1 - share) * cross_entropy(logits, targets) + share * kept
        return self.reduce(per_sample, targets) + self.spread(features, targets)
