"""Accuracy of every class by the number of classes that arrived in the same step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ffcil.metrics import class_accuracy
from ffcil.report.read.records import RunRecord


@dataclass(frozen=True)
class ClassPoint:
    """Result on one class of one run after its last step."""

    run: RunRecord
    position: int
    """Position in the class order, from 0."""
    step: int
    """Step in which the class arrived, from 1."""
    size: int
    """Number of classes that arrived in that step, including this class."""
    accuracy: float
    against_equal: float | None
    """Accuracy minus that on the same class in the Equ.T run with the same seeds; None without such a run."""


def class_points(runs: Sequence[RunRecord], classifier: str) -> list[ClassPoint]:
    """Results on every tested class of every run that has the classifier."""
    runs = [run for run in runs if classifier in run.tables]
    equal = {run.seeds: class_accuracy(run.tables[classifier])[-1] for run in runs if run.setting == "Equ.T"}
    points = []
    for run in runs:
        table = run.tables[classifier]
        last, partner = class_accuracy(table)[-1], equal.get(run.seeds)
        for step, (size, group) in enumerate(zip(table.sizes, table.groups, strict=True), start=1):
            for position in range(group.start, group.stop):
                if not np.isnan(last[position]):
                    difference = None if partner is None else float(last[position] - partner[position])
                    points.append(ClassPoint(run, position, step, size, float(last[position]), difference))
    return points


def mean_by_size(points: Sequence[ClassPoint], paired: bool = False) -> dict[int, tuple[float, int]]:
    """Mean accuracy and number of classes by step size; with `paired`, the mean of `against_equal` instead."""
    by_size: dict[int, list[float]] = {}
    for point in points:
        value = point.against_equal if paired else point.accuracy
        if value is not None:
            by_size.setdefault(point.size, []).append(value)
    return {size: (float(np.mean(values)), len(values)) for size, values in sorted(by_size.items())}
