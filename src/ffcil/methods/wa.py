"""WA: distillation weighed by the share of old classes, then weight alignment of the head.

Zhao et al., "Maintaining Discrimination and Fairness in Class Incremental Learning", CVPR 2020, in PyCIL's form: the
head's weights are not clipped to be positive, and the head has biases, which the alignment leaves as they are.
"""

from __future__ import annotations

from torch import Tensor

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

    def mixed(self, learnt: Tensor, kept: Tensor) -> Tensor:
        share = self.teacher.classes / self.head.classes
        return (1 - share) * learnt + share * kept
