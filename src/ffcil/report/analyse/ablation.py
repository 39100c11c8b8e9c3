"""Ablations: the original method, whole frameworks, and runs with only some parts of a framework."""

from collections.abc import Sequence
from dataclasses import dataclass

from ffcil.report.analyse.groups import Group, groups_by_schedule
from ffcil.report.analyse.tables import Cell, cells_of
from ffcil.report.read.parts import Parts
from ffcil.report.read.records import WHOLE, RunRecord, classifiers_of


@dataclass(frozen=True)
class Ablation:
    """Results of one method with its scored classifier under one kind of schedule."""

    group: Group
    classifier: str
    schedule: str
    cells: dict[Parts, Cell]
    """Results by choice of parts, in the order of `Parts.rank`; changes are relative to the original method."""

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
    """Ablations of every group and kind of schedule with a run that has some parts of a framework, but not all."""
    return [
        _ablation(group, schedule, selected)
        for group, schedule, selected in groups_by_schedule(runs)
        if any(run.parts.name not in WHOLE for run in selected)
    ]


def _ablation(group: Group, schedule: str, runs: list[RunRecord]) -> Ablation:
    classifier = classifiers_of(runs)[0]
    runs = [run for run in runs if classifier in run.tables]
    cells = cells_of(runs, classifier, lambda run: run.parts.name, lambda name: "" if name == "org" else "org")
    parts = {run.parts.name: run.parts for run in sorted(runs, key=lambda run: run.parts.rank)}
    return Ablation(group, classifier, schedule, {parts[name]: cells[name] for name in parts})
