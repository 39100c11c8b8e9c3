"""Values behind the figures: mean accuracy curves, schedules, runs by seeds, and classes by the size of their step."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ffcil.metrics import CountTable, curve, last_class_accuracy
from ffcil.report.read.records import RunRecord, Seeds, setting_rank, settings_of

Floats = NDArray[np.float64]
MOST_POINTS = 500
"""Largest number of points of a line, and of dots of one colour. More cannot be distinguished."""
MOST_CELLS = 100
"""Largest number of rows and columns of a heat map, and of bars of a schedule."""


def thinned(number: int, most: int = MOST_POINTS) -> list[int]:
    """Positions of at most `most` of `number` values, evenly spaced, with the first and the last."""
    return sorted(set(np.linspace(0, number - 1, min(number, most)).round().astype(int).tolist()))


def bins(steps: int, most: int = MOST_CELLS) -> list[tuple[int, int]]:
    """Numbers of the first and the last of consecutive steps that are drawn as one, counted from 1. If there are few
    steps, each is drawn alone."""
    return [(int(part[0]) + 1, int(part[-1]) + 1) for part in np.array_split(np.arange(steps), min(steps, most))]


def bins_text(steps: int) -> str:
    """Number of steps that are drawn as one: `30 steps`."""
    return f"{round(steps / MOST_CELLS)} steps" if steps > 1.5 * MOST_CELLS else "1 or 2 steps"


def mean_curve(tables: Sequence[CountTable]) -> tuple[Floats, Floats]:
    """Mean accuracy of several runs against the number of classes seen.

    Free-flow runs have steps at different numbers of classes. Each run is therefore interpolated linearly between its
    steps, and the mean covers only the range that all runs cover.
    """
    grid = np.array(sorted({n for table in tables for n in table.seen}), dtype=np.float64)
    first, last = max(table.seen[0] for table in tables), min(table.seen[-1] for table in tables)
    grid = grid[(grid >= first) & (grid <= last)]
    grid = grid[thinned(len(grid))]
    lines = []
    for table in tables:
        accuracy = np.array(curve(table))
        known = ~np.isnan(accuracy)
        seen = np.array(table.seen, dtype=np.float64)
        lines.append(np.interp(grid, seen[known], accuracy[known]) if known.any() else np.full(len(grid), np.nan))
    return grid, np.mean(lines, axis=0)


def accuracy_range(runs: Sequence[RunRecord]) -> tuple[float, float]:
    """Common accuracy range of all classifiers of these runs, for figures that stand side by side."""
    values = [a for run in runs for table in run.tables.values() for a in curve(table) if not np.isnan(a)]
    return min(10 * np.floor(min(values, default=0.0) / 10), 90.0), 101.0


def seed_schedules(runs: Sequence[RunRecord]) -> dict[str, dict[str, RunRecord]]:
    """Distinct schedules by seed. FF.org, FF.ours and FF.flow with the same seed share one schedule."""
    result: dict[str, dict[str, RunRecord]] = {}
    for run in sorted(runs, key=lambda r: r.seeds):
        schedules = result.setdefault(run.seed_label, {})
        if all(other.sizes != run.sizes for other in schedules.values()):
            name = {"equal": "equal", "free-flow": "free flow"}.get(run.arrivals["kind"], str(run.arrivals["kind"]))
            schedules[name if name not in schedules else f"{name}, {run.setting}"] = run
    return result


def distinct_schedules(runs: Sequence[RunRecord]) -> dict[str, RunRecord]:
    """All distinct schedules, by names that are short enough for an axis."""
    distinct: dict[str, RunRecord] = {}
    for seed, schedules in seed_schedules(runs).items():
        for name, run in schedules.items():
            if all(other.sizes != run.sizes for other in distinct.values()):
                distinct["equal" if name == "equal" else f"{name}, {seed}"] = run
    return distinct


def runs_by_seeds(runs: Iterable[RunRecord]) -> list[list[RunRecord]]:
    """Runs with equal seeds, sorted by setting. The seeds with the most runs come first."""
    by_seeds: dict[Seeds, list[RunRecord]] = {}
    for run in runs:
        by_seeds.setdefault(run.seeds, []).append(run)
    order = sorted(by_seeds, key=lambda seeds: (-len(by_seeds[seeds]), seeds))
    return [sorted(by_seeds[seeds], key=lambda run: setting_rank(run.setting)) for seeds in order]


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

    With `paired`, the accuracy on the same class under equal steps is subtracted. The class has nearly the same age
    there. Runs of Equ.T, and runs without an Equ.T run of the same seeds and class order, are then left out.
    """
    runs = [run for run in runs if classifier in run.tables]
    last = {run: last_class_accuracy(run.tables[classifier]) for run in runs}
    equal = {run.pairing: last[run] for run in runs if run.setting == "Equ.T"}
    points: dict[str, list[ClassPoint]] = {setting: [] for setting in settings_of(runs)}
    for run in runs:
        if paired and (run.setting == "Equ.T" or run.pairing not in equal):
            continue
        heights = last[run] - equal[run.pairing] if paired else last[run]
        table = run.tables[classifier]
        for step, (size, group) in enumerate(zip(table.sizes, table.groups, strict=True), start=1):
            for position in range(group.start, group.stop):
                accuracy, height = float(last[run][position]), float(heights[position])
                if not np.isnan(accuracy):
                    points[run.setting].append(ClassPoint(run, position, step, size, accuracy, height))
    return points


def mean_by_size(points: Sequence[ClassPoint]) -> dict[int, tuple[float, int]]:
    """Mean height and number of classes by step size."""
    by_size: dict[int, list[float]] = {}
    for point in points:
        by_size.setdefault(point.size, []).append(point.height)
    return {size: (float(np.mean(heights)), len(heights)) for size, heights in sorted(by_size.items())}
