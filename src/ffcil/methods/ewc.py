"""EWC, elastic weight consolidation: a penalty holds parameters that mattered to earlier steps; no memory.

Kirkpatrick et al., PNAS 2017, in PyCIL's form: one penalty for all earlier steps, weighted by the running mean of their
Fisher diagonals, instead of one penalty per step.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from ffcil.losses import cross_entropy
from ffcil.methods.conventional import Conventional
from ffcil.methods.learner import LearnerSettings, MethodConfig
from ffcil.methods.registry import register
from ffcil.stream import Increment
from ffcil.training.seeds import derive_seed


class EWCConfig(MethodConfig):
    """Fields of EWC."""

    stiffness: float = Field(1000.0, ge=0)
    """Weight of the penalty, lambda of eq. (3); the cross-entropy has weight 1."""
    fisher_max: float = Field(1e-4, gt=0)
    """Upper bound of a parameter's importance, so that SGD remains stable."""


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """Join tensors to one vector: those of the backbone, then the head's weight [C, D] and bias [C], class by class.

    In this order, the vector of fewer classes is a prefix of the vector of more classes.
    """
    *backbone, weight, bias = tensors
    rows = torch.cat([weight, bias.unsqueeze(1)], dim=1)  # [C, D + 1]
    return torch.cat([tensor.flatten() for tensor in (*backbone, rows)])


@register("ewc")
class EWC(Conventional):
    """Cross-entropy over the new classes + lambda / 2 * sum of F (parameter - its value after the step before)^2.

    As in the reference, the cross-entropy is over the new classes only, because there are no images of old ones. Over a
    single class it is 0, so the row of a class that arrives alone keeps its initial values.
    """

    title = "EWC"
    paper = "https://arxiv.org/abs/1612.00796"
    Config = EWCConfig
    config: EWCConfig

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__(settings, config)
        self.old = 0
        """Number of classes of earlier steps."""
        self.fisher = self.anchor = torch.empty(0, device=self.engine.device)
        """Importance (`fisher`) and value (`anchor`) of every parameter after the previous step, [parameters then]."""

    def grow(self, increment: Increment) -> None:
        super().grow(increment)
        self.old = increment.seen_before

    def held(self) -> list[nn.Parameter]:
        """Parameters that the penalty applies to."""
        return [*self.backbone.parameters(), self.head.weight, self.head.bias]

    def penalty(self) -> Tensor:
        """The penalty of eq. (3). It does not apply to rows of new classes."""
        moved = flat(self.held())[: len(self.anchor)] - self.anchor
        return 0.5 * self.config.stiffness * (self.fisher * moved.square()).sum()

    def loss(self, images: Tensor, targets: Tensor) -> Tensor:
        if self.old == 0:
            return super().loss(images, targets)
        logits = self.head(self.features(images))
        per_sample = cross_entropy(logits[:, self.old :], targets - self.old, self.prior_of_new)
        return self.reduce(per_sample, targets) + self.penalty()

    def finish(self, increment: Increment) -> dict[str, Any]:
        notes = super().finish(increment)  # alignment first: later steps start from the aligned head
        fisher, known = self.fisher_diagonal(increment), len(self.fisher)
        share = increment.seen_before / increment.seen_now
        fisher[:known] = share * self.fisher + (1 - share) * fisher[:known]
        self.fisher, self.anchor = fisher, flat(self.held()).detach()
        return notes

    def fisher_diagonal(self, increment: Increment) -> Tensor:
        """Mean over batches of the squared gradient of a batch's loss over all classes, at most `fisher_max`.

        As in the reference, gradients are those of batches, not of samples: its lambda fits them. Unlike in the
        reference, images are not augmented and the network is in evaluation mode, so that the trained network is
        measured and does not change.
        """
        shuffle = torch.Generator().manual_seed(derive_seed(self.settings.seed, increment.step, "Fisher"))
        rows = increment.rows[torch.randperm(len(increment.rows), generator=shuffle).to(increment.rows.device)]
        batches, held = rows.split(self.settings.train.batch), self.held()
        total = torch.zeros_like(flat(held).detach())
        for batch in batches:
            images, targets = increment.train.images, increment.train.labels[batch]
            with torch.enable_grad():
                logits = self.head(self.features(self.settings.augmentation.plain(images, batch)))
                loss = self.reduce(cross_entropy(logits, targets), targets)
            total += flat(torch.autograd.grad(loss, held)).square()
        return (total / len(batches)).clamp(max=self.config.fisher_max)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "fisher": self.fisher, "anchor": self.anchor}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self.fisher, self.anchor = (state[name].to(self.engine.device) for name in ("fisher", "anchor"))
