"""Paired statistics: is a difference more than the luck of seeds?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

LEVEL = 0.95
RESAMPLES = 10_000
ENOUGH_PAIRS = 5
"""An interval takes the differences for normal, of which fewer pairs can show nothing: they get no verdict."""
TOO_FEW = (
    f"With fewer than {ENOUGH_PAIRS} pairs no difference is called real: an interval then rests on differences being "
    "normal, which so few cannot show. More seeds are the only remedy."
)


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
        """Student's t interval of the mean difference, which the verdict is read from; None with a single pair."""
        return t_interval(self.differences) if self.pairs > 1 else None

    @property
    def bootstrap(self) -> tuple[float, float] | None:
        """Percentile bootstrap of the mean difference, to stand beside the t interval; None with a single pair."""
        return bootstrap_interval(self.differences) if self.pairs > 1 else None

    @property
    def whiskers(self) -> tuple[float, float]:
        """How far a figure draws the interval to either side of the mean: not at all where pairs are too few for it."""
        low, high = (self.interval if self.pairs >= ENOUGH_PAIRS else None) or (self.value, self.value)
        return self.value - low, high - self.value

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


def t_interval(differences: Sequence[float]) -> tuple[float, float]:
    """Of the mean, as the paired t test has it: it holds the true one in 95 of 100 studies, however few the pairs."""
    mean, n = float(np.mean(differences)), len(differences)
    half = float(stdtrit(n - 1, (1 + LEVEL) / 2) * np.std(differences, ddof=1) / np.sqrt(n))
    return mean - half, mean + half


def bootstrap_interval(differences: Sequence[float]) -> tuple[float, float]:
    """Percentile bootstrap of the mean, with a fixed seed: the same differences always give the same interval.

    It is too narrow for few pairs: at five it holds the true mean in about 85 of 100 studies, not in 95.
    """
    values = np.asarray(differences, dtype=np.float64)
    drawn = np.random.default_rng(0).integers(len(values), size=(RESAMPLES, len(values)))
    tail = 100 * (1 - LEVEL) / 2
    low, high = np.percentile(values[drawn].mean(axis=1), [tail, 100 - tail])
    return float(low), float(high)
