"""Sweeps: rows that differ in one field of their schedule, as in the paper's figures of alpha and order."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ffcil.report.analyse.groups import condition_label
from ffcil.report.analyse.tables import Metric, Number, Row, settings_in

ORDERS = ("ascending", "descending", "jumbled")
"""Orders of arrival, in the order of the paper."""


@dataclass(frozen=True)
class Sweep:
    """Results of one method on one data set at several values of one field."""

    field: str
    title: str
    points: tuple[tuple[Any, Row], ...]
    """Pairs of a value and its row, sorted by value."""

    @property
    def values(self) -> list[Any]:
        """Values of the field."""
        return [value for value, _ in self.points]

    @property
    def settings(self) -> list[str]:
        """Settings of any point, in display order."""
        return settings_in([row for _, row in self.points])

    def numbers(self, setting: str, metric: Metric) -> list[Number | None]:
        """Results of a metric in a setting at every value."""
        return [row.number(setting, metric) for _, row in self.points]


def sweeps(rows: Sequence[Row], field: str) -> list[Sweep]:
    """All sets of scored rows that differ only in `arrivals.field`."""
    name = f"arrivals.{field}"
    similar: dict[tuple[str, ...], list[tuple[Any, Row]]] = {}
    for row in rows:
        group = row.group
        if row.scored and _is_value(field, group.condition.get(name)):
            rest = {key: value for key, value in group.condition.items() if key != name}
            method = f"{group.title} ({condition_label(rest)})" if rest else group.title
            key = (f"{method}, {group.data_label}", row.classifier, repr(rest))
            similar.setdefault(key, []).append((group.condition[name], row))
    return [Sweep(field, key[0], tuple(sorted(found, key=_rank))) for key, found in similar.items() if len(found) > 1]


def _is_value(field: str, value: Any) -> bool:
    """Whether a value can be on the axis of a field. The axis of alpha is logarithmic."""
    return isinstance(value, int | float) and value > 0 if field == "alpha" else isinstance(value, str)


def _rank(point: tuple[Any, Row]) -> tuple[int, Any]:
    """Sort key: orders as in the paper, numbers by size."""
    value = point[0]
    return (ORDERS.index(value) if value in ORDERS else len(ORDERS), value)
