"""Parts of the frameworks that a run used, and the names of their combinations."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from ffcil.config.earlier import identity_term
from ffcil.config.flow import FLOW_PARTS

FLOW_NAMES = {
    "adjust": "adjusted loss",
    "growth": "gathered training",
    "enough": "minimum of classes",
    "share": "spaces of large steps",
    "follow": "means that follow",
    "min_steps": "minimum of optimiser steps",
    "comparable": "comparable scores",
    "shared_ridge": "shared ridge",
    "whiten": "shared metric",
}
"""Names of the parts of flow in tables."""


@dataclass(frozen=True)
class Parts:
    """Parts of the frameworks that were on."""

    cwm: bool
    """Whether losses were reduced by the class-wise mean."""
    alignment: str
    """`own` (that of the original method), `none`, `wa`, `diwa` or `shrunk`."""
    aligned: bool
    """Whether the head was aligned after training."""
    ha: bool
    """Whether Head-Agnostic Alignment was trained."""
    surrogates: bool
    """Whether HA used surrogate features of earlier classes."""
    identity: str
    """Identity term of HA: `sum`, `mean` or `none`; `none` also if HA was not used."""
    centre: bool
    """Whether the centre loss was used."""
    flow: tuple[str, ...] = ()
    """Parts of flow that were on, by the name of their field."""
    method: str = ""
    """Name of the method. It determines which parts of flow apply."""

    @classmethod
    def of(cls, config: Mapping[str, Any], method: Mapping[str, Any]) -> Self:
        """Parts of a run, from its configuration and from what the run stored of its method."""
        framework, ha = method["framework"], config.get("ha", {})
        alignment, use_ha = framework["alignment"], framework["ha"]
        return cls(
            cwm=framework["reduction"] == "class_wise_mean",
            alignment="own" if alignment == method["own_alignment"] else alignment,
            aligned=alignment != "none",
            ha=use_ha,
            surrogates=use_ha and ha.get("surrogates", 1) > 0,
            identity=identity_term(ha.get("identity", "sum")) if use_ha else "none",
            centre=config.get("centre_weight", 0) > 0,
            flow=tuple(name for name in FLOW_PARTS if name in framework.get("flow", {})),
            method=config.get("method", ""),
        )

    @property
    def name(self) -> str:
        """`org` for the original method, `ours` for the paper's framework, `flow`, or else the parts: `CWM + WA`."""
        flow = self.flow_names
        parts = ["CWM"] if self.cwm else []
        if not (flow and flow[0].startswith("flow")):  # flow implies no alignment
            parts += {"none": ["no alignment"], "wa": ["WA"], "diwa": ["DIWA"], "shrunk": ["shrunk WA"]}.get(
                self.alignment, []
            )
        if self.ha:
            inner = {"surrogates": self.surrogates, "identity": self.identity != "none"}
            missing = [word for word, used in inner.items() if not used]
            other = " with mean identity" if self.identity == "mean" else ""
            without = f" without {' and '.join(missing)}" if missing else ""
            parts.append(f"HA{other}{without}")
        parts += ["centre loss"] if self.centre else []
        if not parts + flow:
            return "org"
        return "ours" if parts + flow in (["CWM", "DIWA"], ["CWM", "HA"]) else " + ".join([*flow, *parts])

    @property
    def pretrained(self) -> bool:
        """Whether any part was on that is only for pre-trained methods."""
        return self.ha or any(FLOW_PARTS[name].pretrained for name in self.flow)

    @property
    def flow_names(self) -> list[str]:
        """`flow` if all parts that apply to the method are on, `flow without ...` if most of them are, or else the
        names of the parts."""
        if not self.flow:
            return []
        whole = {
            name
            for name, part in FLOW_PARTS.items()
            if part.pretrained == self.pretrained and (not part.methods or self.method in part.methods)
        }
        whole |= {name for name in self.flow if FLOW_PARTS[name].needs}  # also in methods that are not built in
        if "whiten" in whole and "whiten" in self.flow:  # it replaces comparable scores
            whole.discard("comparable")
        missing, more = whole.difference(self.flow), [name for name in self.flow if name not in whole]
        if self.aligned or len(missing) > max(1, len(whole) // 3):
            return [FLOW_NAMES[name] for name in self.flow]
        without = " and ".join(FLOW_NAMES[name] for name in FLOW_PARTS if name in missing)
        return [f"flow without {without}" if missing else "flow", *(FLOW_NAMES[name] for name in more)]

    @property
    def label(self) -> str:
        """Names of the parts that are on: `original`, `CWM`, `CWM + DIWA`."""
        if self.name == "ours":
            return "CWM + HA" if self.ha else "CWM + DIWA"
        return "original" if self.name == "org" else self.name

    @property
    def rank(self) -> tuple[Any, ...]:
        """Sort key: the original method, then combinations of parts, fewer before more, then the paper's framework,
        then parts of flow."""
        name = self.name
        parts = (self.ha, self.cwm, self.alignment != "own", len(self.flow))
        return (name == "flow", bool(self.flow), name == "ours", name != "org", *parts, name)
