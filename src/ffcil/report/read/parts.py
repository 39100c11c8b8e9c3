"""Parts of the paper's framework that a run used, and the names of their combinations."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from ffcil.config.settings import identity_term


@dataclass(frozen=True)
class Parts:
    """Parts of the framework that were on."""

    cwm: bool
    """Whether losses were reduced by the class-wise mean."""
    alignment: str
    """`own` (that of the original method), `none`, `wa` or `diwa`."""
    ha: bool
    """Whether Head-Agnostic Alignment was trained."""
    surrogates: bool
    """Whether HA used surrogate features of earlier classes."""
    identity: str
    """Identity term of HA: `sum`, `mean` or `none`; `none` also if HA was not used."""
    centre: bool
    """Whether the centre loss was used."""

    @classmethod
    def of(cls, config: Mapping[str, Any], method: Mapping[str, Any]) -> Self:
        """Parts of a run, from its configuration and from what the run stored of its method."""
        framework, ha = method["framework"], config.get("ha", {})
        alignment, use_ha = framework["alignment"], framework["ha"]
        return cls(
            cwm=framework["reduction"] == "class_wise_mean",
            alignment="own" if alignment == method["own_alignment"] else alignment,
            ha=use_ha,
            surrogates=use_ha and ha.get("surrogates", 1) > 0,
            identity=identity_term(ha.get("identity", "sum")) if use_ha else "none",
            centre=config.get("centre_weight", 0) > 0,
        )

    @property
    def name(self) -> str:
        """`org` for the original method, `ours` for the whole framework, otherwise the list of parts: `CWM + WA`."""
        parts = ["CWM"] if self.cwm else []
        parts += {"none": ["no alignment"], "wa": ["WA"], "diwa": ["DIWA"]}.get(self.alignment, [])
        if self.ha:
            inner = {"surrogates": self.surrogates, "identity": self.identity != "none"}
            missing = [word for word, used in inner.items() if not used]
            other = " with mean identity" if self.identity == "mean" else ""
            without = f" without {' and '.join(missing)}" if missing else ""
            parts.append(f"HA{other}{without}")
        parts += ["centre loss"] if self.centre else []
        if not parts:
            return "org"
        return "ours" if parts in (["CWM", "DIWA"], ["CWM", "HA"]) else " + ".join(parts)

    @property
    def label(self) -> str:
        """Names of the parts that are on: `original`, `CWM`, `CWM + DIWA`."""
        if self.name == "ours":
            return "CWM + HA" if self.ha else "CWM + DIWA"
        return "original" if self.name == "org" else self.name

    @property
    def rank(self) -> tuple[Any, ...]:
        """Sort key: the original method first, the whole framework last, fewer parts before more."""
        name = self.name
        return (name == "ours", name != "org", self.ha, self.cwm, self.alignment != "own", name)
