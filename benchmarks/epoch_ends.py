"""A listener that benchmarks share: training time and images at the end of every epoch."""

from __future__ import annotations

from itertools import pairwise

from ffcil.training.progress import FitProgress, Listener


class EpochEnds(Listener):
    """Seconds and images of training at the end of every epoch."""

    def __init__(self) -> None:
        self.ends: list[tuple[float, int]] = []

    def epoch_done(self, progress: FitProgress) -> None:
        self.ends.append((progress.seconds, progress.images))

    def speeds(self) -> list[float]:
        """Images per second of every epoch but the first, which includes compilation."""
        return [(n1 - n0) / (t1 - t0) for (t0, n0), (t1, n1) in pairwise(self.ends)]
