"""EWC, elastic weight consolidation: parameters that mattered to earlier steps are held by springs; no memory.

Kirkpatrick et al., PNAS 2017, in PyCIL's form: one spring for all earlier steps, its stiffness the running mean of
their Fisher diagonals, not a spring for each step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from ffcil.losses import cross_entropy
from ffcil.methods.finetune import Finetune
from ffcil.methods.learner import LearnerSettings, MethodConfig, register
from ffcil.stream import Increment
from ffcil.training.fit import derive_seed


class EWCConfig(MethodConfig):
    """EWC's own fields."""

    stiffness: float = Field(1000.0, ge=0)
    """lambda of eq. (3): of the penalty against cross-entropy"""
    fisher_max: float = Field(1e-4, gt=0)
    """no parameter counts for more than this, so that no spring is stiffer than SGD can follow"""


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """Backbone tensors, then the head's weight [C, D] and bias [C] class by class, as one vector.

    The vector of fewer classes is thus the beginning of the vector of more.
    """
    *backbone, weight, bias = tensors
    rows = torch.cat([weight, bias.unsqueeze(1)], dim=1)  # [C, D + 1]
    return torch.cat([tensor.flatten() for tensor in (*backbone, rows)])


@register("ewc")
class EWC(Finetune):
    """Cross-entropy over the new classes + lambda / 2 * sum of F (parameter - its value after the step before)^2.

    As in the reference, cross-entropy leaves the old classes out, which no image would defend; over a single class it
    is 0, so the row of a class that arrives alone stays as it was drawn.
    """

    title = "EWC"
    paper = "https://arxiv.org/abs/1612.00796"
    Config = EWCConfig
    config: EWCConfig

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__(settings, config)
        self.old = 0
        """classes of the steps before"""
        self.fisher = self.anchor = torch.empty(0, device=self.engine.device)
        """importance and value of every parameter after the step before, [parameters then]"""

    def grow(self, increment: Increment) -> None:
        super().grow(increment)
        self.old = increment.seen_before

    def held(self) -> list[nn.Parameter]:
        return [*self.backbone.parameters(), self.head.weight, self.head.bias]

    def penalty(self) -> Tensor:
        """The springs' part of eq. (3). Rows of new classes have no past and are free."""
        moved = flat(self.held())[: len(self.anchor)] - self.anchor
        return 0.5 * self.config.stiffness * (self.fisher * moved.square()).sum()

    def loss(self, images: Tensor, targets: Tensor) -> Tensor:
        if self.old == 0:
            return super().loss(images, targets)
        logits = self.head(self.features(images))
        per_sample = cross_entropy(logits[:, self.old :], targets - self.old)
        return self.reduce(per_sample, targets) + self.penalty()

    def finish(self, increment: Increment) -> dict[str, Any]:
        notes = super().finish(increment)  # alignment first: later steps start from what it leaves
        fisher, known = self.fisher_diagonal(increment), len(self.fisher)
        share = increment.seen_before / increment.seen_now
        fisher[:known] = share * self.fisher + (1 - share) * fisher[:known]
        self.fisher, self.anchor = fisher, flat(self.held()).detach()
        return notes

    def fisher_diagonal(self, increment: Increment) -> Tensor:
        """Mean over batches of the squared gradient of a batch's loss over all classes, cut at `fisher_max`.

        Of a batch, not of a sample, as in the reference, whose lambda is made for it. Unlike there, the images are
        untouched and the network evaluates: it is the finished network that is measured, and that leaves it as it is.
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
