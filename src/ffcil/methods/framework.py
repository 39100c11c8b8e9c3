"""`Robustness`: which parts of the paper's framework are on, and their constants."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ffcil.alignment import Alignment, diwa, weight_alignment
from ffcil.config.settings import DiwaSettings, HaSettings, RunConfig
from ffcil.errors import InputError
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
    ha: HaSettings | None
    """None: no Head-Agnostic Alignment"""

    @classmethod
    def resolve(cls, config: RunConfig, own_alignment: str, pretrained: bool = False) -> Robustness:
        """What a configuration says, for a method whose alignment, unless it is set, is `own_alignment`."""
        reduction, alignment, ha = config.reduction, config.alignment, config.ha.use
        if reduction == "auto":
            reduction = "class_wise_mean" if config.robust else "mean"
        if pretrained and alignment in ("wa", "diwa"):
            raise InputError(
                f"alignment={alignment} has no meaning for {config.method!r}, a pre-trained method: set ha.use=true."
            )
        if ha and not pretrained:
            raise InputError(f"ha.use=true has no meaning for {config.method!r}, which is trained from scratch.")
        if alignment == "auto":
            alignment = "diwa" if config.robust and not pretrained else own_alignment  # type: ignore[assignment]
        if ha is None:
            ha = config.robust and pretrained
        return cls(REDUCTIONS[reduction], alignment, config.diwa, config.centre_weight, config.ha if ha else None)

    def align(self, weight: Tensor, increment: Increment) -> Alignment | None:
        """Align the head after a step's training, before memory and evaluation."""
        if self.alignment == "none":
            return None
        if self.alignment == "wa":
            return weight_alignment(weight, increment.seen_before)
        return diwa(weight, increment.seen_before, self.diwa.eta_min, self.diwa.tau)
