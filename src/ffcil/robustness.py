"""`Robustness`: which parts of the paper's framework are on, and their constants."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ffcil.alignment import Alignment, diwa, weight_alignment
from ffcil.config import DiwaSettings, RunConfig
from ffcil.losses import REDUCTIONS, Reduction
from ffcil.stream import Increment


@dataclass(frozen=True)
class Robustness:
    """Which parts of the framework are on. It does not know which method uses it."""

    reduction: Reduction
    alignment: str
    """none, wa or diwa"""
    diwa: DiwaSettings
    centre_weight: float
    """of the centre loss; 0: none"""

    @classmethod
    def resolve(cls, config: RunConfig, own_alignment: str) -> Robustness:
        reduction, alignment = config.reduction, config.alignment
        if reduction == "auto":
            reduction = "class_wise_mean" if config.robust else "mean"
        if alignment == "auto":
            alignment = "diwa" if config.robust else own_alignment  # type: ignore[assignment]
        return cls(REDUCTIONS[reduction], alignment, config.diwa, config.centre_weight)

    def align(self, weight: Tensor, increment: Increment) -> Alignment | None:
        """Align the head after a step's training, before memory and evaluation."""
        if self.alignment == "none":
            return None
        if self.alignment == "wa":
            return weight_alignment(weight, increment.seen_before)
        return diwa(weight, increment.seen_before, self.diwa.eta_min, self.diwa.tau)
