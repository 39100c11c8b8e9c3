"""Accuracy of every class by how many classes arrived with it: do classes that arrived alone suffer?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ffcil.metrics import class_accuracy
from ffcil.report.read.records import RunRecord

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ClassPoint:
    """One class of one run after its last step."""

    run: RunRecord
    position: int
    """in the class order, from 0"""
    step: int
    size: int
    """classes that arrived at its step, itself among them"""
    accuracy: float
    against_equal: float | None
    """accuracy minus that of the same class in the Equ.T run of the same seeds; None where there is none"""


def class_points(runs: Sequence[RunRecord], classifier: str) -> list[ClassPoint]:
    """Every tested class of every run that has the classifier."""
    runs = [run for run in runs if classifier in run.tables]
    equal = {run.seeds: class_accuracy(run.tables[classifier])[-1] for run in runs if run.setting == "Equ.T"}
    points = []
    for run in runs:
        table = run.tables[classifier]
        last, beside = class_accuracy(table)[-1], equal.get(run.seeds)
        for step, (size, group) in enumerate(zip(table.sizes, table.groups, strict=True), start=1):
            for position in range(group.start, group.stop):
                if not np.isnan(last[position]):
                    difference = None if beside is None else float(last[position] - beside[position])
                    points.append(ClassPoint(run, position, step, size, float(last[position]), difference))
    return points


def mean_by_size(points: Sequence[ClassPoint], paired: bool = False) -> dict[int, tuple[float, int]]:
    """For every size its mean accuracy and number of classes; `paired`: the mean of `against_equal` instead."""
    by_size: dict[int, list[float]] = {}
    for point in points:
        value = point.against_equal if paired else point.accuracy
        if value is not None:
            by_size.setdefault(point.size, []).append(value)
    return {size: (float(np.mean(values)), len(values)) for size, values in sorted(by_size.items())}
