"""Time that the parts of the framework take, from runs that are otherwise equal."""

from collections.abc import Sequence
from dataclasses import dataclass

from ffcil.report.analyse.groups import Group, groups_by_schedule
from ffcil.report.read.records import RunRecord

TIMES = {"training": ("train", "start_up", "memory"), "testing": ("evaluate",)}
"""Reported times, each with the phases of a step of which it is the sum."""


@dataclass(frozen=True)
class Cost:
    """Times without and with parts of the framework."""

    group: Group
    schedule: str
    parts: str
    """Names of the parts that are on."""
    pairs: list[tuple[RunRecord, RunRecord]]
    """Runs without and with the parts that have the same seeds and device."""

    def seconds(self, time: str) -> tuple[list[float], list[float]]:
        """Seconds of a reported time in the runs without and in those with the parts, summed over steps."""

        def total(run: RunRecord) -> float:
            return sum(run.seconds(phase) for phase in TIMES[time])

        return [total(run) for run, _ in self.pairs], [total(run) for _, run in self.pairs]

    def ratio(self, time: str) -> float | None:
        """Total seconds with the parts divided by those without them; None if nothing was timed."""
        before, after = map(sum, self.seconds(time))
        return after / before if before else None

    def ratios(self, time: str) -> list[float]:
        """Ratio of each pair."""
        return [after / before for before, after in zip(*self.seconds(time), strict=True) if before]


def costs(runs: Sequence[RunRecord]) -> list[Cost]:
    """Costs of every group, kind of schedule and choice of parts that can be paired with the original method."""
    found = []
    for group, schedule, selected in groups_by_schedule(runs):
        original = {(run.seeds, run.device): run for run in selected if run.parts.name == "org"}
        pairs: dict[str, list[tuple[RunRecord, RunRecord]]] = {}
        for run in sorted(selected, key=lambda run: run.parts.rank):
            if run.parts.name != "org" and (run.seeds, run.device) in original:
                pairs.setdefault(run.parts.label, []).append((original[run.seeds, run.device], run))
        found += [Cost(group, schedule, parts, pairs[parts]) for parts in pairs]
    return found


def timed(costs: Sequence[Cost]) -> list[str]:
    """Reported times that any of the costs has."""
    return [time for time in TIMES if any(cost.ratio(time) for cost in costs)]
