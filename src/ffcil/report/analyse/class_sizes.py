"""Accuracy of every class by the number of classes that arrived in the same step."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ffcil.metrics import class_accuracy
from ffcil.report.read.records import RunRecord, settings_of


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
    height: float
    """Accuracy, or its difference from the same class in the Equ.T run with the same seeds."""


def class_points(runs: Sequence[RunRecord], classifier: str, paired: bool = False) -> dict[str, list[ClassPoint]]:
    """Results on every tested class of every run that has the classifier, by setting.

    With `paired`, the accuracy on the same class under equal steps is subtracted, at nearly the same age of the class.
    Runs without an Equ.T run of the same seeds are then left out, and Equ.T itself.
    """
    runs = [run for run in runs if classifier in run.tables]
    last = {run: class_accuracy(run.tables[classifier])[-1] for run in runs}
    equal = {run.seeds: last[run] for run in runs if run.setting == "Equ.T"}
    points: dict[str, list[ClassPoint]] = {setting: [] for setting in settings_of(runs)}
    for run in runs:
        if paired and (run.setting == "Equ.T" or run.seeds not in equal):
            continue
        heights = last[run] - equal[run.seeds] if paired else last[run]
        table = run.tables[classifier]
        for step, (size, group) in enumerate(zip(table.sizes, table.groups, strict=True), start=1):
            for position in range(group.start, group.stop):
                accuracy, height = float(last[run][position]), float(heights[position])
                if not np.isnan(accuracy):
                    points[run.setting].append(ClassPoint(run, position, step, size, accuracy, height))
    return {setting: found for setting, found in points.items() if found}


def mean_by_size(points: Sequence[ClassPoint]) -> dict[int, tuple[float, int]]:
    """Mean height and number of classes by step size."""
    by_size: dict[int, list[float]] = {}
    for point in points:
        by_size.setdefault(point.size, []).append(point.height)
    return {size: (float(np.mean(heights)), len(heights)) for size, heights in sorted(by_size.items())}
