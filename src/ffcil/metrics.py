"""Metrics of a run, computed from its confusion counts after every step.

Classes are positions in the class order, so the classes of step j are the contiguous range `CountTable.groups[j]`.
Steps may differ in size. Accuracies are percentages. Counts are sparse: their size depends on the number of test
images, not on the square of the number of classes. They are read step by step, so that only those of one step are in
memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ffcil.errors import InputError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Confusion:
    """Sparse confusion counts of one classifier after one step, ordered by true class, then by predicted class."""

    classes: int
    """Number of classes seen."""
    rows: Integers
    """True class of each non-zero cell, [cells]."""
    columns: Integers
    """Predicted class of each non-zero cell, [cells]."""
    values: Integers
    """Number of test images in each non-zero cell, [cells]."""

    def __post_init__(self) -> None:
        for name in ("rows", "columns", "values"):
            object.__setattr__(self, name, _as_integers(getattr(self, name)))
        if not self.rows.shape == self.columns.shape == self.values.shape == (len(self.rows),):
            raise InputError("Sparse counts need as many rows as columns and values.")
        for places in (self.rows, self.columns):
            if len(places) and not 0 <= places.min() <= places.max() < self.classes:
                raise InputError(f"Sparse counts of {self.classes} classes name a class outside of them.")
        if len(self.values) and self.values.min() < 0:
            raise InputError(f"The counts hold {self.values.min()}; a count cannot be negative.")

    @classmethod
    def count(cls, true: ArrayLike, predicted: ArrayLike, classes: int) -> Self:
        """Counts of the (true, predicted) labels of the test images."""
        cells = np.asarray(true, dtype=np.int64) * classes + np.asarray(predicted, dtype=np.int64)
        places, values = np.unique(cells, return_counts=True)
        return cls(classes, *np.divmod(places, classes), values)

    @classmethod
    def from_dense(cls, table: ArrayLike) -> Self:
        """The sparse form of a square table: row = true class, column = predicted class."""
        array = _as_integers(table)
        if array.ndim != 2 or array.shape[0] != array.shape[1]:
            raise InputError(f"The counts have shape {array.shape}; they must be square.")
        rows, columns = np.nonzero(array)
        return cls(len(array), rows, columns, array[rows, columns])

    def dense(self) -> Integers:
        """The square table [classes, classes]; for few classes."""
        table = np.zeros((self.classes, self.classes), dtype=np.int64)
        table[self.rows, self.columns] = self.values
        return table

    @cached_property
    def totals(self) -> Integers:
        """Number of test images of each class, [classes]."""
        return self._sum_by_row(np.ones(len(self.rows), dtype=bool))

    @cached_property
    def diagonal(self) -> Integers:
        """Number of correctly classified test images of each class, [classes]."""
        return self._sum_by_row(self.rows == self.columns)

    def accuracy(self, classes: slice = slice(None)) -> float | None:
        """Accuracy over the test images of a range of classes; None if there are none."""
        total = int(self.totals[classes].sum())
        return 100.0 * int(self.diagonal[classes].sum()) / total if total else None

    def _sum_by_row(self, chosen: NDArray[np.bool_]) -> Integers:
        sums = np.bincount(self.rows[chosen], weights=self.values[chosen], minlength=self.classes)
        return sums.astype(np.int64)  # exact: sums of counts are far below 2^53


@dataclass(frozen=True, eq=False)
class CountTable:
    """Confusion counts of one classifier after each finished step."""

    sizes: tuple[int, ...]
    """Number of new classes of each finished step, in order of arrival."""
    counts: Sequence[Confusion]
    """Counts after each step. The sequence may read them from files, one at a time."""
    curve: Floats = field(init=False)
    """Accuracy over the test images of all classes seen after each step, [T]."""
    best: Floats = field(init=False)
    """Best accuracy so far on the classes of each step, [T]."""
    last: Floats = field(init=False)
    """Accuracy after the last step on the classes of each step, [T]."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(int(size) for size in self.sizes))
        if not self.sizes:
            raise InputError("A count table needs at least one step; give the sizes of the finished steps.")
        if min(self.sizes) < 1:
            raise InputError(f"A step of {min(self.sizes)} classes cannot be counted; every size must be at least 1.")
        if len(self.counts) != len(self.sizes):
            raise InputError(f"{len(self.sizes)} steps but {len(self.counts)} tables of counts; give one per step.")
        self._measure()

    def _measure(self) -> None:
        """Compute all accuracies that summaries need, in one pass over the counts."""
        total, best = np.empty(len(self.sizes)), np.full(len(self.sizes), -np.inf)
        last = best
        for t, (seen, counts) in enumerate(zip(self.seen, self.counts, strict=True)):
            if counts.classes != seen:
                raise InputError(
                    f"The counts of step {t + 1} are of {counts.classes} classes; {seen} classes were seen."
                )
            total[t], last = _accuracy(counts), self.by_step(counts)
            best[: t + 1] = np.maximum(best[: t + 1], last)
        for name, value in (("curve", total), ("best", best), ("last", last)):
            object.__setattr__(self, name, value)

    def by_step(self, counts: Confusion) -> Floats:
        """Accuracy on the classes of each step that these counts have seen; NaN for classes without test images."""
        starts = [group.start for group in self.groups if group.start < counts.classes]
        hits, images = (np.add.reduceat(sums, starts) for sums in (counts.diagonal, counts.totals))
        return _percentages(hits, images)

    def merged(self, most: int) -> Self:
        """A table of at most `most` steps. Each of them stands for several consecutive steps, with the counts after the
        last one."""
        if len(self.sizes) <= most:
            return self
        parts = np.array_split(np.arange(len(self.sizes)), most)
        sizes = tuple(sum(self.sizes[t] for t in part) for part in parts)
        return type(self)(sizes, [self.counts[part[-1]] for part in parts])

    @cached_property
    def seen(self) -> tuple[int, ...]:
        """Number of classes seen after each step."""
        return tuple(int(n) for n in np.cumsum(self.sizes))

    @cached_property
    def groups(self) -> tuple[slice, ...]:
        """Range of the classes that arrived at each step."""
        return tuple(slice(end - size, end) for end, size in zip(self.seen, self.sizes, strict=True))


