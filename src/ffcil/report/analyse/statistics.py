"""Paired statistics: differences between runs with the same seeds, and intervals of their mean."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.95
"""Confidence level of every interval."""
T_INTERVAL = f"{LEVEL:.0%} t interval"
"""Name of the interval in tables and figures."""
RESAMPLES = 10_000
"""Number of bootstrap resamples."""
ENOUGH_PAIRS = 5
"""Smallest number of pairs whose mean difference can be called different from 0. The t interval assumes normal
differences, which fewer pairs cannot show."""

Interval = tuple[float, float]


@dataclass(frozen=True)
class Change:
    """Differences from another setting, one for each pair of runs with the same seeds."""

    differences: tuple[float, ...]
    versus: str
    """Name of the setting that is subtracted."""

    @property
    def value(self) -> float:
        """Mean difference."""
        return float(np.mean(self.differences))

    @property
    def pairs(self) -> int:
        """Number of pairs."""
        return len(self.differences)

    @property
    def std(self) -> float | None:
        """Sample standard deviation of the differences; None with a single pair."""
        return float(np.std(self.differences, ddof=1)) if self.pairs > 1 else None

    @property
    def interval(self) -> Interval | None:
        """Student's t interval of the mean difference; None with a single pair. It decides `conclusion`."""
        return t_interval(self.differences) if self.pairs > 1 else None

    @property
    def bootstrap(self) -> Interval | None:
        """Bootstrap interval of the mean difference, for comparison; None with a single pair."""
        return bootstrap_interval(self.differences) if self.pairs > 1 else None

    @property
    def whiskers(self) -> Interval:
        """Lengths of the t interval below and above the mean; zero with fewer than `ENOUGH_PAIRS` pairs."""
        low, high = (self.interval if self.pairs >= ENOUGH_PAIRS else None) or (self.value, self.value)
        return self.value - low, high - self.value

    @property
    def same_sign(self) -> int:
        """Number of differences that have the sign of their mean."""
        return int(np.sum(np.sign(self.differences) == np.sign(self.value)))

    @property
    def conclusion(self) -> str:
        """Whether the mean difference is different from 0: `differs from 0`, `may be 0`, or why this is unknown."""
        interval = self.interval
        if interval is None:
            return "one pair"
        if interval[0] <= 0 <= interval[1]:
            return "may be 0"
        return "differs from 0" if self.pairs >= ENOUGH_PAIRS else "too few pairs"


def t_interval(differences: Sequence[float]) -> Interval:
    """Interval of the mean according to the paired t test. Its coverage is exact for normal differences."""
    from scipy import stats  # here, because the import takes long

    n = len(differences)
    half = float(stats.t.ppf((1 + LEVEL) / 2, n - 1) * np.std(differences, ddof=1) / np.sqrt(n))
    return float(np.mean(differences)) - half, float(np.mean(differences)) + half


def bootstrap_interval(differences: Sequence[float]) -> Interval:
    """Percentile bootstrap interval of the mean. The seed is fixed, so that equal differences give equal intervals.

    The interval is too narrow for few pairs: with five pairs, its coverage is about 85 %, not 95 %.
    """
    from scipy import stats

    values = np.asarray(differences, dtype=np.float64)
    rng = np.random.default_rng(0)
    means = stats.bootstrap((values,), np.mean, n_resamples=RESAMPLES, method="percentile", random_state=rng)
    # computed here, because versions of scipy round percentiles differently in the last digit
    low, high = np.percentile(means.bootstrap_distribution, [50 * (1 - LEVEL), 50 * (1 + LEVEL)])
    return float(low), float(high)
