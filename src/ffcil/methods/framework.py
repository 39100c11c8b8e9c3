"""`Framework`: which parts of the paper's framework and of `flow` are on, and their constants."""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

from ffcil.alignment import Alignment, diwa, shrunk_alignment, weight_alignment
from ffcil.config.flow import FLOW_PARTS
from ffcil.config.settings import DiwaSettings, HaSettings, RunConfig
from ffcil.errors import InputError
from ffcil.losses import REDUCTIONS, Reduction, log_prior
from ffcil.stream import Increment


@dataclass(frozen=True)
class Framework:
    """The parts of the framework that are on. It does not know which method uses it."""

    reduction_name: str
    """Name of the reduction: `mean` or `class_wise_mean`."""
    alignment: str
    """Alignment of the head: `none`, `wa`, `diwa` or `shrunk`."""
    diwa: DiwaSettings
    centre_weight: float
    """Weight of the centre loss; 0 turns it off."""
    ha: HaSettings | None
    """Settings of Head-Agnostic Alignment; None turns it off."""
    adjust: float = FLOW_PARTS["adjust"].off
    """Strength of the count-aware cross-entropy; 0 turns it off."""
    growth: float = FLOW_PARTS["growth"].off
    """Number of new classes after which the network is trained again, as a share of the classes seen at its last
    training; 0: every step trains."""
    enough: int = int(FLOW_PARTS["enough"].off)
    """Smallest number of new classes with which a step tunes a pre-trained backbone; 1 turns it off."""
    share: float = FLOW_PARTS["share"].off
    """Smallest number of new classes with which a step opens a feature space, as a share of the classes seen before; 0
    turns it off."""
    follow: bool = False
    """Whether the means of old classes are moved when a later step changes the network."""
    min_steps: int = int(FLOW_PARTS["min_steps"].off)
    """Smallest number of optimiser steps for tuning a pre-trained backbone on one step of the stream; 1 turns it
    off."""
    comparable: bool = False
    """Whether scores from the feature spaces of different steps are standardised before they are compared."""
    shared_ridge: bool = False
    """Whether the held-out errors of all steps so far choose the ridge of an analytic head, again at every step."""
    whiten: bool = False
    """Whether features are compared with class means in the metric of their covariance within classes."""

    @classmethod
    def resolve(cls, config: RunConfig, own_alignment: str, pretrained: bool = False, has: Container[str] = ()) -> Self:
        """Resolve a configuration for a method whose default alignment is `own_alignment`.

        Args:
            has: Attributes of the method that parts of flow need.
        """
        reduction, alignment, ha = config.reduction, config.alignment, config.ha.use
        if pretrained and alignment in ("wa", "diwa", "shrunk"):
            raise InputError(
                f"alignment={alignment} is not supported by {config.method!r}, a pre-trained method: set ha.use=true."
            )
        if ha and not pretrained:
            raise InputError(
                f"ha.use=true is not supported by {config.method!r}, which trains from scratch: set alignment=diwa."
            )
        paper = config.framework == "paper"
        if reduction == "auto":
            reduction = "class_wise_mean" if paper else "mean"
        if alignment == "auto":
            by_framework = {"paper": own_alignment if pretrained else "diwa", "flow": "none"}
            alignment = by_framework.get(config.framework, own_alignment)  # type: ignore[assignment]
        if ha is None:
            ha = paper and pretrained
        parts = _flow(config, pretrained, has, bool(ha))
        return cls(reduction, alignment, config.diwa, config.centre_weight, config.ha if ha else None, **parts)

    @property
    def reduction(self) -> Reduction:
        return REDUCTIONS[self.reduction_name]

    def prior(self, counts: Tensor) -> Tensor | None:
        """Prior that the cross-entropy adds to the logits, [C], for classes with these numbers of images, [C]; None if
        the count-aware cross-entropy is off."""
        return log_prior(counts, self.adjust) if self.adjust else None

    def describe(self) -> dict[str, Any]:
        """The parts as the records of a run keep them. `flow` has the parts of flow that are on; it is omitted if there
        are none."""
        parts = {"reduction": self.reduction_name, "alignment": self.alignment, "ha": self.ha is not None}
        values = {name: getattr(self, name) for name in FLOW_PARTS}
        flow = {name: value for name, value in values.items() if value != FLOW_PARTS[name].off}
        return {**parts, "flow": flow} if flow else parts

    def align(self, weight: Tensor, increment: Increment, past: Sequence[tuple[int, float]] = ()) -> Alignment | None:
        """Align the head in place, after the training of a step and before memory and evaluation.

        `past` has the number of new classes and the ratio of norms of every earlier alignment."""
        if self.alignment == "none":
            return None
        if self.alignment == "wa":
            return weight_alignment(weight, increment.seen_before)
        if self.alignment == "shrunk":
            return shrunk_alignment(weight, increment.seen_before, past)
        return diwa(weight, increment.seen_before, self.diwa.eta_min, self.diwa.tau)


LACKING = {
    "compares_means": "which does not compare features with class means",
    "drifts": "whose later steps do not change the space of stored class means",
    "compares_spaces": "which does not compare classes in the feature spaces of different steps",
    "chooses_ridge": "which has no analytic head",
    "trains": "which tunes its network only by options of its own, or never",
    "retrains": "which does not train the same network at every step on exemplars",
}
"""Clauses that say in an error message what a method without this attribute lacks."""


def _flow(config: RunConfig, pretrained: bool, has: Container[str], ha: bool) -> dict[str, Any]:
    """Values of the parts of `flow`. Null turns a part on if `framework` is `flow` and the part applies to the method,
    and off otherwise. Setting a part that does not apply is an error."""
    if config.flow.whiten and ha:
        raise InputError("flow.whiten=true and HA exclude each other: set flow.whiten=false, or ha.use=false.")
    values: dict[str, Any] = {}
    for name, part in FLOW_PARTS.items():
        given, of_this_kind = getattr(config.flow, name), part.pretrained == pretrained
        if given is None:
            applies = of_this_kind and (not part.needs or part.needs in has) and not (name == "whiten" and ha)
            values[name] = part.on if config.framework == "flow" and applies else part.off
            continue
        needed = part.needs or part.acts_on
        if given != part.off and not (of_this_kind and (not needed or needed in has)):
            kind = "a pre-trained method" if pretrained else "which trains from scratch"
            raise InputError(
                f"flow.{name}={str(given).lower()} is not supported by {config.method!r}, "
                f"{LACKING[needed] if of_this_kind else kind}: leave it at null."
            )
        values[name] = given
    if values["whiten"] and config.flow.comparable is None:
        # whitened cosines with wrong classes are near 0 in every space, so scores are comparable already
        values["comparable"] = False
    return values
