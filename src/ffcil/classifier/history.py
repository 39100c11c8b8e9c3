"""`Change`: one entry of a classifier's history."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Self


@dataclass(frozen=True)
class Change:
    """The change that made a version."""

    version: int
    kind: str
    """`learn`, `forget`, `rename` or `correct`."""
    images: Mapping[str, int] = field(default_factory=dict)
    """Number of images of each class that were added or, if negative, removed."""
    new: tuple[str, ...] = ()
    """Names of classes that were not known before."""
    gone: tuple[str, ...] = ()
    """Names of classes that are no longer known: forgotten, or known under another name."""
    accuracy: float | None = None
    """Accuracy in percent on images that were left out, over all classes known then; None if the method cannot say."""
    new_accuracy: float | None = None
    """The same over the classes of which the first images came."""
    time: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    """Time of the change, in UTC."""

    @property
    def learned(self) -> tuple[str, ...]:
        """Classes of which the first images came."""
        return () if self.kind == "rename" else self.new

    def state(self) -> dict[str, Any]:
        return {**asdict(self), "images": dict(self.images), "new": list(self.new), "gone": list(self.gone)}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Self:
        return cls(**{**state, "new": tuple(state["new"]), "gone": tuple(state["gone"])})


def names_today(changes: Sequence[Change]) -> list[list[str]]:
    """The names that the classes which each change learned first have now, without those that are forgotten."""
    names: list[list[str]] = []
    later: dict[str, str | None] = {}  # present names of classes that had another name; None: forgotten
    for change in reversed(changes):
        found = (later.get(name, name) for name in change.learned)
        names.append([name for name in found if name is not None])
        if change.kind == "rename":
            (new,), (old,) = change.new, change.gone
            later[old] = later.pop(new, new)
        else:
            for name in change.new:
                later.pop(name, None)
            later |= dict.fromkeys(change.gone)
    return names[::-1]
