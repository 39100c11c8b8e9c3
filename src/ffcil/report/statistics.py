"""Paired statistics: is a difference more than the luck of seeds?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.95
RESAMPLES = 10_000
ENOUGH_PAIRS = 5
"""With fewer pairs a bootstrap interval says little more than the smallest and the largest difference."""


@dataclass(frozen=True)
class Change:
    """Differences to another setting, one for each pair of runs with the same seeds."""

    differences: tuple[float, ...]
    versus: str

    @property
    def value(self) -> float:
        """The mean difference."""
        return float(np.mean(self.differences))

    @property
    def pairs(self) -> int:
        return len(self.differences)

    @property
    def std(self) -> float | None:
        """Sample standard deviation of the differences; None with a single pair."""
        return float(np.std(self.differences, ddof=1)) if self.pairs > 1 else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Bootstrap interval of the mean difference; None with a single pair."""
        return bootstrap_interval(self.differences) if self.pairs > 1 else None

    @property
    def same_sign(self) -> int:
        """How many of the differences have the sign of their mean."""
        return int(np.sum(np.sign(self.differences) == np.sign(self.value)))

    @property
    def told(self) -> str:
        """Whether the difference is real, in words that say no more than the pairs do."""
        interval = self.interval
        if interval is None:
            return "one pair"
        if interval[0] <= 0 <= interval[1]:
            return "may be 0"
        return "differs from 0" if self.pairs >= ENOUGH_PAIRS else "too few pairs"


def signed(value: float) -> str:
    """`+1.25`, and never `-0.00`."""
    return f"{round(value, 2) + 0.0:+.2f}"


def bounds_text(interval: tuple[float, float]) -> str:
    """`+0.25 to +1.50`"""
    return f"{signed(interval[0])} to {signed(interval[1])}"


def bootstrap_interval(differences: Sequence[float]) -> tuple[float, float]:
    """Percentile bootstrap of the mean, with a fixed seed: the same differences always give the same interval."""
    values = np.asarray(differences, dtype=np.float64)
    drawn = np.random.default_rng(0).integers(len(values), size=(RESAMPLES, len(values)))
    tail = 100 * (1 - LEVEL) / 2
    low, high = np.percentile(values[drawn].mean(axis=1), [tail, 100 - tail])
    return float(low), float(high)