def curve(table: CountTable) -> list[float]:
    """A_t of every step: accuracy over the test images of all classes seen so far. Every image has the same weight.

    NaN if none of the classes seen so far has a test image.
    """
    return [float(accuracy) for accuracy in table.curve]


def average_accuracy(table: CountTable) -> float:
    """Mean of A_t over the steps. Every step has the same weight; steps without test images are ignored."""
    return _mean(table.curve)


def last_accuracy(table: CountTable) -> float:
    """A_T: accuracy over all classes after the last step."""
    return float(table.curve[-1])


def matched_difference(table: CountTable, reference: CountTable) -> float:
    """Mean over the steps of A_t minus the accuracy of the reference at the same number of classes seen.

    A_t falls with the number of classes seen, whatever the learner does. So the average accuracies of two schedules
    differ even for the same learner. Here they are compared at equal numbers of classes. The reference is linear
    between its steps, and 100 % at one class, which cannot be confused with another. Steps without test images are
    ignored.
    """
    if table.seen[-1] > reference.seen[-1]:
        raise InputError(
            f"The reference has {reference.seen[-1]} of {table.seen[-1]} classes: give one that has seen all of them."
        )
    points = {1: 100.0} | {n: a for n, a in zip(reference.seen, curve(reference), strict=True) if not np.isnan(a)}
    matched = np.interp(table.seen, list(points), list(points.values()))
    return _mean(table.curve - matched)


def step_accuracy(table: CountTable) -> Floats:
    """Accuracy after step t on the classes that arrived at step j, [T, T].

    NaN for j > t, and if none of those classes has a test image.
    """
    steps = len(table.sizes)
    result = np.full((steps, steps), np.nan)
    for t, counts in enumerate(table.counts):
        result[t, : t + 1] = table.by_step(counts)
    return result


def class_accuracy(table: CountTable) -> Floats:
    """Accuracy on each class after each step, [T, C]. NaN for a class that is not seen yet or has no test images."""
    result = np.full((len(table.sizes), table.seen[-1]), np.nan)
    for t, counts in enumerate(table.counts):
        result[t, : counts.classes] = _percentages(counts.diagonal, counts.totals)
    return result


def last_class_accuracy(table: CountTable) -> Floats:
    """Accuracy on each class after the last step, [C]. NaN for a class without test images."""
    counts = table.counts[-1]
    return _percentages(counts.diagonal, counts.totals)


def per_step_forgetting(table: CountTable) -> Floats:
    """Best accuracy so far minus final accuracy on the classes of each step before the last, [T-1].

    The best accuracy includes the last step, so forgetting is never negative. NaN for a step whose classes have no test
    images.
    """
    return (table.best - table.last)[:-1]


def forgetting(table: CountTable) -> float | None:
    """Mean of `per_step_forgetting`. Every step has the same weight. None if there is nothing to forget."""
    return _number(_mean(per_step_forgetting(table)))


def summarise(table: CountTable) -> dict[str, Any]:
    """Average accuracy, last accuracy, forgetting and accuracy curve, as JSON values."""
    return {
        "average": _number(average_accuracy(table)),
        "last": _number(last_accuracy(table)),
        "forgetting": forgetting(table),
        "curve": [_number(a) for a in curve(table)],
    }


def _as_integers(values: Any) -> Integers:
    array = np.asarray(values)
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise InputError(f"The counts are {array.dtype}; they must be whole numbers.")
    return array.astype(np.int64, copy=False)


def _accuracy(counts: Confusion) -> float:
    value = counts.accuracy()
    return float("nan") if value is None else value


def _percentages(hits: Integers, images: Integers) -> Floats:
    """Hits in percent of images; NaN without images."""
    result = np.full(len(hits), np.nan)
    np.divide(100.0 * hits, images, out=result, where=images > 0)
    return result


def _mean(values: Sequence[float] | Floats) -> float:
    """Mean of the values that are not NaN; NaN if there are none."""
    array = np.asarray(values, dtype=np.float64)
    known = array[~np.isnan(array)]
    return float(known.mean()) if known.size else float("nan")


def _number(value: float) -> float | None:
    """A number for JSON, which has no NaN."""
    return None if np.isnan(value) else value
