"""Paired differences behind every change of the comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ffcil.report.analyse.statistics import Change
from ffcil.report.analyse.tables import Metric, Row

EFFECTS = {
    "FF.org": "free flow instead of equal steps",
    "FF.ours": "the framework under free flow",
    "Equ.ours": "the framework under equal steps",
}
"""Cause of the difference between a setting and its baseline."""


@dataclass(frozen=True, eq=False)
class Effect:
    """Differences between a setting and its baseline in one row."""

    row: Row
    setting: str
    changes: dict[Metric, Change]
    """Change of each of the two accuracies."""

    @property
    def cause(self) -> str:
        """What differs between the setting and its baseline."""
        return EFFECTS[self.setting]


def effects(rows: Sequence[Row]) -> list[Effect]:
    """All effects on the two accuracies, wherever a setting and its baseline share seeds."""
    metrics: tuple[Metric, ...] = ("average", "last")
    found = []
    for row in rows:
        for setting in EFFECTS:
            numbers = {metric: row.number(setting, metric) for metric in metrics}
            changes = {metric: number.change for metric, number in numbers.items() if number and number.change}
            if changes:
                found.append(Effect(row, setting, changes))
    return found
