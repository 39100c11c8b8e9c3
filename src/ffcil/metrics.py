"""Every number of a run, as a pure function of its count table (step x true class x predicted class).

Classes are positions in the class order, so the classes of step j are the contiguous range that `CountTable.groups`
gives. Nothing here assumes that steps are equally large: each is looked up by its own size. Accuracies are in percent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ffcil.errors import InputError

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class CountTable:
    """How often each true class was predicted as each class, after each step that is finished."""

    sizes: tuple[int, ...]
    """Increment sizes of the steps that are counted, in order of arrival."""
    counts: tuple[NDArray[np.int64], ...]
    """After step t a square [seen_t, seen_t]: row = true class, column = predicted class."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(int(size) for size in self.sizes))
        object.__setattr__(self, "counts", tuple(_as_counts(c, t) for t, c in enumerate(self.counts, start=1)))
        if not self.sizes:
            raise InputError("A count table needs at least one step; give the sizes of the finished steps.")
        if min(self.sizes) < 1:
            raise InputError(f"A step of {min(self.sizes)} classes cannot be counted; every size must be at least 1.")
        if len(self.counts) != len(self.sizes):
            raise InputError(f"{len(self.sizes)} steps but {len(self.counts)} tables of counts; give one table a step.")
        for t, (seen, table) in enumerate(zip(self.seen, self.counts, strict=True), start=1):
            if table.shape != (seen, seen):
                raise InputError(
                    f"The counts of step {t} have shape {table.shape}; {seen} classes need {(seen, seen)}."
                )

    @property
    def seen(self) -> tuple[int, ...]:
        """Number of classes seen after each step."""
        return tuple(int(n) for n in np.cumsum(self.sizes))

    @property
    def groups(self) -> tuple[slice, ...]:
        """The range of classes that arrived at each step."""
        return tuple(slice(end - size, end) for end, size in zip(self.seen, self.sizes, strict=True))


def curve(table: CountTable) -> list[float]:
    """A_t for every step: accuracy over the test images of all classes seen so far, each image weighing the same.

    NaN only where none of the classes seen so far has a test image.
    """
    return [_accuracy(counts, slice(None)) for counts in table.counts]


def average_accuracy(table: CountTable) -> float:
    """The mean of A_t over the steps, each step weighing the same. Steps without any test image are left out."""
    return _mean(curve(table))


def last_accuracy(table: CountTable) -> float:
    """A_T: the accuracy over all classes after the last step."""
    return _accuracy(table.counts[-1], slice(None))


def step_accuracy(table: CountTable) -> Floats:
    """[T, T]: row t, column j is the accuracy after step t on the classes that arrived at step j.

    NaN for j > t, and where none of those classes has a test image.
    """
    steps = len(table.sizes)
    result = np.full((steps, steps), np.nan)
    for t, counts in enumerate(table.counts):
        for j, group in enumerate(table.groups[: t + 1]):
            result[t, j] = _accuracy(counts, group)
    return result


def class_accuracy(table: CountTable) -> Floats:
    """[T, C]: accuracy on each class after each step. NaN where a class is not yet seen or has no test images."""
    result = np.full((len(table.sizes), table.seen[-1]), np.nan)
    for t, counts in enumerate(table.counts):
        totals = counts.sum(axis=1)
        tested = np.flatnonzero(totals)
        result[t, tested] = 100.0 * counts.diagonal()[tested] / totals[tested]
    return result


def old_new_accuracy(table: CountTable, t: int) -> tuple[float | None, float | None]:
    """After step t (counted from 1): accuracy on the classes of earlier steps, and on the classes of step t.

    None where there is nothing to measure: no earlier class (step 1), or no test image.
    """
    if not 1 <= t <= len(table.sizes):
        raise InputError(f"There is no step {t}; the table counts steps 1 to {len(table.sizes)}.")
    group = table.groups[t - 1]
    counts = table.counts[t - 1]
    return _number(_accuracy(counts, slice(0, group.start))), _number(_accuracy(counts, group))


def per_step_forgetting(table: CountTable) -> Floats:
    """[T-1]: for the classes of each step before the last, their best accuracy so far minus their accuracy now.

    The best includes the last step, so that classes which got better are forgotten by 0, not by less. NaN for a step
    whose classes have no test image.
    """
    accuracy = step_accuracy(table)
    return np.array([accuracy[j:, j].max() - accuracy[-1, j] for j in range(len(table.sizes) - 1)], dtype=np.float64)


def forgetting(table: CountTable) -> float | None:
    """The mean of `per_step_forgetting`, each step weighing the same; None where there is nothing to forget."""
    return _number(_mean(per_step_forgetting(table)))


def summarise(table: CountTable) -> dict[str, Any]:
    """What a summary keeps of a table, ready for JSON: average, last, forgetting, and the curve."""
    return {
        "average": _number(average_accuracy(table)),
        "last": _number(last_accuracy(table)),
        "forgetting": forgetting(table),
        "curve": [_number(a) for a in curve(table)],
    }


def _as_counts(values: Any, t: int) -> NDArray[np.int64]:
    array = np.asarray(values)
    if not np.issubdtype(array.dtype, np.integer):
        raise InputError(f"The counts of step {t} are {array.dtype}; they must be whole numbers.")
    if array.size and array.min() < 0:
        raise InputError(f"The counts of step {t} hold {array.min()}; a count cannot be negative.")
    return array.astype(np.int64, copy=False)


def _accuracy(counts: NDArray[np.int64], classes: slice) -> float:
    total = int(counts[classes].sum())
    return 100.0 * int(counts.diagonal()[classes].sum()) / total if total else float("nan")


def _mean(values: Sequence[float] | Floats) -> float:
    array = np.asarray(values, dtype=np.float64)
    known = array[~np.isnan(array)]
    return float(known.mean()) if known.size else float("nan")


def _number(value: float) -> float | None:
    return None if np.isnan(value) else value


def group_accuracy(counts: NDArray[np.int64], classes: slice) -> float | None:
    """Accuracy over the test images of some classes in one table of counts; None where there is no such image."""
    return _number(_accuracy(counts, classes))
