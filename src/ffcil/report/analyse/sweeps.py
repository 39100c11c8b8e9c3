"""Rows that differ in one field of their schedule: the paper's figures of alpha and of order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ffcil.report.analyse.groups import condition_label
from ffcil.report.analyse.tables import Row, settings_in

ORDERS = ("ascending", "descending", "jumbled")
"""As the paper shows them."""


@dataclass(frozen=True)
class Sweep:
    """One method on one data set, at several values of one field."""

    field: str
    title: str
    points: tuple[tuple[Any, Row], ...]
    """value, row; in the order of the values"""

    @property
    def values(self) -> list[Any]:
        return [value for value, _ in self.points]

    @property
    def settings(self) -> list[str]:
        return settings_in([row for _, row in self.points])


def sweeps(rows: Sequence[Row], field: str) -> list[Sweep]:
    """Every set of scored rows that differ in `arrivals.field` and in nothing else."""
    name = f"arrivals.{field}"
    alike: dict[str, list[tuple[Any, Row]]] = {}
    for row in rows:
        condition = row.group.condition
        if row.scored and name in condition:
            rest = {key: value for key, value in condition.items() if key != name}
            about = [row.group.data_label, row.group.runs[0].method, row.classifier, rest]
            alike.setdefault(json.dumps(about), []).append((condition[name], row))
    return [_sweep(field, points) for points in alike.values() if len(points) > 1]


def _sweep(field: str, points: list[tuple[Any, Row]]) -> Sweep:
    def rank(point: tuple[Any, Row]) -> Any:
        value = point[0]
        return (ORDERS.index(value) if value in ORDERS else len(ORDERS), value) if isinstance(value, str) else value

    group = points[0][1].group
    rest = {name: value for name, value in group.condition.items() if name != f"arrivals.{field}"}
    name = f"{group.title} ({condition_label(rest)})" if rest else group.title
    return Sweep(field, f"{name}, {group.data_label}", tuple(sorted(points, key=rank)))
