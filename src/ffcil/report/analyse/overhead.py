"""Time that the parts of the framework take, from runs that are otherwise equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ffcil.report.analyse.ablation import parts_label
from ffcil.report.analyse.groups import Group, group_runs
from ffcil.report.read.records import RunRecord

TIMES = {"training": ("train", "memory"), "testing": ("evaluate",)}
"""Reported times, each with the phases of a step that it sums."""


@dataclass(frozen=True)
class Cost:
    """Times without and with parts of the framework, in pairs of runs with the same seeds on the same device."""

    group: Group
    schedule: str
    parts: str
    """Names of the parts that are on."""
    original: dict[str, tuple[float, ...]]
    """Seconds of the original method in every pair, summed over steps, by reported time."""
    changed: dict[str, tuple[float, ...]]
    """Seconds with the parts, as in `original`."""
    devices: tuple[str, ...]

    @property
    def pairs(self) -> int:
        """Number of pairs."""
        return len(self.devices)

    def ratio(self, phase: str) -> float | None:
        """Total seconds with the parts divided by those without them; None if nothing was timed."""
        before, after = sum(self.original[phase]), sum(self.changed[phase])
        return after / before if before else None

    def ratios(self, phase: str) -> list[float]:
        """Ratio of each pair."""
        return [b / a for a, b in zip(self.original[phase], self.changed[phase], strict=True) if a]


def costs(runs: Sequence[RunRecord]) -> list[Cost]:
    """Costs of every group, kind of schedule and choice of parts that can be paired with the original method."""
    found = []
    for group in group_runs(run for run in runs if run.finished):
        for schedule in dict.fromkeys(run.schedule for run in group.runs):
            selected = [run for run in group.runs if run.schedule == schedule]
            original = {(run.seeds, run.device): run for run in selected if run.parts.name == "org"}
            others = sorted((run for run in selected if run.parts.name != "org"), key=lambda run: run.parts.rank)
            for name in dict.fromkeys(parts_label(run.parts) for run in others):
                pairs = [
                    (original[run.seeds, run.device], run)
                    for run in others
                    if parts_label(run.parts) == name and (run.seeds, run.device) in original
                ]
                if pairs:
                    found.append(_cost(group, schedule, name, pairs))
    return found


def timed_phases(costs: Sequence[Cost]) -> list[str]:
    """Reported times that any of the costs has."""
    return [phase for phase in TIMES if any(cost.ratio(phase) for cost in costs)]


def _cost(group: Group, schedule: str, name: str, pairs: list[tuple[RunRecord, RunRecord]]) -> Cost:
    def seconds(side: int) -> dict[str, tuple[float, ...]]:
        return {
            phase: tuple(float(np.sum([pair[side].seconds(part) for part in parts])) for pair in pairs)
            for phase, parts in TIMES.items()
        }

    return Cost(group, schedule, name, seconds(0), seconds(1), tuple(run.device for run, _ in pairs))
