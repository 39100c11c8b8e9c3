"""What the parts of the framework cost in time, from runs alike in everything else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ffcil.report.analyse.ablation import shown_name
from ffcil.report.analyse.groups import Group, group_runs
from ffcil.report.read.records import RunRecord

TIMES = {"training": ("train", "memory"), "testing": ("evaluate",)}
"""What is told of a run's time, by the phases of its records."""


@dataclass(frozen=True)
class Cost:
    """The original method's time and that with parts of the framework, over the same seeds on the same device."""

    group: Group
    schedule: str
    parts: str
    original: dict[str, tuple[float, ...]]
    """By phase: seconds of every pair's original run, all steps together."""
    changed: dict[str, tuple[float, ...]]
    devices: tuple[str, ...]

    @property
    def pairs(self) -> int:
        return len(self.devices)

    def ratio(self, phase: str) -> float | None:
        """Seconds with the parts over seconds without them, all pairs together; None where nothing was timed."""
        before, after = sum(self.original[phase]), sum(self.changed[phase])
        return after / before if before else None

    def spread(self, phase: str) -> tuple[float, float]:
        """The smallest and the largest ratio of a pair."""
        ratios = [b / a for a, b in zip(self.original[phase], self.changed[phase], strict=True) if a]
        return (min(ratios), max(ratios)) if ratios else (float("nan"), float("nan"))


def costs(runs: Sequence[RunRecord]) -> list[Cost]:
    """A cost for every group, schedule and choice of parts that has a run of the original method to set beside it."""
    made = []
    for group in group_runs(run for run in runs if run.finished):
        for schedule in dict.fromkeys(run.schedule for run in group.runs):
            mine = [run for run in group.runs if run.schedule == schedule]
            original = {(run.seeds, run.device): run for run in mine if run.parts.name == "org"}
            others = sorted((run for run in mine if run.parts.name != "org"), key=lambda run: run.parts.rank)
            for name in dict.fromkeys(shown_name(run.parts) for run in others):
                pairs = [
                    (original[run.seeds, run.device], run)
                    for run in others
                    if shown_name(run.parts) == name and (run.seeds, run.device) in original
                ]
                if pairs:
                    made.append(_cost(group, schedule, name, pairs))
    return made


def _cost(group: Group, schedule: str, name: str, pairs: list[tuple[RunRecord, RunRecord]]) -> Cost:
    def seconds(side: int) -> dict[str, tuple[float, ...]]:
        return {
            phase: tuple(float(np.sum([pair[side].seconds(part) for part in parts])) for pair in pairs)
            for phase, parts in TIMES.items()
        }

    return Cost(group, schedule, name, seconds(0), seconds(1), tuple(run.device for run, _ in pairs))
