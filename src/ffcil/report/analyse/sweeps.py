"""Sweeps: rows that differ in one field of their schedule, as in the paper's figures of alpha and order."""

import json
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
    similar: dict[str, list[tuple[Any, Row]]] = {}
    for row in rows:
        condition = row.group.condition
        if row.scored and name in condition:
            rest = {key: value for key, value in condition.items() if key != name}
            shared = [row.group.data_label, row.group.runs[0].method, row.classifier, rest]
            similar.setdefault(json.dumps(shared), []).append((condition[name], row))
    return [_sweep(field, points) for points in similar.values() if len(points) > 1]


def _sweep(field: str, points: list[tuple[Any, Row]]) -> Sweep:
    def rank(point: tuple[Any, Row]) -> Any:
        value = point[0]
        return (ORDERS.index(value) if value in ORDERS else len(ORDERS), value) if isinstance(value, str) else value

    group = points[0][1].group
    rest = {name: value for name, value in group.condition.items() if name != f"arrivals.{field}"}
    name = f"{group.title} ({condition_label(rest)})" if rest else group.title
    return Sweep(field, f"{name}, {group.data_label}", tuple(sorted(points, key=rank)))
