"""CSV tables at full precision. An empty field is a number that does not exist."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from ffcil.report.analyse.ablation import Ablation
from ffcil.report.analyse.evidence import effects
from ffcil.report.analyse.groups import Group
from ffcil.report.analyse.tables import METRICS, Cell, Row

NUMBERS = [f"{metric}{part}" for metric in METRICS for part in ("", "_std", "_change")]
DATA = ["dataset", "classes", "steps"]


def comparison_csv(rows: Sequence[Row]) -> str:
    """One line per row and setting."""
    head = [*DATA, "method", "condition", "classifier", "scored", "setting", "runs", "versus", "pairs", *NUMBERS]
    lines = []
    for row in rows:
        for setting, cell in row.cells.items():
            counts = [cell.runs, cell.change.versus if cell.change else None, _pairs(cell)]
            method = [row.group.runs[0].method, row.group.label, row.classifier, row.scored]
            lines.append([*_data(row.group), *method, setting, *counts, *_numbers(cell)])
    return _written(head, lines)


def ablation_csv(ablations: Sequence[Ablation]) -> str:
    """One line per method and choice of parts."""
    head = [*DATA, "schedule", "method", "condition", "classifier", "parts", "runs", "pairs", *NUMBERS]
    lines = []
    for ablation in ablations:
        group = ablation.group
        method = [ablation.schedule, group.runs[0].method, group.label, ablation.classifier]
        for line in ablation.lines:
            counts = [line.name, line.cell.runs, _pairs(line.cell)]
            lines.append([*_data(group), *method, *counts, *_numbers(line.cell)])
    return _written(head, lines)


def evidence_csv(rows: Sequence[Row]) -> str:
    """One line per effect and accuracy; `low` and `high` are the bounds of the t interval."""
    head = [*DATA, "method", "condition", "classifier", "setting", "versus", "metric", "pairs"]
    head += ["difference", "std", "low", "high", "bootstrap_low", "bootstrap_high", "same_sign", "told", "differences"]
    lines = []
    for effect in effects(rows):
        row = effect.row
        method = [row.group.runs[0].method, row.group.label, row.classifier, effect.setting]
        for metric, change in effect.changes.items():
            bounds = [*(change.interval or (None, None)), *(change.bootstrap or (None, None))]
            numbers = [change.pairs, change.value, change.std, *bounds, change.same_sign, change.conclusion]
            differences = " ".join(repr(difference) for difference in change.differences)
            lines.append([*_data(row.group), *method, change.versus, metric, *numbers, differences])
    return _written(head, lines)


def _data(group: Group) -> list[Any]:
    return [group.dataset, group.classes, group.steps]


def _pairs(cell: Cell) -> int | None:
    return cell.change.pairs if cell.change else None


def _numbers(cell: Cell) -> list[float | None]:
    """Mean, deviation and change of every metric."""
    values: list[float | None] = []
    for number in cell.numbers.values():
        values += [number.mean, number.std] if number else [None, None]
        values.append(number.change.value if number and number.change else None)
    return values


def _written(head: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([head, *lines])
    return out.getvalue()
