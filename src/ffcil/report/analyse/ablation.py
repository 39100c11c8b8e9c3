"""Ablations: the original method, the whole framework, and runs with only some parts of the framework."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ffcil.report.analyse.groups import Group, group_runs
from ffcil.report.analyse.tables import Cell, cells_of
from ffcil.report.read.parts import Parts
from ffcil.report.read.records import RunRecord, classifiers_of


class AblationLine(NamedTuple):
    """Results with one choice of parts. Changes are relative to the original method with the same seeds."""

    parts: Parts
    cell: Cell

    @property
    def name(self) -> str:
        """Names of the parts that are on."""
        return parts_label(self.parts)


@dataclass(frozen=True)
class Ablation:
    """Results of one method with its scored classifier under one kind of schedule, one line per choice of parts."""

    group: Group
    classifier: str
    schedule: str
    lines: tuple[AblationLine, ...]
    """Lines in the order of `Parts.rank`."""

    @property
    def label(self) -> str:
        """Name of the method with its classifier and condition."""
        return self.group.method_label(self.classifier)

    @property
    def schedule_label(self) -> str:
        """Kind of schedule in words."""
        return {"Equ": "equal steps", "FF": "free flow"}.get(self.schedule, self.schedule)

    @property
    def data_label(self) -> str:
        """Name of the data set with its numbers of classes and steps, and the kind of schedule."""
        return f"{self.group.data_label}, {self.schedule_label}"


def ablations(runs: Sequence[RunRecord]) -> list[Ablation]:
    """Ablations of every group and kind of schedule that has a run with some parts of the framework but not all."""
    found = []
    for group in group_runs(run for run in runs if run.finished):
        for schedule in dict.fromkeys(run.schedule for run in group.runs):
            selected = [run for run in group.runs if run.schedule == schedule]
            if any(run.parts.name not in ("org", "ours") for run in selected):
                found.append(_ablation(group, schedule, selected))
    return found


def _ablation(group: Group, schedule: str, runs: list[RunRecord]) -> Ablation:
    classifier = classifiers_of(runs)[0]
    runs = [run for run in runs if classifier in run.tables]
    parts = {run.parts.name: run.parts for run in runs}
    cells = cells_of(runs, classifier, lambda run: run.parts.name, lambda name: "" if name == "org" else "org")
    lines = [AblationLine(parts[name], cell) for name, cell in cells.items()]
    return Ablation(group, classifier, schedule, tuple(sorted(lines, key=lambda line: line.parts.rank)))


def parts_label(parts: Parts) -> str:
    """Names of the parts that are on: `original`, `CWM`, `CWM + DIWA`."""
    if parts.name == "ours":
        return "CWM + HA" if parts.ha else "CWM + DIWA"
    return "original" if parts.name == "org" else parts.name
