"""`Change`: one entry of a classifier's history."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Self


@dataclass(frozen=True)
class Change:
    """What one version changed."""

    version: int
    kind: str
    """learn, forget, rename or correct."""
    images: Mapping[str, int] = field(default_factory=dict)
    """Number of images of each class that came or, with a minus, went."""
    new: tuple[str, ...] = ()
    """Classes that were not known before."""
    gone: tuple[str, ...] = ()
    """Classes that are no longer known: forgotten, or known under another name."""
    accuracy: float | None = None
    """Accuracy in percent on images that were left out, over all classes known then; None if the method cannot say."""
    time: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    """When, in UTC."""

    def state(self) -> dict[str, Any]:
        return {**asdict(self), "images": dict(self.images), "new": list(self.new), "gone": list(self.gone)}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Self:
        return cls(**{**state, "new": tuple(state["new"]), "gone": tuple(state["gone"])})
