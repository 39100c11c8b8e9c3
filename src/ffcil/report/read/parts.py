"""Which parts of the paper's framework a run had, read from its configuration: the names of settings come from here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Parts:
    """The parts of the framework that were on."""

    cwm: bool
    alignment: str
    """own (the method's), none, wa or diwa"""
    ha: bool
    surrogates: bool
    """of HA: features drawn of earlier classes"""
    identity: bool
    """of HA: aligned features held near the features themselves"""
    centre: bool

    @classmethod
    def of(
        cls, config: Mapping[str, Any], records: Sequence[Mapping[str, Any]], own_alignment: str | None = None
    ) -> Parts:
        """`robust` turns on DIWA or HA, whichever the method has: only the records tell which.

        A method that trains HA notes its loss; one with a linear head, which DIWA aligns, notes the norms of its rows.
        `own_alignment` is the method's where that is known: asked for by name, it is no part of the framework.
        """
        robust, ha = bool(config["robust"]), config.get("ha", {})
        reduction, alignment, use = config.get("reduction", "auto"), config.get("alignment", "auto"), ha.get("use")
        noted = {name for record in records for name in record}
        if use is None:
            use = robust and "ha_loss" in noted
        if alignment == "auto":
            has_no_head = ha.get("use") is False and "row_norms" not in noted
            alignment = "diwa" if robust and not use and not has_no_head else "own"
        elif alignment == own_alignment:
            alignment = "own"
        return cls(
            cwm=robust if reduction == "auto" else reduction == "class_wise_mean",
            alignment=alignment,
            ha=use,
            surrogates=use and ha.get("surrogates", 1) > 0,
            identity=use and ha.get("identity", True),
            centre=config.get("centre_weight", 0) > 0,
        )

    @property
    def name(self) -> str:
        """`org`: the original method; `ours`: the whole framework; otherwise what there is of it, as in `CWM + WA`."""
        told = ["CWM"] if self.cwm else []
        told += {"none": ["no alignment"], "wa": ["WA"], "diwa": ["DIWA"]}.get(self.alignment, [])
        if self.ha:
            lacks = [
                word for word, there in (("surrogates", self.surrogates), ("identity", self.identity)) if not there
            ]
            told.append(f"HA without {' and '.join(lacks)}" if lacks else "HA")
        told += ["centre loss"] if self.centre else []
        if not told:
            return "org"
        return "ours" if told in (["CWM", "DIWA"], ["CWM", "HA"]) else " + ".join(told)

    @property
    def rank(self) -> tuple[Any, ...]:
        """Sort key: the original first, the whole last, and between them the fewer parts first."""
        name = self.name
        return (name == "ours", name != "org", self.ha, self.cwm, self.alignment != "own", name)
