"""`Framework`: which parts of the paper's framework are on, and their constants."""

from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

from ffcil.alignment import Alignment, diwa, weight_alignment
from ffcil.config.settings import DiwaSettings, HaSettings, RunConfig
from ffcil.errors import InputError
from ffcil.losses import REDUCTIONS, Reduction
from ffcil.stream import Increment


@dataclass(frozen=True)
class Framework:
    """The parts of the framework that are on. It does not know which method uses it."""

    reduction_name: str
    """mean or class_wise_mean."""
    alignment: str
    """none, wa or diwa."""
    diwa: DiwaSettings
    centre_weight: float
    """Weight of the centre loss; 0 turns it off."""
    ha: HaSettings | None
    """Settings of Head-Agnostic Alignment; None turns it off."""

    @classmethod
    def resolve(cls, config: RunConfig, own_alignment: str, pretrained: bool = False) -> Self:
        """Resolve a configuration for a method whose default alignment is `own_alignment`."""
        reduction, alignment, ha = config.reduction, config.alignment, config.ha.use
        if reduction == "auto":
            reduction = "class_wise_mean" if config.robust else "mean"
        if pretrained and alignment in ("wa", "diwa"):
            raise InputError(
                f"alignment={alignment} is not supported by {config.method!r}, a pre-trained method: set ha.use=true."
            )
        if ha and not pretrained:
            raise InputError(
                f"ha.use=true is not supported by {config.method!r}, which trains from scratch: set alignment=diwa."
            )
        if alignment == "auto":
            alignment = "diwa" if config.robust and not pretrained else own_alignment  # type: ignore[assignment]
        if ha is None:
            ha = config.robust and pretrained
        return cls(reduction, alignment, config.diwa, config.centre_weight, config.ha if ha else None)

    @property
    def reduction(self) -> Reduction:
        return REDUCTIONS[self.reduction_name]

    def describe(self) -> dict[str, Any]:
        """Return the parts as the records of a run keep them."""
        return {"reduction": self.reduction_name, "alignment": self.alignment, "ha": self.ha is not None}

    def align(self, weight: Tensor, increment: Increment) -> Alignment | None:
        """Align the head in place, after the training of a step and before memory and evaluation."""
        if self.alignment == "none":
            return None
        if self.alignment == "wa":
            return weight_alignment(weight, increment.seen_before)
        return diwa(weight, increment.seen_before, self.diwa.eta_min, self.diwa.tau)
